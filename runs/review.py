"""Analyses stored runs: compares them, checks one against its history, decides on one.

Reads from `storage`, judges by `slo`; nothing is sent and nothing is changed.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from surgeproof.audit_results import Audit
from surgeproof.errors import UsageError
from surgeproof.exit_codes import ExitCode
from surgeproof.records import RunState, Verdict
from surgeproof.runs.stored import ended_run, measured_run, same_load
from surgeproof.scenario import Scenario
from surgeproof.slo.baseline import (
    MIN_RUNS,
    WEEKDAY_DAYS,
    BaselineReport,
    choose_history,
    deviations,
    earlier_runs,
    explain,
)
from surgeproof.slo.breaches import DELAYS, client_error_of
from surgeproof.slo.breaker import Breaker, breaker
from surgeproof.slo.compare import Difference, Figure, Policy, compare, figures_of, groups, lost
from surgeproof.slo.decision import Action, Decision, decide
from surgeproof.slo.measured import Measured
from surgeproof.storage.queries import get_run, list_runs
from surgeproof.storage.store import open_engine
from surgeproof.stored_runs import Run

_MAX_HISTORY = 100
_MAX_LISTED = 100_000


class Comparison(NamedTuple):
    """The first run against each of the others: differences, what to know before them, and the exit code."""

    differences: list[list[Difference]]
    notes: list[str]
    exit_code: ExitCode


def compare_runs(db_url: str, run_ids: Sequence[int], policy: Policy) -> Comparison:
    """Compare the first run with each of the others; every run is read once.

    Raises:
        UsageError: a run is missing or has not ended.
    """
    engine = open_engine(db_url, create=False)
    runs = [ended_run(engine, run_id) for run_id in run_ids]
    first, *others = (measured_run(engine, run.id) for run in runs)
    differences = [
        _differences((runs[0], first), (run, other), policy) for run, other in zip(runs[1:], others, strict=True)
    ]
    missing = {run.id: lost(first, other) for run, other in zip(runs[1:], others, strict=True)}
    return Comparison(differences, _comparison_notes(runs, missing), _comparison_exit(runs, differences, missing))


def _differences(before: tuple[Run, Measured], after: tuple[Run, Measured], policy: Policy) -> list[Difference]:
    runs = (before[0], after[0])
    paced = any(_is_paced(run.scenario) for run in runs)
    paired = _plan_digest(runs[0]) == _plan_digest(runs[1]) is not None
    error_ms = sum(_client_error_ms(run) for run in runs)
    return compare(before[1], after[1], policy, paced=paced, paired=paired, error_ms=error_ms)


def _client_error_ms(run: Run) -> float:
    error = client_error_of(run.audit or Audit())
    return error.send_ms + error.read_ms + error.clock_ms


def _can_be_compared(run: Run) -> bool:
    """Whether it ended by itself, and whatever its client did wrong is known in milliseconds."""
    breaches = run.audit.breaches if run.audit else ()
    return run.state is RunState.FINISHED and all(
        breach.effects and DELAYS.issuperset(breach.effects) for breach in breaches
    )


def _comparison_notes(runs: Sequence[Run], missing: dict[int, list[str]]) -> list[str]:
    """What a reader must know before the figures: runs that are not comparable, plans that differ, metrics missing."""
    first, *others = runs
    notes = [
        f"run {run.id} is {run.verdict if run.verdict is Verdict.INVALID else run.state}: "
        "its figures may be limited by the client, or cover only part of the run"
        for run in runs
        if not _can_be_compared(run)
    ]
    notes += [
        f"run {run.id}'s client was late by up to {_client_error_ms(run):.1f} ms, which the bounds allow for"
        for run in runs
        if _can_be_compared(run) and _client_error_ms(run) > 0
    ]
    notes += [
        f"runs {first.id} and {run.id} sent different requests: their plans differ"
        for run in others
        if _plan_digest(run) != _plan_digest(first)
    ]
    notes += [
        f"run {run_id} has no {', '.join(metrics)}: too few requests were answered or streamed to compare them"
        for run_id, metrics in missing.items()
        if metrics
    ]
    notes += [
        f"runs {first.id} and {run.id} sent the same plan: differences are paired by request"
        for run in others
        if _plan_digest(run) == _plan_digest(first) is not None
    ]
    return notes


def _is_paced(scenario: Scenario) -> bool:
    """Whether the plan sets the rate: an open loop that does not send everything at once."""
    return not scenario.closed_loop and not math.isinf(scenario.load.request_rate or 0.0)


def _plan_digest(run: Run) -> str | None:
    return run.plan.digest if run.plan else None


def _comparison_exit(
    runs: Iterable[Run], differences: Sequence[Sequence[Difference]], missing: dict[int, list[str]]
) -> ExitCode:
    """Precedence: runs that are not comparable, then alarms, then unclear figures."""
    each = [difference for pair in differences for difference in pair]
    if not all(_can_be_compared(run) for run in runs):
        return ExitCode.INVALID
    if any(difference.alarm for difference in each):
        return ExitCode.FAIL
    unclear = any(difference.unclear for difference in each) or any(missing.values())
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.PASS


def baseline_report(db_url: str, run_id: int, days: float) -> BaselineReport:
    """A run against earlier runs of its name, model and load.

    Raises:
        UsageError: the run is missing or not comparable, or there are too few others.
    """
    engine = open_engine(db_url, create=False)
    run = ended_run(engine, run_id)
    if not run.comparable:
        raise UsageError(f"run {run_id} is {run.verdict or run.state}: it has no valid measurement of the endpoint")
    heads = earlier_runs(run, list_runs(engine, _MAX_LISTED), max(days, WEEKDAY_DAYS))
    comparable = [
        earlier for head in heads if same_load(earlier := get_run(engine, head.id), run) and earlier.comparable
    ]
    history, slot = choose_history(run, comparable, days)
    history = history[:_MAX_HISTORY]
    if len(history) < MIN_RUNS:
        raise UsageError(
            f"run {run_id} has {len(history)} finished runs named {run.name!r} of its model and load "
            f"in the {days:g} days before it; three are needed for a baseline"
        )
    measured = measured_run(engine, run_id)
    names = groups(measured)
    result = deviations(
        _figures(measured, names), [_figures(measured_run(engine, earlier.id), names) for earlier in history]
    )
    tags = explain(result, run.metadata, [earlier.metadata for earlier in history])
    return BaselineReport(tuple(earlier.id for earlier in history), slot, tuple(result), tuple(tags))


def decision_of(db_url: str, run_id: int, baseline_id: int | None, policy: Policy) -> Decision:
    """Apply the decision table to a stored run, against a baseline run if one is given.

    Raises:
        UsageError: a run is missing or has not ended, or the baseline measured nothing to compare with.
    """
    engine = open_engine(db_url, create=False)
    run = ended_run(engine, run_id)
    if run.state is not RunState.FINISHED:
        return Decision(Action.HOLD, f"the run is {run.state}: it cannot support a promotion")
    measured = measured_run(engine, run_id)
    if baseline_id is None:
        return decide(measured, run.verdict)
    baseline, before = ended_run(engine, baseline_id), measured_run(engine, baseline_id)
    if not _can_be_compared(baseline) or not before.judged.any():
        raise UsageError(
            f"run {baseline_id} cannot be a baseline: it is {baseline.verdict or baseline.state}, or "
            "its client's audit was breached"
        )
    if not _can_be_compared(run):
        return Decision(Action.HOLD, "the client's audit was breached, so the run cannot be compared with the baseline")
    success = float(before.ok[before.judged].mean())
    differences = _differences((baseline, before), (run, measured), policy)
    return decide(measured, run.verdict, success, differences, lost(before, measured))


def breaker_of(db_url: str, run_id: int, p99_bound_ms: float) -> Breaker:
    """A circuit breaker's score over a stored run."""
    engine = open_engine(db_url, create=False)
    agents = ended_run(engine, run_id).environment.gpu_agents
    facts = [gpu for agent in agents for gpu in agent.gpus] if agents is not UNSET else []
    sizes = [gpu.memory_bytes for gpu in facts if gpu.memory_bytes]
    return breaker(measured_run(engine, run_id), p99_bound_ms, sum(sizes) / len(sizes) if sizes else None)


def _figures(measured: Measured, names: Sequence[str]) -> dict[str, dict[str, Figure]]:
    return {name: figures_of(measured, name) for name in names}
