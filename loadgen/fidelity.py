"""Did the load that left equal the load that was planned? A table for people, after a run. Pure.

The audit decides whether a run counts; this says in numbers how close it came, also where the server
has its part in it: tokens it counted, prefixes it had cached.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.columns import MISSING, RecordColumns
from surgeproof.loadgen.audit import send_lag_ms
from surgeproof.loadgen.plan import Plan

_LAG_MS = 5.0


class Line(msgspec.Struct, frozen=True):
    """One comparison.

    Attributes:
        name: what is compared, with its unit.
        planned: by the plan; None where it plans none.
        achieved: as it came out; None where nobody tells.
        bound: what should hold, in words; None where nothing must.
        passed: whether it does.
    """

    name: str
    planned: float | None
    achieved: float | None
    bound: str | None = None
    passed: bool | None = None


def dispatch_lines(plan: Plan, columns: RecordColumns, tightest_ms: float | None) -> list[Line]:
    """Compare an open loop's records with its plan.

    Args:
        plan: the whole plan.
        columns: the run's records.
        tightest_ms: the smallest latency objective, ms.
    """
    sent = columns.has("sent_at_ns")
    lines = [Line("requests", len(plan), int(sent.sum()), "all", bool(sent.sum() == len(plan)))]
    if not sent.any():
        return lines
    lines += _lag(columns, tightest_ms)
    lines += _times(columns, sent)
    lines += _tokens(plan, columns)
    lines += _turns(plan, columns)
    return lines


def _lag(columns: RecordColumns, tightest_ms: float | None) -> list[Line]:
    lag = send_lag_ms(columns)
    limit = max(_LAG_MS, 0.02 * (tightest_ms or 0.0))
    p50, p99 = (float(np.quantile(lag, q, method="inverted_cdf")) for q in (0.5, 0.99))
    return [
        Line("send lag p50, ms", 0.0, p50),
        Line("send lag p99, ms", 0.0, p99, f"<= {limit:g}", p99 <= limit),
        Line("send lag max, ms", 0.0, float(lag.max())),
    ]


def _times(columns: RecordColumns, sent: npt.NDArray[np.bool_]) -> list[Line]:
    planned, left = (np.sort(columns.integers(name)[sent]) for name in ("intended_at_ns", "sent_at_ns"))
    lines = []
    spans = [float(times[-1] - times[0]) / 1e9 for times in (planned, left)]
    if min(spans) > 0:
        planned_rate, rate = ((len(left) - 1) / span for span in spans)
        lines.append(Line("requests/s", planned_rate, rate, "within 1 %", abs(rate / planned_rate - 1) <= 0.01))
    for window_s in (1, 10):
        found = [_dispersion(times - planned[0], window_s) for times in (planned, left)]
        if found[0] and found[1] is not None:
            close = abs(found[1] - found[0]) <= 0.05 * max(found[0], 1.0)
            lines.append(Line(f"dispersion {window_s} s", found[0], found[1], "within 5 %", close))
    return lines


def _dispersion(at_ns: npt.NDArray[np.int64], window_s: int) -> float | None:
    windows = int(at_ns[-1] // (window_s * 10**9))
    if windows < 10:
        return None
    counts = np.bincount(at_ns // (window_s * 10**9), minlength=windows)[:windows]
    return float(counts.var(ddof=1) / counts.mean())


def _tokens(plan: Plan, columns: RecordColumns) -> list[Line]:
    """Of answered requests whose server told: planned against counted."""
    ok = columns.texts("outcome") == "ok"
    lines = []
    for name, key, bound in (("prompt", "input_tokens", 0.02), ("output", "output_tokens", None)):
        told = ok & columns.has(key)
        if told.any():
            planned, achieved = (float(columns.integers(of)[told].sum()) for of in (f"planned_{key}", key))
            if bound is None:
                lines.append(Line(f"{name} tokens", planned, achieved))
            else:
                close = abs(achieved / planned - 1) <= bound
                lines.append(Line(f"{name} tokens", planned, achieved, f"within {bound:.0%}", close))
    told = ok & columns.has("cached_tokens")
    if told.any() and plan.blocks is not None:
        inputs = columns.integers("planned_input_tokens")[told].sum()
        planned = float(plan.rows["cached_tokens"][columns.integers("plan_index")[told]].sum() / inputs)
        achieved = float(columns.integers("cached_tokens")[told].sum() / inputs)
        lines.append(Line("cached share of prompt tokens", planned, achieved))
    return lines


def _turns(plan: Plan, columns: RecordColumns) -> list[Line]:
    """How many turns left before their session's answer before had ended, which no user can do."""
    rows = plan.rows[columns.integers("plan_index")]
    later = (rows["turn"] > 0) & columns.has("sent_at_ns")
    if not later.any():
        return []
    # Turns of one session lie together and in order; the row above a later turn is the turn before it.
    order = np.lexsort((rows["turn"], rows["session"]))
    sent, done = columns.integers("sent_at_ns")[order], columns.integers("done_at_ns")[order]
    overtakes = later[order][1:] & (done[:-1] != MISSING) & (sent[1:] < done[:-1])
    return [
        Line("turns that overtook their answer", 0, int(overtakes.sum())),
        Line("later turns of sessions", None, int(later.sum())),
    ]
