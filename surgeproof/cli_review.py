"""Commands that look back: runs kept and thrown away, compared, held against their history, decided on."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surgeproof.cli_options import RUN_ID, db_option, json_option
from surgeproof.errors import ConfigError, UsageError
from surgeproof.records import REQUEST_CLASSES

if TYPE_CHECKING:
    from surgeproof.storage.store import Store


class Number(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Refuse what is not finite: no comparison ever holds for it."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(number)


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def add_review_commands(cli: click.Group, runs: click.Group) -> None:
    """Hang the commands below the command line and its group `runs`."""
    for command in (tag, delete, export, import_command, prune):
        runs.add_command(command)
    for command in (compare, baseline, decide, breaker, slo, estimate):
        cli.add_command(command)


def _existing(db: str) -> "Store":
    from surgeproof.storage.store import Store, open_engine

    open_engine(db, create=False).dispose()
    return Store(db)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.argument("tags", nargs=-1, required=True, metavar="KEY=VALUE...")
@db_option
def tag(run_id: int, tags: tuple[str, ...], db: str) -> None:
    """Set tags of a run; KEY= removes one."""
    given: dict[str, str | None] = {}
    for text in tags:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"tag {text!r} must look like KEY=VALUE")
        given[key] = value or None
    held = _existing(db).tag_run(run_id, given)
    click.echo(f"run {run_id}: " + (" ".join(f"{key}={value}" for key, value in held.items()) or "no tags"))


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=RUN_ID, metavar="RUN_ID...")
@db_option
def delete(run_ids: tuple[int, ...], db: str) -> None:
    """Remove runs with all their records."""
    from surgeproof.storage.queries import unfinished_runs

    store = _existing(db)
    running = {row["id"] for row in unfinished_runs(store.engine)} & set(run_ids)
    if running:
        shown = ", ".join(map(str, sorted(running)))
        raise UsageError(f"run {shown} has not ended: stop it first, or see 'surgeproof recover'")
    missing = [number for number in run_ids if not store.delete_run(number)]
    store.shrink()
    click.echo(f"{len(run_ids) - len(missing)} runs deleted.")
    if missing:
        raise UsageError(f"no run {', '.join(map(str, missing))}; see 'surgeproof runs list'")


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path),
    help="*.jsonl the whole run, *.csv or *.parquet its records, *.json as vLLM's bench writes.",
)  # fmt: skip
@db_option
def export(run_id: int, output: Path, db: str) -> None:
    """Write a run to a file; its suffix says how."""
    from surgeproof.review import export_run

    export_run(db, run_id, output)
    click.echo(f"Run {run_id} written to {output}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@db_option
def import_command(file: Path, db: str) -> None:
    """Take in a run that was exported as JSON lines."""
    from surgeproof.storage.archive import import_lines
    from surgeproof.storage.store import Store

    try:
        with file.open(encoding="utf-8") as lines:
            run_id = import_lines(Store(db), lines)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {exc}") from exc
    click.echo(f"Imported as run {run_id}.")


@click.command()
@click.option("--keep-days", type=Number(0, 36_500), help="Delete runs that started earlier.")
@click.option("--max-size", help="Delete the oldest runs until the database is smaller: 500MB, 2GB.")
@click.option("--dry-run", is_flag=True, help="Only say which would go.")
@db_option
def prune(keep_days: float | None, max_size: str | None, dry_run: bool, db: str) -> None:
    """Keep a database small: by age, by size, or both; tagged `keep` runs stay."""
    from surgeproof.retention import prune_runs

    if keep_days is None and max_size is None:
        raise ConfigError("say what to keep: --keep-days 90, --max-size 2GB, or both")
    gone = prune_runs(_existing(db), keep_days, _bytes(max_size) if max_size else None, dry_run=dry_run)
    numbers = f": {', '.join(map(str, gone))}" if gone else ""
    click.echo(f"{len(gone)} runs {'would be deleted' if dry_run else 'deleted'}{numbers}")


def _bytes(text: str) -> int:
    for unit, factor in _UNITS.items():
        number = text.strip().upper().removesuffix(unit)
        if number != text.strip().upper():
            try:
                size = float(number) * factor
            except ValueError:
                break
            if 0 <= size < 1e18:
                return int(size)
            break
    raise ConfigError(f"--max-size: {text!r} is not a size such as 500MB or 2GB")


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=RUN_ID, metavar="A B...")
@click.option(
    "--rate-drop", type=Number(0, 100), default=5.0, show_default=True, help="Accepted fall of rates, per cent."
)
@click.option("--p99-rise", type=Number(0), default=20.0, show_default=True, help="Accepted rise of a p99, ms.")
@db_option
@json_option
def compare(run_ids: tuple[int, ...], rate_drop: float, p99_rise: float, db: str, as_json: bool) -> None:
    """Differences of run A to others with their confidence.

    Exit 3 when one is worse than accepted, 4 when it may be and too few requests tell, 5 when a run is INVALID.
    """
    import json

    import msgspec

    from surgeproof.review import compare_runs
    from surgeproof.slo.compare import Policy

    if len(run_ids) < 2:
        raise ConfigError("name two runs or more: surgeproof compare A B")
    found = compare_runs(db, run_ids, Policy(rate_drop=rate_drop / 100, p99_rise_ms=p99_rise))
    for note in found.notes:
        click.echo(f"Note: {note}", err=True)
    if as_json:
        plain = [
            {"before": run_ids[0], "after": number, "differences": msgspec.to_builtins(differences)}
            for number, differences in zip(run_ids[1:], found.differences, strict=True)
        ]
        click.echo(json.dumps(plain, allow_nan=False))
    else:
        from surgeproof.ci.review_tables import print_comparison

        for number, differences in zip(run_ids[1:], found.differences, strict=True):
            print_comparison(run_ids[0], number, differences)
    sys.exit(found.exit_code)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--days", type=Number(0, 36_500), default=7.0, show_default=True, help="How far to look back.")
@db_option
@json_option
def baseline(run_id: int, days: float, db: str, as_json: bool) -> None:
    """Hold a run against earlier ones of its name; exit 3 when it alarms."""
    import json

    import msgspec

    from surgeproof.review import baseline_report

    found = baseline_report(db, run_id, days)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), allow_nan=False))
    else:
        from surgeproof.ci.review_tables import print_baseline

        print_baseline(found)
    sys.exit(3 if any(deviation.alarm for deviation in found.deviations) else 0)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--baseline", "baseline_id", type=RUN_ID, help="Run of what the candidate would replace.")
@db_option
@json_option
def decide(run_id: int, baseline_id: int | None, db: str, as_json: bool) -> None:
    """Promote, hold or roll back, by the decision table; exit 0, 4 or 3."""
    import json

    import msgspec

    from surgeproof.review import decision_of
    from surgeproof.slo.decision import Action

    found = decision_of(db, run_id, baseline_id)
    click.echo(json.dumps(msgspec.to_builtins(found)) if as_json else f"{found.action}: {found.reason}")
    sys.exit({Action.PROMOTE: 0, Action.HOLD: 4, Action.ROLL_BACK: 3}[found.action])


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option(
    "--ttft-p99",
    type=Number(0, min_open=True),
    default=2000.0,
    show_default=True,
    help="What first tokens must keep to, ms.",
)
@db_option
@json_option
def breaker(run_id: int, ttft_p99: float, db: str, as_json: bool) -> None:
    """A circuit breaker's load score over a run, and the threshold that it suggests."""
    import json

    import msgspec

    from surgeproof.review import breaker_of

    found = breaker_of(db, run_id, ttft_p99)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    scores = " ".join(f"{score:.2f}" for _, score in found.windows)
    click.echo(f"scores over the run: {scores or 'too few requests'}")
    threshold = "none: first tokens kept to it" if found.threshold is None else f"{found.threshold:.2f}"
    click.echo(f"suggested threshold for a p99 of {ttft_p99:g} ms: {threshold}")
    if found.false_alarms:
        click.echo(
            f"{found.false_alarms} windows that kept to it reach that score too: it would open for nothing there"
        )


