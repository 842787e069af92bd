"""`surgeproof run`: flags in vLLM's spelling over a scenario file."""

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surgeproof.commands.options import (
    Pairs,
    db_option,
    json_option,
    parse_class_weights,
    report_options,
    request_fields,
    request_options,
    secret_options,
    secrets_of,
    tls_of,
    tls_options,
    write_reports_or_say,
)
from surgeproof.errors import ConfigError
from surgeproof.redaction import shown_url
from surgeproof.scenario import ENDPOINTS
from surgeproof.strict_json import JsonObject

if TYPE_CHECKING:
    from surgeproof.credentials import Secrets
    from surgeproof.results import RunResult
    from surgeproof.runs.locust_process import LocustProcess
    from surgeproof.scenario import Scenario


class Shown(Enum):
    """What is printed of a run."""

    ALL = "all"
    VERDICT = "verdict"
    JSON = "json"

    @classmethod
    def of(cls, *, as_json: bool, quiet: bool) -> "Shown":
        """By the flags; JSON comes first."""
        return cls.JSON if as_json else cls.VERDICT if quiet else cls.ALL


@click.command()
@click.argument("arguments", nargs=-1, metavar="[SCENARIO]")
@click.option("--name", help="Name of the run, by which 'baseline' finds earlier ones. Default: the file's.")
@click.option("--base-url", help="Base URL, as for OpenAI clients: http://HOST:PORT/v1.")
@click.option("--model", help="Model name. Default: the first that the endpoint lists.")
@click.option("--endpoint", type=click.Choice(ENDPOINTS), help="API to ask; default chat.")
@click.option("--batch-size", type=int, help="Texts of an embeddings request, documents of a rerank; default 1.")
@click.option("--images", type=int, help="Generated pictures in each request.")
@click.option("--image-size", help="Their size in pixels: WIDTHxHEIGHT; default 512x512.")
@click.option("--trace", type=click.Path(), help="Trace file to replay, or to draw lengths from.")
@click.option(
    "--trace-unit", type=click.Choice(["s", "ms", "us", "ns"]), help="Unit of the trace's times, where it is not clear."
)
@click.option("--trace-columns", help="Column names of a custom trace: at=NAME,input=NAME,output=NAME[,..].")
@click.option(
    "--dataset",
    type=click.Path(),
    help="Prompts to send: bodies or ShareGPT as JSON, CSV, Parquet, a text, or a folder of them.",
)
@click.option("--dataset-column", help="Column of a table that holds the prompts.")
@click.option(
    "--dataset-order", type=click.Choice(["keep", "shuffle"]), help="Order of the dataset's rows; default keep."
)
@click.option("--profile", help="Fitted profile to draw traffic from: a bundled name or a file.")
@click.option(
    "--scale",
    type=click.Choice(["superpose", "intensify", "thin", "compress"]),
    help="How to scale a profile to --request-rate. Default: superpose to raise the rate, thin to lower it.",
)
@click.option("--arrivals", type=click.Choice(["exact", "constant", "poisson", "gamma"]))
@click.option("--request-rate", help="Requests per second, or inf.")
@click.option("--burstiness", type=float, help="Shape of Gamma gaps: 1 is Poisson, below 1 burstier.")
@click.option("--max-concurrency", type=int, help="Maximum number of requests in flight.")
@click.option("--concurrency", help="Closed loop: number of users in each step, such as 16,32,64.")
@click.option("--duration", help="Load duration, or duration of each step: 60s, 5m.")
@click.option("--num-prompts", type=int, help="Number of requests in total, or per step.")
@click.option("--input-len", type=int, help="Prompt length in tokens.")
@click.option("--output-len", type=int, help="Output length in tokens.")
@click.option("--speedup", type=float, help="Speed-up factor for replaying a trace.")
@click.option("--limit", type=int, help="Use only the first N rows of the trace.")
@click.option("--window", help="Part of the trace or profile to use: START,END in seconds.")
@click.option("--skip-invalid", is_flag=True, help="Skip malformed trace rows, and report how many.")
@click.option("--keep-clock-grid", is_flag=True, help="Keep rounded time stamps; do not spread them.")
@click.option(
    "--turns",
    type=click.Choice(["at_timestamp", "after_response", "live"]),
    help="Later turns: at their time stamps (default), after the answer before, or live: telling it.",
)
@click.option("--tasks", type=click.Path(), help="File or folder of agents' tasks: requests that wait for one another.")
@click.option("--session-turns", type=int, help="Turns of made conversations, with --turns live.")
@click.option("--think-time", help="Mean time that users think before a later turn, with --turns live: 2s.")
@click.option("--keep-reasoning", is_flag=True, help="Tell later turns what was reasoned, too.")
@click.option("--stop-share", type=float, help="Share of the answers that their users stop reading; default 0.")
@click.option("--stop-after", type=int, help="Events with output after which they stop; default 20.")
@click.option("--classes", help="Mix of request classes by weight: P0=5,P1=3,P2=1; default all P1.")
@click.option("--num-warmups", type=int, help="Number of initial requests (of each step) that are not judged.")
@click.option("--warmup", help="Initial period (of each step) that is not judged, such as 30s.")
@click.option("--drain", help="How long to wait for answers after the load has ended.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="R",
    help="Run R times with seeds SEED, SEED+1, .. and judge the runs together.",
)
@click.option("--seed", type=int, help="Random seed of arrivals, lengths, classes and prompts.")
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="tokenizer.json or its folder, for exact prompt lengths; `server` asks /tokenize.",
)
@click.option("--words-per-token", type=float, help="Words per token to assume without --tokenizer.")
@click.option("--template-tokens", type=int, help="Tokens that the chat template adds to a prompt, as `probe` shows.")
@click.option("--prompt-salt", help="Words that prompts are made from; default: other prompts in each run.")
@click.option("--goodput", multiple=True, help="Bounds in ms for a good request: ttft:500 tpot:50.")
@click.option("--slo", type=click.Path(path_type=Path), help="YAML file of objectives, or preset:NAME.")
@click.option("--gpu-agent", "gpu_agents", multiple=True, help="URL of a GPU agent to collect from; repeatable.")
@click.option("--processes", type=int, help="Worker processes.")
@click.option("--cold-connections", is_flag=True, help="Open a new connection for each request.")
@click.option("--connect-timeout", help="Longest time to connect; default 10s.")
@click.option("--read-timeout", help="Longest time between two reads; default 120s.")
@click.option("--first-token-timeout", help="Longest wait for the first token; default none.")
@click.option("--total-timeout", help="Longest time of a request; default none.")
@click.option(
    "--abort-after",
    type=click.IntRange(min=0),
    metavar="N",
    help="Stop if none of the first N requests is answered; 0 never. Default: 20, of HTTP 401, 403 and 404 only.",
)
@click.option("--allow-long", is_flag=True, help="Allow a plan of more than a day.")
@click.option("--metadata", multiple=True, type=Pairs(), help="Tag the run with KEY=VALUE; repeatable.")
@request_options
@tls_options
@secret_options
@db_option
@json_option
@click.option("--quiet", is_flag=True, help="Print the verdict only.")
@report_options
def run(
    arguments: tuple[str, ...],
    db: str,
    as_json: bool,
    quiet: bool,
    api_key: str | None,
    api_key_command: str | None,
    headers: tuple[tuple[str, str], ...],
    junit: Path | None,
    markdown: Path | None,
    repeat: int,
    **flags: Any,
) -> None:
    """Run a load test from a SCENARIO file, from flags (named as in vLLM), or both; flags override the file."""
    from surgeproof.scenario_file import load_scenario

    # vLLM writes `--goodput ttft:500 tpot:50`: the later pairs arrive as positional arguments.
    bounds = [text for text in arguments if _is_goodput(text)] if flags["goodput"] else []
    paths = [Path(text) for text in arguments if text not in bounds]
    if len(paths) > 1:
        raise ConfigError(f"give one scenario file, not {len(paths)}: {', '.join(map(str, paths))}")
    path = paths[0] if paths else None
    flags["goodput"] = [*flags["goodput"], *bounds]
    scenario = load_scenario(path, _overrides(flags))
    secrets = secrets_of(api_key, headers, api_key_command)
    if repeat > 1:
        result = _repeat(scenario, secrets, db, path, repeat, Shown.of(as_json=as_json, quiet=quiet))
    else:
        result = run_and_show(scenario, secrets, db, path, Shown.of(as_json=as_json, quiet=quiet))
    if junit or markdown:
        write_reports_or_say(result, junit, markdown)
    sys.exit(result.exit_code)


