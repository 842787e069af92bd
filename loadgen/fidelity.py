"""Did the load that left equal the load that was planned? A table for people, after a run. Pure.

The audit decides whether a run counts; this says in numbers how close it came, also where the server
has its part in it: tokens it counted, prefixes it had cached.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.loadgen.audit import send_lag_ms
from surgeproof.loadgen.plan import Plan

COLUMNS = (
    "plan_index", "outcome", "intended_at_ns", "sent_at_ns", "connect_at_ns", "connected_at_ns", "done_at_ns",
    "input_tokens", "output_tokens", "cached_tokens", "planned_input_tokens", "planned_output_tokens",
)  # fmt: skip
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


def dispatch_lines(plan: Plan, columns: Mapping[str, Any], tightest_ms: float | None) -> list[Line]:
    """Compare an open loop's records with its plan.

    Args:
        plan: the whole plan.
        columns: the record columns `COLUMNS`, in any one order; None where missing.
        tightest_ms: the smallest latency objective, ms.
    """
    sent = np.array([at is not None for at in columns["sent_at_ns"]], dtype=bool)
    lines = [Line("requests", len(plan), int(sent.sum()), "all", bool(sent.sum() == len(plan)))]
    if not sent.any():
        return lines
    lines += _lag(columns, tightest_ms)
    lines += _times(columns, sent)
    lines += _tokens(plan, columns)
    lines += _turns(plan, columns)
    return lines


def _lag(columns: Mapping[str, Any], tightest_ms: float | None) -> list[Line]:
    lag = send_lag_ms(columns)
    limit = max(_LAG_MS, 0.02 * (tightest_ms or 0.0))
    p50, p99 = (float(np.quantile(lag, q, method="inverted_cdf")) for q in (0.5, 0.99))
    return [
        Line("send lag p50, ms", 0.0, p50),
        Line("send lag p99, ms", 0.0, p99, f"<= {limit:g}", p99 <= limit),
        Line("send lag max, ms", 0.0, float(lag.max())),
    ]


def _times(columns: Mapping[str, Any], sent: npt.NDArray[np.bool_]) -> list[Line]:
    planned = np.sort(np.array(columns["intended_at_ns"], dtype=np.int64)[sent])
    left = np.sort(np.array([at for at in columns["sent_at_ns"] if at is not None], dtype=np.int64))
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


def _tokens(plan: Plan, columns: Mapping[str, Any]) -> list[Line]:
    """Of answered requests whose server told: planned against counted."""
    ok = np.array([outcome == "ok" for outcome in columns["outcome"]], dtype=bool)
    lines = []
    for name, key, bound in (("prompt", "input_tokens", 0.02), ("output", "output_tokens", None)):
        counted = _floats(columns[key])
        told = ok & ~np.isnan(counted)
        if told.any():
            planned = float(np.sum(_floats(columns[f"planned_{key}"])[told]))
            achieved = float(counted[told].sum())
            if bound is None:
                lines.append(Line(f"{name} tokens", planned, achieved))
            else:
                close = abs(achieved / planned - 1) <= bound
                lines.append(Line(f"{name} tokens", planned, achieved, f"within {bound:.0%}", close))
    hits = _floats(columns["cached_tokens"])
    told = ok & ~np.isnan(hits)
    if told.any() and plan.blocks is not None:
        indexes = np.array(columns["plan_index"], dtype=np.int64)[told]
        inputs = _floats(columns["planned_input_tokens"])[told].sum()
        planned = float(plan.rows["cached_tokens"][indexes].sum() / inputs)
        lines.append(Line("cached share of prompt tokens", planned, float(hits[told].sum() / inputs)))
    return lines


def _turns(plan: Plan, columns: Mapping[str, Any]) -> list[Line]:
    """How many turns left before their session's answer before had ended, which no user can do."""
    if not (plan.rows["turn"] > 0).any():
        return []
    ends: dict[tuple[int, int], int | None] = {}
    rows = plan.rows[np.array(columns["plan_index"], dtype=np.int64)]
    for row, done_at in zip(rows, columns["done_at_ns"], strict=True):
        ends[int(row["session"]), int(row["turn"])] = done_at
    later = overtakes = 0
    for row, sent_at in zip(rows, columns["sent_at_ns"], strict=True):
        if row["turn"] > 0 and sent_at is not None:
            later += 1
            before = ends.get((int(row["session"]), int(row["turn"]) - 1))
            overtakes += before is not None and sent_at < before
    return [Line("turns that overtook their answer", 0, overtakes), Line("later turns of sessions", None, later)]


def _floats(values: Any) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
