"""Arguments in, exit code out. Each command parses, calls one function and shows what it returned.

Imports are inside the commands, so that `--help` answers at once.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surgeproof import __version__
from surgeproof.cli_review import add_review_commands, db_option, json_option
from surgeproof.errors import ConfigError, SurgeproofError

if TYPE_CHECKING:
    from surgeproof.config import Scenario, Secrets
    from surgeproof.locust_process import LocustProcess
    from surgeproof.run import RunResult

DEMO_SCENARIO = Path(__file__).with_name("demo.yaml")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="surgeproof")
def cli() -> None:
    """Load-test an OpenAI-compatible LLM endpoint with real traffic, and judge it against SLOs.

    Exit codes: 0 PASS, 2 bad usage or configuration, 3 FAIL, 4 INCONCLUSIVE, 5 INVALID or broken
    run, 130 interrupted, 1 crash.
    """


class _Pairs(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "key=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key.strip():
            # The text may be a secret: it is not repeated.
            self.fail("must look like KEY=VALUE", param, ctx)
        return key.strip(), text


def _secret_options(command: Any) -> Any:
    command = click.option("--header", "headers", multiple=True, type=_Pairs(), help="Header K=V; repeatable.")(command)
    return click.option("--api-key", help="Bearer key; better set OPENAI_API_KEY.")(command)


def _tls_options(command: Any) -> Any:
    for option in (
        click.option("--insecure", is_flag=True, help="Do not check the server's certificate."),
        click.option("--ca-file", type=click.Path(), help="Certificates to trust."),
        click.option("--client-cert", type=click.Path(), help="Our certificate (PEM)."),
        click.option("--client-key", type=click.Path(), help="Its key (PEM)."),
    ):
        command = option(command)
    return command


@cli.command()
@click.argument("arguments", nargs=-1, metavar="[SCENARIO]")
@click.option("--base-url", help="Endpoint, as OpenAI clients take it: http://HOST:PORT/v1.")
@click.option("--model", help="Model; default the first that the endpoint lists.")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]))
@click.option("--trace", type=click.Path(), help="Trace file to replay, or to draw lengths from.")
@click.option("--trace-columns", help="Columns of a trace of any form: at=NAME,input=NAME,output=NAME[,..].")
@click.option("--profile", help="Fitted profile to draw traffic from: a bundled name or a file.")
@click.option(
    "--scale",
    type=click.Choice(["superpose", "intensify", "thin", "compress"]),
    help="How --request-rate changes a profile's rate; default superpose for more, thin for less.",
)
@click.option("--arrivals", type=click.Choice(["exact", "constant", "poisson", "gamma"]))
@click.option("--request-rate", help="Requests a second, or inf.")
@click.option("--burstiness", type=float, help="Shape of Gamma gaps: 1 is Poisson, below 1 burstier.")
@click.option("--max-concurrency", type=int, help="Requests in flight at most.")
@click.option("--concurrency", help="Closed loop: users of each step, such as 16,32,64.")
@click.option("--duration", help="Of the load, or of each step: 60s, 5m.")
@click.option("--num-prompts", type=int, help="Requests in all, or of each step.")
@click.option("--input-len", type=int, help="Prompt tokens.")
@click.option("--output-len", type=int, help="Output tokens.")
@click.option("--speedup", type=float, help="Replay a trace this many times as fast.")
@click.option("--limit", type=int, help="First rows of the trace only.")
@click.option("--window", help="Part of the trace, START,END in seconds.")
@click.option("--skip-invalid", is_flag=True, help="Leave malformed trace rows out, counted.")
@click.option("--keep-clock-grid", is_flag=True, help="Do not spread rounded time stamps.")
@click.option(
    "--turns",
    type=click.Choice(["at_timestamp", "after_response"]),
    help="When a session's later turns leave; default at their time stamps.",
)
@click.option("--classes", help="Mix of request classes by weight: P0=5,P1=3,P2=1; default all P1.")
@click.option("--num-warmups", type=int, help="First requests not judged.")
@click.option("--warmup", help="First seconds not judged.")
@click.option("--drain", help="How long to wait for answers after the load has ended.")
@click.option("--seed", type=int, help="Of arrivals, lengths, classes and prompts.")
@click.option("--ignore-eos", is_flag=True, help="Ask the server for full output lengths (vLLM).")
@click.option("--tokenizer", type=click.Path(), help="tokenizer.json for exact prompt lengths.")
@click.option("--words-per-token", type=float, help="Declared ratio where there is no tokenizer.")
@click.option("--goodput", multiple=True, help="Bounds in ms that count as good: ttft:500 tpot:50.")
@click.option("--slo", type=click.Path(path_type=Path), help="YAML file of objectives, or preset:NAME.")
@click.option("--gpu-agent", "gpu_agents", multiple=True, help="URL of a GPU agent to collect from; repeatable.")
@click.option("--processes", type=int, help="Worker processes.")
@click.option("--cold-connections", is_flag=True, help="A new connection for each request.")
@click.option("--connect-timeout", help="Per phase; default 10s.")
@click.option("--read-timeout", help="Longest silence; default 120s.")
@click.option("--first-token-timeout", help="Default none.")
@click.option("--total-timeout", help="Default none.")
@click.option("--allow-long", is_flag=True, help="Allow a plan of more than a day.")
@click.option("--metadata", multiple=True, type=_Pairs(), help="Tag K=V of the run; repeatable.")
@_tls_options
@_secret_options
@db_option
@json_option
def run(
    arguments: tuple[str, ...],
    db: str,
    as_json: bool,
    api_key: str | None,
    headers: tuple[tuple[str, str], ...],
    **flags: Any,
) -> None:
    """Run a load test: a SCENARIO file, flags in vLLM's spelling, or flags over a file."""
    from surgeproof.config import load_scenario

    # vLLM writes `--goodput ttft:500 tpot:50`: the later pairs arrive as loose arguments.
    bounds = [text for text in arguments if _is_goodput(text)] if flags["goodput"] else []
    paths = [Path(text) for text in arguments if text not in bounds]
    if len(paths) > 1:
        raise ConfigError(f"one scenario at a time, not {len(paths)}: {', '.join(map(str, paths))}")
    path = paths[0] if paths else None
    flags["goodput"] = [*flags["goodput"], *bounds]
    scenario = load_scenario(path, _overrides(flags))
    sys.exit(_run(scenario, _secrets(api_key, headers), db, path, as_json=as_json))