def _repeat(
    scenario: "Scenario", secrets: "Secrets", db: str, path: Path | None, repeat: int, shown: Shown
) -> "RunResult":
    """Execute a scenario several times with seeds of their own, judge the runs together, print and return that."""
    import json

    from msgspec import structs

    from surgeproof.ci.gate import gate
    from surgeproof.ci.json_output import result_document
    from surgeproof.commands.board import print_result, print_verdict
    from surgeproof.exit_codes import ExitCode
    from surgeproof.slo.wording import counts_line

    done: list[int] = []
    for number in range(repeat):
        load = structs.replace(scenario.load, seed=scenario.load.seed + number, repetition=(number, repeat))
        if shown is Shown.ALL:
            click.echo(f"Repetition {number + 1} of {repeat}", err=True)
        result = _execute(structs.replace(scenario, load=load), secrets, db, path, shown)
        done.append(result.run_id)
        if shown is Shown.ALL:
            click.echo(f"{result.title}: {result.verdict or 'no objectives'}; {counts_line(result.summary)}", err=True)
        if result.exit_code > ExitCode.INVALID:
            click.echo(f"Interrupted; {number} of {repeat} repetitions are complete", err=True)
            return result
    together = gate(db, done, None)
    if shown is Shown.JSON:
        click.echo(json.dumps(result_document(together), allow_nan=False))
    elif shown is Shown.VERDICT:
        print_verdict(together)
    else:
        print_result(together)
        click.echo(f"Stored in {shown_url(db)}; judge them again with: surgeproof gate {' '.join(map(str, done))}")
    return together


