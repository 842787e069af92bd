"""Arguments in, exit code out. Each command parses, calls one function and shows what it returned.

Imports are inside the commands, so that `--help` answers at once.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from surgeproof import __version__
from surgeproof.cli_options import (
    RUN_ID,
    Pairs,
    db_option,
    json_option,
    report_options,
    secret_options,
    secrets_of,
    shown,
    tls_of,
    tls_options,
)
from surgeproof.cli_review import add_review_commands
from surgeproof.cli_run import run, run_and_show
from surgeproof.cli_traces import traces
from surgeproof.errors import ConfigError, SurgeproofError

DEMO_SCENARIO = Path(__file__).with_name("demo.yaml")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="surgeproof")
def cli() -> None:
    """Load-test an OpenAI-compatible LLM endpoint with real traffic, and judge it against SLOs.

    Exit codes: 0 PASS, 2 bad usage or configuration, 3 FAIL, 4 INCONCLUSIVE, 5 INVALID or broken
    run, 130 interrupted, 1 crash.
    """


cli.add_command(run)
cli.add_command(traces)


@cli.command()
@click.option("--base-url", help="Endpoint, as OpenAI clients take it: http://HOST:PORT/v1.")
@click.option("--model", help="Model; default the first that the endpoint lists.")
@click.option("--prompt", default="Say hello.", show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option("--timeout", default="60s", show_default=True, help="To connect, for a first token, and between reads.")
@tls_options
@secret_options
@json_option
def probe(
    base_url: str | None,
    model: str | None,
    prompt: str,
    max_tokens: int,
    endpoint: str,
    timeout: str,
    api_key: str | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    **tls: Any,
) -> None:
    """Send one request and show its timeline; exit 0 when it was answered, else 3."""
    import json

    from surgeproof.config import load_target, parse_duration_s
    from surgeproof.endpoint import base_url_of, check_endpoint
    from surgeproof.loadgen.probe import probe as send

    if max_tokens < 1:
        raise ConfigError("--max-tokens must be at least 1")
    limit = parse_duration_s(timeout, "--timeout")
    target = load_target(
        {
            "base_url": base_url,
            "model": model,
            "endpoint": endpoint,
            "tls": tls_of(tls) or {},
            "timeouts": {"connect_s": limit, "read_s": limit, "first_token_s": limit},
        }
    )
    secrets = secrets_of(api_key, headers)
    if model is None:
        found = check_endpoint(target, secrets)
        facts = send(target, found.base_url, found.model, prompt, max_tokens, secrets)
    else:
        facts = send(target, base_url_of(target), model, prompt, max_tokens, secrets)
    if as_json:
        click.echo(json.dumps(facts, allow_nan=False))
    else:
        from surgeproof.ci.tables import print_probe

        print_probe(facts)
    sys.exit(0 if facts["outcome"] == "ok" else 3)


@cli.group()
def runs() -> None:
    """Look at stored runs."""


add_review_commands(cli, runs)


@runs.command("list")
@db_option
@json_option
def list_command(db: str, as_json: bool) -> None:
    """List runs, the newest first."""
    import json

    from surgeproof.storage.queries import list_runs
    from surgeproof.storage.store import open_engine

    found = list_runs(open_engine(db, create=False))
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
        return
    from surgeproof.ci.tables import print_runs

    print_runs(found)


@runs.command()
@click.argument("run_id", type=RUN_ID)
@db_option
@json_option
def show(run_id: int, db: str, as_json: bool) -> None:
    """Show one run: figures, board, audit."""
    import json

    from surgeproof.storage.queries import get_run
    from surgeproof.storage.store import open_engine

    found = get_run(open_engine(db, create=False), run_id)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
        return
    from surgeproof.ci.tables import print_run

    print_run(found)


@cli.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--slo", type=click.Path(path_type=Path), help="YAML file of objectives; default the run's own.")
@db_option
@json_option
@report_options
def gate(run_id: int, slo: Path | None, db: str, as_json: bool, junit: Path | None, markdown: Path | None) -> None:
    """Judge a stored run again; the exit code is the verdict."""
    import json

    from surgeproof.ci.board import print_result
    from surgeproof.ci.reports import as_plain, write_reports
    from surgeproof.config import load_slo
    from surgeproof.run import judge_stored

    result = judge_stored(db, run_id, load_slo(slo) if slo else None)
    if as_json:
        click.echo(json.dumps(as_plain(result), allow_nan=False))
    else:
        print_result(result)
    write_reports(result, junit, markdown)
    sys.exit(result.exit_code)


@cli.command()
@click.option(
    "--bind", default="127.0.0.1:9464", show_default=True, help="HOST:PORT; other than loopback needs a token."
)
@click.option("--token-env", help="Variable that holds the bearer token to ask for.")
@click.option("--interval", default="100ms", show_default=True, help="Between samples.")
@click.option("--gpus", "chosen", envvar="CUDA_VISIBLE_DEVICES", help="UUIDs or NVML indexes to watch; default all.")
def agent(bind: str, token_env: str | None, interval: str, chosen: str | None) -> None:
    """Serve what the GPUs of this host do (extra `gpu`); without a GPU it says so and serves that."""
    from aiohttp import web

    from surgeproof.config import parse_duration_s
    from surgeproof.errors import UsageError
    from surgeproof.gpu.agent import Sampler, make_app
    from surgeproof.gpu.nvml import open_nvml

    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--bind: {bind!r} must look like 127.0.0.1:9464")
    token = os.environ.get(token_env) if token_env else None
    if token_env and not token:
        raise ConfigError(f"--token-env: the variable {token_env} is not set")
    if token is None and host.strip("[]") not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"--bind {bind} can be reached from other hosts: name a token with --token-env")
    gpus, reason = None, None
    try:
        gpus = open_nvml(chosen)
    except UsageError as exc:
        reason = str(exc)
        click.echo(reason, err=True)
    sampler = Sampler(gpus, reason, max(0.01, parse_duration_s(interval, "--interval")))
    click.echo(f"Serving {len(gpus.facts()) if gpus else 0} GPUs on http://{bind}")
    try:
        web.run_app(make_app(sampler, token), host=host.strip("[]"), port=int(port), print=None, access_log=None)
    except OSError as exc:
        raise UsageError(f"--bind {bind} cannot be served: {exc.strerror or exc}") from exc


@cli.command()
@json_option
def calibrate(as_json: bool) -> None:
    """Measure this host's error bar and ceiling against an endpoint with known timing."""
    import json

    import msgspec

    from surgeproof.benchmarks.calibrate import calibrate as measured
    from surgeproof.calibration import save_calibration

    found = measured(lambda line: click.echo(line, err=as_json))
    path = save_calibration(found)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        click.echo(f"Kept in {path}; runs on this host now warn above 70 % of it.")