def _run(scenario: "Scenario", secrets: "Secrets", db: str, path: Path | None, *, as_json: bool) -> int:
    from surgeproof.locust_process import LocustProcess

    locust = LocustProcess(scenario, secrets, db)
    try:
        result = _carried(locust, scenario, secrets, db, path, quiet=as_json)
    except BaseException:
        locust.abandon()
        raise
    if as_json:
        import json

        from surgeproof.storage.queries import get_run
        from surgeproof.storage.store import open_engine

        click.echo(json.dumps(get_run(open_engine(db), result.run_id), allow_nan=False))
    else:
        from surgeproof.ci.board import print_result
        from surgeproof.config import sqlite_path
        from surgeproof.errors import StoreError

        print_result(result)
        path = sqlite_path(db)
        if path is not None and not path.exists():
            raise StoreError(f"database {path} was removed during the run; nothing is kept")
        click.echo(f"Stored in {_shown(db)}; look at it with: surgeproof ui --db {_shown(db)}")
    return result.exit_code


def _carried(
    locust: "LocustProcess",
    scenario: "Scenario",
    secrets: "Secrets",
    db: str,
    path: Path | None,
    *,
    quiet: bool,
) -> "RunResult":
    """Our own heavy imports happen here, while Locust is at its own."""
    from surgeproof.ci.progress import Progress
    from surgeproof.run import run_scenario

    with Progress(quiet=quiet) as progress:
        return run_scenario(locust, scenario, secrets, db, path, progress.begin, progress.advance)