def _execute(scenario: "Scenario", secrets: "Secrets", db: str, path: Path | None, shown: Shown) -> "RunResult":
    from surgeproof.runs.locust_process import LocustProcess

    locust = LocustProcess(scenario, secrets, db)
    try:
        return _run_with_progress(locust, scenario, secrets, db, path, quiet=shown is not Shown.ALL)
    except BaseException:
        locust.abandon()
        raise
    finally:
        locust.close()


def run_and_show(
    scenario: "Scenario", secrets: "Secrets", db: str, path: Path | None, shown: Shown = Shown.ALL
) -> "RunResult":
    """Execute a run, print its result and return it."""
    result = _execute(scenario, secrets, db, path, shown)
    if shown is Shown.VERDICT:
        from surgeproof.commands.board import print_verdict

        print_verdict(result)
    elif shown is Shown.JSON:
        import json

        from surgeproof.ci.json_output import run_document
        from surgeproof.storage.queries import get_run
        from surgeproof.storage.store import open_engine

        click.echo(json.dumps(run_document(get_run(open_engine(db), result.run_id)), allow_nan=False))
    else:
        from surgeproof.commands.board import print_result
        from surgeproof.errors import StoreError
        from surgeproof.storage.database_url import sqlite_path

        print_result(result)
        file = sqlite_path(db)
        if file is not None and not file.exists():
            raise StoreError(f"database {file} was removed during the run; its results are lost")
        click.echo(f"Stored in {shown_url(db)}; view it with: surgeproof ui --db {shown_url(db)}")
    return result


