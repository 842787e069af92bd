"""Commands that analyse stored runs: compare, check against history, decide, estimate GPU use."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surgeproof.commands.options import RUN_ID, Number, db_option, json_option
from surgeproof.errors import ConfigError
from surgeproof.exit_codes import ExitCode

if TYPE_CHECKING:
    from surgeproof.slo.compare import Policy


def _policy_options(command: Any) -> Any:
    """What is accepted of a candidate against the run that it is compared with."""
    for option in (
        click.option(
            "--success-drop",
            type=Number(0, 100),
            default=0.5,
            show_default=True,
            help="Accepted drop of the share answered, in percentage points.",
        ),
        click.option(
            "--p50-rise",
            metavar="RISE",
            help="Accepted rise of a median: 1ms or 5%.  [default: the larger of these two]",
        ),
        click.option(
            "--p99-rise", metavar="RISE", help="Accepted rise of a p99: 20ms or 5%.  [default: the larger of these two]"
        ),
        click.option(
            "--rate-drop",
            type=Number(0, 100),
            default=5.0,
            show_default=True,
            help="Accepted drop of a rate, in per cent.",
        ),
    ):
        command = option(command)
    return command


def _policy(rate_drop: float, p99_rise: str | None, p50_rise: str | None, success_drop: float) -> "Policy":
    import msgspec

    from surgeproof.slo.compare import Policy

    policy = Policy(rate_drop=rate_drop / 100, success_drop=success_drop / 100)
    for name, text in (("p99_rise", p99_rise), ("p50_rise", p50_rise)):
        if text is not None:
            rise_ms, rise = _rise(text, f"--{name}".replace("_", "-"))
            policy = msgspec.structs.replace(policy, **{f"{name}_ms": rise_ms, name: rise})
    return policy


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=RUN_ID, metavar="A B...")
@_policy_options
@db_option
@json_option
def compare(
    run_ids: tuple[int, ...],
    rate_drop: float,
    p99_rise: str | None,
    p50_rise: str | None,
    success_drop: float,
    db: str,
    as_json: bool,
) -> None:
    """Compare run A with one or more other runs, with confidence bounds.

    Exit code 0: every figure that decides is shown to be within its margin. 3: one is shown to be worse than accepted.
    4: too few requests to tell. 5: a run is INVALID or incomplete.
    """
    import json

    import msgspec

    from surgeproof.runs.review import compare_runs

    if len(run_ids) < 2:
        raise ConfigError("give at least two run numbers: surgeproof compare A B")
    result = compare_runs(db, run_ids, _policy(rate_drop, p99_rise, p50_rise, success_drop))
    for note in result.notes:
        click.echo(f"Note: {note}", err=True)
    if as_json:
        plain = [
            {"before": run_ids[0], "after": number, "differences": msgspec.to_builtins(differences)}
            for number, differences in zip(run_ids[1:], result.differences, strict=True)
        ]
        click.echo(json.dumps(plain, allow_nan=False))
    else:
        from surgeproof.commands.review_tables import print_comparison

        for number, differences in zip(run_ids[1:], result.differences, strict=True):
            print_comparison(run_ids[0], number, differences)
    sys.exit(result.exit_code)


def _rise(text: str, flag: str) -> tuple[float, float]:
    """An accepted rise as ms and as a share; the one that was not given is 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|%)?", text.strip())
    if match is None:
        raise ConfigError(f"{flag}: {text!r} is neither milliseconds such as 20ms nor a share such as 5%")
    value = float(match[1])
    return (0.0, value / 100) if match[2] == "%" else (value, 0.0)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option(
    "--days",
    type=Number(0, 36_500),
    default=7.0,
    show_default=True,
    help="Number of days to look back for runs of any weekday.",
)
@db_option
@json_option
def baseline(run_id: int, days: float, db: str, as_json: bool) -> None:
    """Compare a run with earlier runs of the same name. Exit code 3 if a figure is clearly worse."""
    import json

    import msgspec

    from surgeproof.runs.review import baseline_report

    report = baseline_report(db, run_id, days)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), allow_nan=False))
    else:
        from surgeproof.commands.review_tables import print_baseline

        print_baseline(report)
    alarm = any(deviation.alarm for deviation in report.deviations)
    sys.exit(ExitCode.FAIL if alarm else ExitCode.PASS)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--baseline", "baseline_id", type=RUN_ID, help="Run of the version to be replaced.")