def _overrides(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that were given, by their key in a scenario."""
    from surgeproof.config import load_slo, parse_duration_s

    out: dict[str, Any] = {}
    for name in ("base_url", "model", "endpoint"):
        out[f"target.{name}"] = flags[name]
    for name in (
        "trace", "trace_columns", "profile", "arrivals", "burstiness", "max_concurrency", "num_prompts", "input_len",
        "output_len", "speedup", "scale", "turns", "limit", "num_warmups", "seed", "tokenizer", "words_per_token",
    ):  # fmt: skip
        out[f"load.{name}"] = flags[name]
    for name in ("duration", "warmup", "drain"):
        if flags[name] is not None:
            out[f"load.{name}_s"] = parse_duration_s(flags[name], f"--{name}")
    for name in ("skip_invalid", "keep_clock_grid", "allow_long"):
        out[f"load.{name}"] = flags[name] or None
    out["target.ignore_eos"] = flags["ignore_eos"] or None
    out["target.reuse_connections"] = False if flags["cold_connections"] else None
    timeouts = {
        f"{name}_s": parse_duration_s(flags[f"{name}_timeout"], f"--{name}-timeout".replace("_", "-"))
        for name in ("connect", "read", "first_token", "total")
        if flags[f"{name}_timeout"] is not None
    }
    out["target.timeouts"] = timeouts or None
    out["target.tls"] = _tls(flags)
    out["load.request_rate"] = _rate(flags["request_rate"])
    out["load.concurrency"] = _numbers(flags["concurrency"], "--concurrency", int)
    out["load.classes"] = _weights(flags["classes"])
    out["load.window_s"] = _numbers(flags["window"], "--window", float)
    out["processes"] = flags["processes"]
    out["gpu_agents"] = list(flags["gpu_agents"]) or None
    out["goodput"] = _goodput(flags["goodput"]) or None
    out["slo"] = load_slo(flags["slo"]) if flags["slo"] else None
    out["metadata"] = dict(flags["metadata"]) or None
    return {key: value for key, value in out.items() if value is not None}


def _tls(flags: dict[str, Any]) -> dict[str, Any] | None:
    tls = {name: flags[name] for name in ("ca_file", "client_cert", "client_key") if flags[name]}
    return (tls | ({"verify": False} if flags["insecure"] else {})) or None


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--request-rate: {text!r} is neither a number nor inf") from None


def _numbers(text: str | None, flag: str, kind: type) -> list[Any] | None:
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag}: {text!r} is not a list of numbers separated by commas") from None


def _weights(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        raise ConfigError(f"--classes: {text!r} must look like P0=5,P1=3,P2=1") from None


def _is_goodput(text: str) -> bool:
    from surgeproof.slo.rules import GOODPUT_NAMES

    return text.partition(":")[0] in GOODPUT_NAMES and ":" in text


def _goodput(pairs: list[str]) -> dict[str, float]:
    from surgeproof.slo.rules import parse_goodput

    return parse_goodput([part for pair in pairs for part in pair.split()])


def _secrets(api_key: str | None, headers: tuple[tuple[str, str], ...]) -> "Secrets":
    """Key and headers from flags over those of the environment."""
    from surgeproof.config import Secrets, check_headers

    held = Secrets.from_environment(dict(os.environ)).headers
    if api_key:
        held["Authorization"] = f"Bearer {api_key}"
    return check_headers(held | dict(headers))


@cli.command()
@click.option("--base-url", help="Endpoint, as OpenAI clients take it: http://HOST:PORT/v1.")
@click.option("--model", help="Model; default the first that the endpoint lists.")
@click.option("--prompt", default="Say hello.", show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option("--timeout", default="60s", show_default=True, help="To connect, for a first token, and between reads.")
@_tls_options
@_secret_options
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
            "tls": _tls(tls) or {},
            "timeouts": {"connect_s": limit, "read_s": limit, "first_token_s": limit},
        }
    )
    secrets = _secrets(api_key, headers)
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
def traces() -> None:
    """Look at trace files, fit profiles to them and check the fit."""


def _trace_options(command: Any) -> Any:
    for option in (
        click.option("--skip-invalid", is_flag=True, help="Leave malformed rows out, counted."),
        click.option("--columns", help="Columns of any table: at=NAME,input=NAME,output=NAME[,session=..,unit=ms]."),
        click.option("--format", "format_name", default="auto", show_default=True, help="Format of the file."),
    ):
        command = option(command)
    return command


@traces.command()
@click.argument("file", type=click.Path(path_type=Path))
@_trace_options
@click.option("--keep-clock-grid", is_flag=True, help="Do not spread rounded time stamps.")
@json_option
def inspect(
    file: Path, format_name: str, columns: str | None, skip_invalid: bool, keep_clock_grid: bool, as_json: bool
) -> None:
    """Show rate, gaps, dispersion, lengths and clock of a trace; large tables are streamed."""
    import json

    from surgeproof.traces.describe import describe_file

    facts = describe_file(file, format_name, columns=columns, skip_invalid=skip_invalid, undo_grid=not keep_clock_grid)
    if as_json:
        click.echo(json.dumps(facts, allow_nan=False))
        return
    from surgeproof.ci.tables import print_trace

    print_trace(facts)


@traces.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Profile to write (JSON).")
@click.option("--name", help="Name of the profile; default the output's.")
@_trace_options
@click.option(
    "--kind",
    type=click.Choice(["pgar", "poisson", "gamma", "exact"]),
    default="pgar",
    show_default=True,
    help="Bursty model, one rate with exponential or Gamma gaps, or the recording itself.",
)
@click.option("--empirical-gaps", is_flag=True, help="Keep the trace's own short gaps, not a Gamma law.")
@click.option("--licence", help="Licence of the trace, kept with the numbers.")
@click.option("--citation", help="What users of the numbers should cite.")
def fit(
    file: Path,
    output: Path,
    name: str | None,
    format_name: str,
    columns: str | None,
    skip_invalid: bool,
    kind: str,
    empirical_gaps: bool,
    licence: str | None,
    citation: str | None,
) -> None:
    """Fit the arrival model and the lengths of a trace; the profile holds no prompt and no user."""
    if output.exists() and file.exists() and output.samefile(file):
        raise ConfigError(f"{output} is the trace itself: name another file to write")
    import msgspec

    from surgeproof.planning import simulate_pgar
    from surgeproof.traces.fit import fit_profile
    from surgeproof.traces.reader import read_trace

    trace = read_trace(file, format_name, columns=columns, skip_invalid=skip_invalid)
    profile = fit_profile(
        trace,
        name or output.stem,
        simulate_pgar,
        kind=kind,
        empirical_gaps=empirical_gaps,
        licence=licence,
        citation=citation,
    )
    try:
        output.write_bytes(msgspec.json.encode(profile) + b"\n")
    except OSError as exc:
        raise ConfigError(f"cannot write {output}: {exc.strerror}") from exc
    modulator = profile.arrivals.modulator
    told = f"bursts a={modulator.a:g} rho={modulator.rho:g}" if modulator else "no bursts beyond the rate"
    click.echo(
        f"{output}: {profile.source.rows} requests, {len(profile.arrivals.rates_per_s)} windows of "
        f"{profile.arrivals.coarse_window_s:g} s, {told}, gap shape {profile.arrivals.gap_shape:g}"
    )


@traces.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="JSONL file to write.")
@_trace_options
@click.option("--keep-clock-grid", is_flag=True, help="Do not spread rounded time stamps.")
def convert(
    file: Path, output: Path, format_name: str, columns: str | None, skip_invalid: bool, keep_clock_grid: bool
) -> None:
    """Write a trace in Mooncake's form, which other load testers read."""
    if output.exists() and file.exists() and output.samefile(file):
        raise ConfigError(f"{output} is the trace itself: name another file to write")
    from surgeproof.traces.export import mooncake_lines
    from surgeproof.traces.reader import read_trace

    trace = read_trace(file, format_name, columns=columns, skip_invalid=skip_invalid, undo_grid=not keep_clock_grid)
    _write(output, "".join(f"{line}\n" for line in mooncake_lines(trace.points)).encode())


@traces.command()
@click.argument("profile")
@click.option("--against", type=click.Path(path_type=Path), required=True, help="Trace file to compare with.")
@_trace_options
@click.option("--seeds", default=24, show_default=True, type=click.IntRange(4, 1000), help="Replicates of the model.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with pictures (extra `report`).")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write everything as JSON.")
def report(
    profile: str,
    against: Path,
    format_name: str,
    columns: str | None,
    skip_invalid: bool,
    seeds: int,
    html: Path | None,
    json_path: Path | None,
) -> None:
    """Check whether PROFILE (a bundled name or a file) makes traffic like a trace."""
    import msgspec
    import numpy as np

    from surgeproof.ci.tables import print_goodness
    from surgeproof.loadgen.plan import pair_lengths
    from surgeproof.planning import simulate_pgar
    from surgeproof.traces.goodness import check_profile
    from surgeproof.traces.profile import load_profile
    from surgeproof.traces.reader import read_trace

    if html is not None:
        try:
            from surgeproof.webui.trace_report import trace_report
        except ModuleNotFoundError as exc:
            raise ConfigError("pictures need: pip install 'surgeproof[report]'") from exc
    points = read_trace(against, format_name, columns=columns, skip_invalid=skip_invalid).points
    at_s = np.array([point.at_ns for point in points]) / 1e9
    found = check_profile(load_profile(profile), against.name, at_s, pair_lengths(points), simulate_pgar, seeds)
    print_goodness(found)
    if html is not None:
        _write(html, trace_report(found).encode())
    if json_path is not None:
        _write(json_path, msgspec.json.encode(found) + b"\n")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
    click.echo(f"Written to {path}")


@traces.command("stitch")
@click.argument("rates", type=click.Path(path_type=Path))
@click.argument("profile")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Profile to write (JSON).")
@click.option("--diurnal", is_flag=True, help="Draw new days of the series' daily and weekly shape.")
@click.option("--days", type=click.FloatRange(0.01, 366), help="Length of what is drawn; default the series' own.")
@click.option("--seed", default=1, show_default=True)
def stitch_command(rates: Path, profile: str, output: Path, diurnal: bool, days: float | None, seed: int) -> None:
    """Put the bursts and lengths of PROFILE below a rate series of days (CSV with t_s and rate_rps)."""
    import msgspec
    import numpy as np

    from surgeproof.traces.profile import load_profile
    from surgeproof.traces.rates import draw_series, fit_diurnal, read_rate_series, stitch

    if days is not None and not diurnal:
        raise ConfigError("--days needs --diurnal: a recorded series is as long as it is")
    series = read_rate_series(rates)
    series_rng, stitch_rng = np.random.default_rng(seed).spawn(2)
    if diurnal:
        shape = fit_diurnal(series)
        click.echo(f"daily and weekly shape explains {shape.r2:.0%} of the log rate; AR(1) {shape.phi:.2f}")
        length = days or len(series.rates_per_s) * series.step_s / 86_400
        series = draw_series(shape, length, series_rng)
    made = stitch(load_profile(profile), series, output.stem, stitch_rng)
    click.echo(f"{made.arrivals.span_s / 86_400:.2f} days at {made.arrivals.mean_rate_per_s:.4g} requests/s")
    _write(output, msgspec.json.encode(made) + b"\n")


@traces.command("list")
def list_profiles() -> None:
    """List the bundled profiles."""
    from surgeproof.traces.profile import bundled_profiles, load_profile

    for name in bundled_profiles():
        source = load_profile(name).source
        click.echo(f"{name}: {source.rows} requests over {source.span_s:g} s from {source.file} ({source.licence})")


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
@click.argument("run_id", type=click.IntRange(1, 2**31 - 1))
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
@click.argument("run_id", type=click.IntRange(1, 2**31 - 1))
@click.option("--slo", type=click.Path(path_type=Path), help="YAML file of objectives; default the run's own.")
@db_option
def gate(run_id: int, slo: Path | None, db: str) -> None:
    """Judge a stored run again; the exit code is the verdict."""
    from surgeproof.ci.board import print_result
    from surgeproof.config import load_slo
    from surgeproof.run import judge_stored

    result = judge_stored(db, run_id, load_slo(slo) if slo else None)
    print_result(result)
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
    from surgeproof.run import recover_runs, recover_spool

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
    type=_Pairs(),
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
        code = _run(scenario, _secrets(None, ()), db, DEMO_SCENARIO, as_json=False)
    program = "surgeproof" if shutil.which("surgeproof") else sys.argv[0]
    click.echo(
        "\nThat was Surgeproof on its own simulated engine. Next:\n"
        f"  {program} runs list --db {_shown(db)}\n"
        f"  {program} ui --db {_shown(db)}\n"
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


def _shown(db: str) -> str:
    from surgeproof.storage.store import shown_url

    return shown_url(db)


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