def _run_with_progress(
    locust: "LocustProcess",
    scenario: "Scenario",
    secrets: "Secrets",
    db: str,
    path: Path | None,
    *,
    quiet: bool,
) -> "RunResult":
    """Heavy imports happen here, while the Locust process does its own."""
    from surgeproof.commands.progress import Progress
    from surgeproof.runs.execute import run_scenario

    with Progress(quiet=quiet) as progress:
        return run_scenario(locust, scenario, secrets, db, path, progress.begin, progress.advance, progress.notice)


def _overrides(flags: JsonObject) -> JsonObject:
    """Flags that were given, by their key in a scenario."""
    from surgeproof.scenario_file import load_slo, parse_duration_s

    out: JsonObject = {}
    for name in ("base_url", "model", "endpoint"):
        out[f"target.{name}"] = flags[name]
    for name in (
        "dataset", "dataset_column", "dataset_order", "trace", "trace_unit", "trace_columns", "profile", "arrivals",
        "burstiness", "max_concurrency", "num_prompts", "input_len", "output_len", "speedup", "scale", "turns", "limit",
        "tasks", "session_turns", "stop_share", "stop_after",
        "num_warmups", "batch_size", "images", "seed", "tokenizer", "words_per_token",
        "template_tokens", "prompt_salt", "abort_after",
    ):  # fmt: skip
        out[f"load.{name}"] = flags[name]
    for name in ("duration", "warmup", "drain"):
        if flags[name] is not None:
            out[f"load.{name}_s"] = parse_duration_s(flags[name], f"--{name}")
    if flags["think_time"] is not None:
        out["load.think_s"] = parse_duration_s(flags["think_time"], "--think-time")
    for name in ("skip_invalid", "keep_clock_grid", "allow_long", "keep_reasoning"):
        out[f"load.{name}"] = flags[name] or None
    out["target.reuse_connections"] = False if flags["cold_connections"] else None
    timeouts = {
        f"{name}_s": parse_duration_s(flags[f"{name}_timeout"], f"--{name}-timeout".replace("_", "-"))
        for name in ("connect", "read", "first_token", "total")
        if flags[f"{name}_timeout"] is not None
    }
    out["target.timeouts"] = timeouts or None
    out["target.tls"] = tls_of(flags)
    out["load.request_rate"] = _rate(flags["request_rate"])
    out["load.concurrency"] = _numbers(flags["concurrency"], "--concurrency", int)
    out["load.classes"] = parse_class_weights(flags["classes"]) if flags["classes"] is not None else None
    out["load.image_size"] = _size(flags["image_size"])
    out["load.window_s"] = _numbers(flags["window"], "--window", float)
    out["name"] = flags["name"]
    out["processes"] = flags["processes"]
    out["gpu_agents"] = list(flags["gpu_agents"]) or None
    out["goodput"] = _goodput(flags["goodput"]) or None
    out["slo"] = load_slo(flags["slo"]) if flags["slo"] else None
    out["metadata"] = dict(flags["metadata"]) or None
    given = {key: value for key, value in out.items() if value is not None}
    return given | {f"target.{key}": value for key, value in request_fields(flags).items()}


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


def _size(text: str | None) -> list[int] | None:
    if text is None:
        return None
    width, _, height = text.lower().partition("x")
    try:
        return [int(width), int(height)]
    except ValueError:
        raise ConfigError(f"--image-size: {text!r} must look like 512x512") from None


def _is_goodput(text: str) -> bool:
    from surgeproof.slo.rules import GOODPUT_NAMES

    return text.partition(":")[0] in GOODPUT_NAMES and ":" in text


def _goodput(pairs: list[str]) -> dict[str, float]:
    from surgeproof.slo.rules import parse_goodput

    return parse_goodput([part for pair in pairs for part in pair.split()])
