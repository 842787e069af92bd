"""Conversations and tasks as a whole: one record for each, made of those of its requests. Pure.

A task begins when its first request was planned, and ends with its last answer. It is done if every request of it was
answered, or was stopped by its user as planned; with one that failed, or was skipped since another failed, it failed.
"""

import numpy as np
import numpy.typing as npt

from surgeproof.columns import MISSING, RecordColumns
from surgeproof.outcomes import Outcome
from surgeproof.results import TaskSummary, TurnSummary
from surgeproof.slo.distributions import distribution
from surgeproof.slo.measured import Mask, Measured

Ints = npt.NDArray[np.int64]

FAILED = "error:task"
"""Outcome of a task of which a request failed."""
_MAX_TURNS = 8
"""Turns that are shown one by one; later ones are shown together."""


def of_tasks(measured: Measured) -> Measured:
    """The tasks of a run as records, with the classes, phases and steps of their first requests."""
    columns = measured.columns
    task = columns.integers("task")
    part = np.flatnonzero(task != MISSING)
    # Tasks of several runs laid end to end have the same numbers.
    keys = measured.run_numbers()[part] * (int(task[part].max(initial=0)) + 1) + task[part]
    order = part[np.lexsort((columns.integers("intended_at_ns")[part], keys))]
    keys = np.sort(keys)
    starts = np.flatnonzero(np.append(True, np.diff(keys) != 0)) if len(keys) else np.zeros(0, dtype=np.int64)
    firsts = columns.chosen(order[starts])
    integers: dict[str, Ints] = {
        name: firsts.integers(name) for name in ("plan_index", "intended_at_ns", "step", "worker")
    }
    chosen = columns.chosen(order)
    if len(starts):
        sent = np.where(chosen.has("sent_at_ns"), chosen.integers("sent_at_ns"), np.iinfo(np.int64).max)
        first_sent = np.minimum.reduceat(sent, starts)
        integers["sent_at_ns"] = np.where(first_sent == np.iinfo(np.int64).max, MISSING, first_sent)
        integers["done_at_ns"] = np.maximum.reduceat(chosen.integers("done_at_ns"), starts)
        for name in ("planned_input_tokens", "planned_output_tokens"):
            integers[name] = np.add.reduceat(chosen.integers(name), starts)
    texts = {name: firsts.texts(name).values().tolist() for name in ("request_class", "phase", "model")}
    texts["outcome"] = _outcomes(chosen, starts)
    known = {name: _with_none(values) for name, values in integers.items()}
    made = Measured(
        RecordColumns.of(known | texts),
        closed_loop=measured.closed_loop,
        runs=measured.run_numbers()[order][starts] if measured.run_count > 1 else None,
        own_lag_ms=np.add.reduceat(measured.own_lag_ms()[order], starts) if len(starts) else np.zeros(0),
    )
    longest = int(np.diff(np.append(starts, len(order))).max(initial=1))
    return made.with_client_error(measured.client_error.times(longest))


def _with_none(values: Ints) -> list[int | None]:
    return [None if value == MISSING else value for value in values.tolist()]


def _outcomes(chosen: RecordColumns, starts: Ints) -> list[str]:
    """How each task ended, by the worst that happened to a request of it."""
    outcome = chosen.texts("outcome")
    good = (outcome == Outcome.OK) | (outcome == Outcome.STOPPED)
    cancelled, unsent = outcome == Outcome.CANCELLED, outcome == Outcome.NOT_SENT
    failed = ~(good | cancelled | unsent)
    results = []
    ends = np.append(starts[1:], len(good))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        of_task = slice(start, end)
        if failed[of_task].any():
            # A run that is interrupted skips what is left of its tasks, and that is no failure.
            only_skipped = (outcome[of_task] == Outcome.SKIPPED)[failed[of_task]].all()
            results.append(str(Outcome.CANCELLED) if only_skipped and cancelled[of_task].any() else FAILED)
        elif cancelled[of_task].any():
            results.append(str(Outcome.CANCELLED))
        else:
            results.append(str(Outcome.NOT_SENT if unsent[of_task].any() else Outcome.OK))
    return results


def summarise_tasks(measured: Measured) -> TaskSummary | None:
    """Figures of a run's tasks; None without any."""
    if not measured.columns.has("task").any():
        return None
    tasks = of_tasks(measured)
    judged, done = tasks.judged, tasks.judged & tasks.ok
    start_s, end_s = tasks.span_s(judged)
    return TaskSummary(
        tasks=int(tasks.main.sum()),
        done=int(done.sum()),
        failed=int((judged & ~tasks.ok).sum()),
        requests=int((measured.columns.has("task") & measured.main).sum()),
        skipped=int(((measured.texts["outcome"] == Outcome.SKIPPED) & measured.main).sum()),
        stopped=int(((measured.texts["outcome"] == Outcome.STOPPED) & measured.main).sum()),
        duration_ms=distribution(tasks.latency_ms("task")[done]),
        per_hour=float(done.sum()) / (end_s - start_s) * 3600 if end_s > start_s else None,
        turns=_turns(measured),
    )


def _turns(measured: Measured) -> tuple[TurnSummary, ...]:
    """First tokens and cached prompt tokens by the depth of the turn."""
    turn = measured.numbers["turn"]
    deepest = int(np.nanmax(turn)) if not np.isnan(turn).all() else -1
    groups: list[tuple[str, Mask]] = [(str(number), turn == number) for number in range(min(deepest + 1, _MAX_TURNS))]
    if deepest >= _MAX_TURNS:
        groups.append((f"{_MAX_TURNS}+", turn >= _MAX_TURNS))
    return tuple(_turn(measured, name, measured.main & measured.ok & mask) for name, mask in groups)


def _turn(measured: Measured, name: str, answered: Mask) -> TurnSummary:
    inputs, cached, planned = (
        measured.numbers[key][answered] for key in ("input_tokens", "cached_tokens", "planned_cached_tokens")
    )
    known = ~np.isnan(inputs) & ~np.isnan(planned)
    counted = known & ~np.isnan(cached)
    return TurnSummary(
        turn=name,
        requests=int(answered.sum()),
        ttft_ms=distribution(measured.latency_ms("ttft")[answered]),
        input_tokens=float(inputs[known].mean()) if known.any() else None,
        planned_cached_share=_share(planned[known], inputs[known]),
        cached_share=_share(cached[counted], inputs[counted]),
    )


def _share(part: npt.NDArray[np.float64], of: npt.NDArray[np.float64]) -> float | None:
    return float(part.sum() / of.sum()) if len(of) and of.sum() else None