@_policy_options
@db_option
@json_option
def decide(
    run_id: int,
    baseline_id: int | None,
    rate_drop: float,
    p99_rise: str | None,
    p50_rise: str | None,
    success_drop: float,
    db: str,
    as_json: bool,
) -> None:
    """Decide by a fixed table: promote (exit code 0), hold (4) or roll back (3).

    With a baseline the comparison must agree: what `compare` shows to be worse is rolled back, what it does not show to
    be within its margins is held.
    """
    import json

    import msgspec

    from surgeproof.runs.review import decision_of
    from surgeproof.slo.decision import Action

    policy = _policy(rate_drop, p99_rise, p50_rise, success_drop)
    decision = decision_of(db, run_id, baseline_id, policy)
    click.echo(json.dumps(msgspec.to_builtins(decision)) if as_json else f"{decision.action}: {decision.reason}")
    codes = {Action.PROMOTE: ExitCode.PASS, Action.HOLD: ExitCode.INCONCLUSIVE, Action.ROLL_BACK: ExitCode.FAIL}
    sys.exit(codes[decision.action])


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option(
    "--ttft-p99",
    type=Number(0, min_open=True),
    default=2000.0,
    show_default=True,
    help="Upper bound on the p99 time to first token, in ms.",
)
@db_option
@json_option
def breaker(run_id: int, ttft_p99: float, db: str, as_json: bool) -> None:
    """Show a circuit breaker's load score over a run, and suggest a threshold."""
    import json

    import msgspec

    from surgeproof.runs.review import breaker_of

    result = breaker_of(db, run_id, ttft_p99)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(result)))
        return
    scores = " ".join(f"{score:.2f}" for _, score in result.windows)
    click.echo(f"scores over the run: {scores or 'too few requests'}")
    threshold = "none: no window exceeded the bound" if result.threshold is None else f"{result.threshold:.2f}"
    click.echo(f"suggested threshold for a first-token p99 of {ttft_p99:g} ms: {threshold}")
    if result.false_alarms:
        click.echo(f"{result.false_alarms} windows within the bound also reach that score: false alarms")


@click.command()
@click.option("--steps", type=click.Path(path_type=Path), help="JSON file of measured steps.")
@click.option("--run", "run_ids", type=RUN_ID, multiple=True, help="Stored run id; repeatable with --calibrate.")
@click.option("--calibrate", is_flag=True, help="Fit to the GPU counters of these runs, and store the fit.")
@click.option("--gpu", "gpu_name", help="GPU: H200, H100, A100-80GB, L40S, ..; default with --steps: as in file.")
@click.option("--config", type=click.Path(path_type=Path), help="The model's config.json (for --run).")
@click.option("--weights", help="Data type of quantised weights: fp8, int8, int4.")
@click.option("--kv-cache", help="Data type of the KV cache.")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(1, 1024), help="Tensor-parallel size.")
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
    """Estimate how busy SMs, tensor cores and memory were, from the requests that the model served."""
    import json

    from surgeproof.runs.gpu_estimate import estimate_run, estimate_steps_file, estimate_target, fit_estimator
    from surgeproof.strict_json import plain

    if (steps is None) == (not run_ids):
        raise ConfigError("nothing to estimate: give --steps FILE or --run ID")
    if steps is not None:
        rows = estimate_steps_file(steps, gpu_name)
    else:
        target = estimate_target(gpu_name, config, weights, kv_cache, gpus)
        if calibrate:
            fit = fit_estimator(db, run_ids, target)
            click.echo(
                f"Stored for {target.gpu.name}: decode steps do {fit.decode_scale:.2g} times, "
                f"prompts {fit.prefill_scale:.2g} times the work of an ideal engine",
                err=as_json,
            )
        rows = [row for run_id in run_ids for row in estimate_run(db, run_id, target)]
    if as_json:
        click.echo(json.dumps(plain(rows), allow_nan=False))
    else:
        from surgeproof.commands.review_tables import print_estimates

        print_estimates(rows)