@click.command()
@click.option("--steps", type=click.Path(path_type=Path), help="JSON of measured steps.")
@click.option("--run", "run_ids", type=RUN_ID, multiple=True, help="Stored run; repeatable with --calibrate.")
@click.option("--calibrate", is_flag=True, help="Fit to the agent's counters of the runs, and keep it.")
@click.option("--gpu", "gpu_name", help="H200, H100, A100-80GB, L40S, ..; with --steps, default the file's own.")
@click.option("--config", type=click.Path(path_type=Path), help="The model's config.json (for --run).")
@click.option("--weights", help="Number type of quantised weights: fp8, int8, int4.")
@click.option("--kv-cache", help="Number type of the KV cache.")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(1, 1024), help="Tensor-parallel GPUs.")
@db_option
@json_option
def estimate(
    steps: Path | None,
    run_ids: tuple[int, ...],
    calibrate: bool,
    gpu_name: str | None,
    config: Path | None,
    weights: str | None,
    kv_cache: str | None,
    gpus: int,
    db: str,
    as_json: bool,
) -> None:
    """Estimate what SMs, tensor cores and memory did, from what was asked of the model."""
    import json

    from surgeproof.capacity import calibrate_estimate, estimate_run, estimate_steps_file, subject

    if (steps is None) == (not run_ids):
        raise ConfigError("say what to estimate: --steps FILE or --run ID")
    if steps is not None:
        found = estimate_steps_file(steps, gpu_name)
    else:
        of = subject(gpu_name, config, weights, kv_cache, gpus)
        if calibrate:
            fit = calibrate_estimate(db, run_ids, of)
            click.echo(
                f"Kept for {of.gpu.name}: decode does {fit.decode_scale:.2g} times, prompts {fit.prefill_scale:.2g} "
                "times the work of a lean engine",
                err=as_json,
            )
        found = [row for run_id in run_ids for row in estimate_run(db, run_id, of)]
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        from surgeproof.ci.review_tables import print_estimates

        print_estimates(found)


