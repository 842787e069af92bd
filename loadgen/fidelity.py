"""Did the sent load match the plan? A table for the user, after a run. Pure.

The audit decides whether a run counts; this says in numbers how close it came, including what depends
on the server: tokens it counted, prefixes it had cached.
"""

import numpy as np
import numpy.typing as npt

from surgeproof.columns import MISSING, RecordColumns
from surgeproof.dispersion import dispersion
from surgeproof.loadgen.audit import (
    DISPERSION_TOLERANCE,
    MIN_DISPERSION_WINDOWS,
    RATE_TOLERANCE,
    dispersion_error,
    lag_limit_ms,
)
from surgeproof.loadgen.plan import Plan
from surgeproof.outcomes import Outcome
from surgeproof.results import DispatchLine
from surgeproof.send_lag import own_lag_ms


def dispatch_lines(plan: Plan, columns: RecordColumns, tightest_ms: float | None) -> list[DispatchLine]:
    """Compare an open loop's records with its plan.

    Args:
        plan: the whole plan.
        columns: the run's records.
        tightest_ms: the smallest latency objective, ms.
    """
    sent = columns.has("sent_at_ns")
    lines = [DispatchLine("requests", len(plan), int(sent.sum()), "all", bool(sent.sum() == len(plan)))]
    if not sent.any():
        return lines
    lines += _lag(columns, tightest_ms)
    lines += _times(columns, sent)
    lines += _tokens(plan, columns)
    lines += _turns(plan, columns)
    return lines


def _lag(columns: RecordColumns, tightest_ms: float | None) -> list[DispatchLine]:
    lag = own_lag_ms(columns, np.zeros(len(columns)))[columns.has("sent_at_ns")]
    limit = lag_limit_ms(tightest_ms)
    p50, p99 = (float(np.quantile(lag, q, method="inverted_cdf")) for q in (0.5, 0.99))
    return [
        DispatchLine("send lag p50, ms", 0.0, p50),
        DispatchLine("send lag p99, ms", 0.0, p99, f"<= {limit:g}", p99 <= limit),
        DispatchLine("send lag max, ms", 0.0, float(lag.max())),
    ]


def _times(columns: RecordColumns, sent: npt.NDArray[np.bool_]) -> list[DispatchLine]:
    planned, left = (np.sort(columns.integers(name)[sent]) for name in ("intended_at_ns", "sent_at_ns"))
    lines = []
    spans = [float(times[-1] - times[0]) / 1e9 for times in (planned, left)]
    if min(spans) > 0:
        planned_rate, rate = ((len(left) - 1) / span for span in spans)
        close = abs(rate / planned_rate - 1) <= RATE_TOLERANCE
        lines.append(DispatchLine("requests/s", planned_rate, rate, f"within {RATE_TOLERANCE * 100:g} %", close))
    for window_s in (1, 10):
        planned_idc, sent_idc = (
            dispersion((times - times[0]) / 1e9, window_s, MIN_DISPERSION_WINDOWS) for times in (planned, left)
        )
        if planned_idc is not None and sent_idc is not None:
            close = dispersion_error(planned_idc, sent_idc) <= DISPERSION_TOLERANCE
            bound = f"within {DISPERSION_TOLERANCE * 100:g} %"
            lines.append(DispatchLine(f"dispersion {window_s} s", planned_idc, sent_idc, bound, close))
    return lines


def _tokens(plan: Plan, columns: RecordColumns) -> list[DispatchLine]:
    """Of answered requests with a token count: planned against counted."""
    ok = columns.texts("outcome") == Outcome.OK
    lines = []
    for name, key, bound in (("prompt", "input_tokens", 0.02), ("output", "output_tokens", None)):
        counted = ok & columns.has(key)
        if counted.any():
            planned, achieved = (float(columns.integers(of)[counted].sum()) for of in (f"planned_{key}", key))
            if bound is None:
                lines.append(DispatchLine(f"{name} tokens", planned, achieved))
            else:
                close = abs(achieved / planned - 1) <= bound
                lines.append(DispatchLine(f"{name} tokens", planned, achieved, f"within {bound:.0%}", close))
    counted = ok & columns.has("cached_tokens")
    if counted.any() and plan.blocks is not None:
        inputs = columns.integers("planned_input_tokens")[counted].sum()
        planned = float(plan.rows["cached_tokens"][columns.integers("plan_index")[counted]].sum() / inputs)
        achieved = float(columns.integers("cached_tokens")[counted].sum() / inputs)
        lines.append(DispatchLine("cached share of prompt tokens", planned, achieved))
    return lines


def _turns(plan: Plan, columns: RecordColumns) -> list[DispatchLine]:
    """How many turns were sent before the previous answer of their session had ended, which no user can do."""
    rows = plan.rows[columns.integers("plan_index")]
    later = (rows["turn"] > 0) & columns.has("sent_at_ns")
    if not later.any():
        return []
    # Turns of one session lie together and in order; the row above a later turn is the turn before it.
    order = np.lexsort((rows["turn"], rows["session"]))
    sent, done = columns.integers("sent_at_ns")[order], columns.integers("done_at_ns")[order]
    overtakes = later[order][1:] & (done[:-1] != MISSING) & (sent[1:] < done[:-1])
    return [
        DispatchLine("turns that overtook their answer", 0, int(overtakes.sum())),
        DispatchLine("later turns of sessions", None, int(later.sum())),
    ]