@cli.command()
@click.option("--spool", type=click.Path(path_type=Path), help="Folder that a worker on another host kept.")
@db_option
def recover(db: str, spool: Path | None) -> None:
    """Store and judge what killed runs left behind."""
    from surgeproof.ci.board import print_result
    from surgeproof.recovery import recover_runs, recover_spool

    results = [recover_spool(db, spool)] if spool else recover_runs(db)
    for result in results:
        print_result(result)
    click.echo(f"{len(results)} runs recovered.")


@cli.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for any free one.")
@click.option("--model", default="sim-8b", show_default=True, help="Name that the endpoint gives its model.")
@click.option("--seed", default=1, show_default=True)
@click.option("--max-batch", default=64, show_default=True, type=click.IntRange(1), help="Sequences in one step.")
@click.option(
    "--kv-blocks", default=16_384, show_default=True, type=click.IntRange(1), help="KV cache, blocks of 16 tokens."
)
@click.option("--priorities/--no-priorities", default=False, help="Schedule by the request's priority.")
@click.option("--prefix-cache/--no-prefix-cache", default=True)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="All step times multiplied by this.",
)
@click.option(
    "--inject",
    multiple=True,
    type=Pairs(),
    help="Fault=share: http_429, http_500, reset, stall, slow_start.",
)
def sim(host: str, port: int, inject: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Serve a simulated engine: OpenAI's API over a model of continuous batching."""
    from surgeproof.sandbox.sim_server import serve

    serve(host, port, options, dict(inject))


@cli.command()
@click.option("--duration", default="60s", show_default=True, help="Of the load.")
@db_option
def demo(duration: str, db: str) -> None:
    """Run real-looking traffic against a simulated engine on this host, and judge it."""
    from surgeproof.config import load_scenario, parse_duration_s
    from surgeproof.sandbox.sim_process import SimProcess

    overrides = {"load.duration_s": parse_duration_s(duration, "--duration")}
    with SimProcess() as sim:
        scenario = load_scenario(DEMO_SCENARIO, overrides | {"target.base_url": sim.base_url})
        code = run_and_show(scenario, secrets_of(None, ()), db, DEMO_SCENARIO, as_json=False).exit_code
    program = "surgeproof" if shutil.which("surgeproof") else sys.argv[0]
    click.echo(
        "\nThat was Surgeproof on its own simulated engine. Next:\n"
        f"  {program} runs list --db {shown(db)}\n"
        f"  {program} ui --db {shown(db)}\n"
        f"  {program} run --profile azure-conv --base-url http://YOUR-HOST:8000/v1 --duration 60s"
    )
    sys.exit(code)


@cli.command()
@click.option("--port", default=8501, show_default=True, type=click.IntRange(1, 65535))
@click.option("--host", default="127.0.0.1", show_default=True)
@db_option
def ui(port: int, host: str, db: str) -> None:
    """Open the pages on stored runs (needs the extra `ui`)."""
    from importlib.util import find_spec

    if find_spec("streamlit") is None:
        raise ConfigError("the pages need Streamlit: pip install 'surgeproof[ui]'")
    from surgeproof import webui

    app = Path(webui.__file__).with_name("app.py")
    os.environ["SURGEPROOF_DB"] = db
    arguments = [
        sys.executable, "-m", "streamlit", "run", str(app), "--server.port", str(port),
        "--server.address", host, "--server.headless", "true", "--browser.gatherUsageStats", "false",
    ]  # fmt: skip
    os.execv(sys.executable, arguments)  # noqa: S606


def _hide_secrets_from_process_list(arguments: list[str]) -> None:
    """Other users of the host read our arguments: a key, header or password given there is overwritten."""
    if any(part.startswith(("--api-key", "--header")) or ("://" in part and "@" in part) for part in arguments):
        import setproctitle

        setproctitle.setproctitle(f"surgeproof {arguments[0] if arguments else ''}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> None:
    """Entry point: errors of ours become one sentence and their exit code."""
    arguments = sys.argv[1:]
    if any(not _is_utf8(argument) for argument in arguments):
        click.echo("Error: an argument is not valid UTF-8", err=True)
        sys.exit(2)
    _hide_secrets_from_process_list(arguments)
    try:
        code = cli.main(args=arguments, prog_name="surgeproof", standalone_mode=False)
    except click.exceptions.Exit as exc:
        code = exc.exit_code
    except click.ClickException as exc:
        exc.show()
        code = 2
    except click.Abort:
        code = 130
    except SurgeproofError as exc:
        click.echo(f"Error: {exc}", err=True)
        code = exc.exit_code
    except BrokenPipeError:
        code = 0
    sys.exit(code or 0)