@click.group()
def slo() -> None:
    """Look at objectives before a run."""


@slo.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rate", type=Number(1e-6, 1e9), help="Requests a second of the whole run.")
@click.option("--classes", default="P0=5,P1=3,P2=1", show_default=True, help="Shares of the classes.")
@json_option
def plan(file: Path, rate: float | None, classes: str, as_json: bool) -> None:
    """How many requests and minutes each rule of FILE (or preset:NAME) needs for a verdict."""
    import json

    import msgspec

    from surgeproof.config import load_slo
    from surgeproof.slo.planning import needs
    from surgeproof.slo.rules import parse_rules

    try:
        shares = {key: float(value) for key, _, value in (part.partition("=") for part in classes.split(","))}
    except ValueError:
        raise ConfigError(f"--classes: {classes!r} must look like P0=5,P1=3") from None
    bad = [key for key, value in shares.items() if key not in REQUEST_CLASSES or not 0 <= value < 1e9]
    if bad or sum(shares.values()) <= 0:
        raise ConfigError(f"--classes: {classes!r} must give shares of {', '.join(REQUEST_CLASSES)}, none negative")
    found = needs(parse_rules(load_slo(file)), rate, shares)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        from surgeproof.ci.review_tables import print_needs

        print_needs(found)


@slo.command()
def presets() -> None:
    """List the named sets of objectives."""
    from surgeproof.slo.presets import PRESETS

    for name, (told, rules) in PRESETS.items():
        click.echo(f"{name}: {told}")
        for request_class, texts in rules.items():
            click.echo(f"  {request_class}: {'; '.join(texts)}")
