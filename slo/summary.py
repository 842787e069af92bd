"""What a run measured, class by class: counts, latencies, rates. Pure; plain data out.

Latency figures are of answered requests; the counts beside them say how many were not. Failed
requests stay in every share.
"""

from collections import Counter
from typing import Any

import numpy as np

from surgeproof.columns import TextColumn
from surgeproof.records import REQUEST_CLASSES
from surgeproof.slo.intervals import quantile_rank
from surgeproof.slo.measured import Floats, Mask, Measured
from surgeproof.slo.rules import REQUEST_LATENCIES, Condition

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def summarise(measured: Measured, goodput: dict[str, float] | None = None) -> dict[str, Any]:
    """Summarise the main phase of a run.

    Args:
        measured: the run's records.
        goodput: bounds in ms that a request must all meet to count, by latency.

    Returns:
        Counts, and under `classes` the figures of `all` and of every class that occurs.
    """
    names = ["all", *(name for name in REQUEST_CLASSES if measured.of_class(name).any())]
    return {
        "records": measured.count,
        "warmup": int((~measured.main).sum()),
        "classes": {
            name: _class_summary(measured, measured.main & measured.of_class(name), goodput or {})
            | {"inter_chunk_ms": measured.gaps.distribution_ms(name, QUANTILES)}
            for name in names
        },
        "steps": _steps(measured, goodput or {}),
    }


def _steps(measured: Measured, goodput: dict[str, float]) -> dict[str, Any]:
    """The same by step of a ladder; empty where there was none."""
    steps = measured.numbers["step"]
    found = [int(step) for step in np.unique(steps) if step > 0]
    return {str(step): _class_summary(measured, measured.main & (steps == step), goodput) for step in found}


def _class_summary(measured: Measured, mask: Mask, goodput: dict[str, float]) -> dict[str, Any]:
    sent, ok = mask & measured.sent, mask & measured.ok
    outcome = measured.texts["outcome"][mask]
    start, end = measured.window_s(sent)
    duration = end - start
    output = measured.numbers["output_tokens"][ok]
    inputs = measured.numbers["input_tokens"][ok]
    figures: dict[str, Any] = {
        "requests": int(mask.sum()),
        "sent": int(sent.sum()),
        "ok": int(ok.sum()),
        "failed": int((sent & ~measured.ok).sum()),
        "shed": int((sent & measured.shed).sum()),
        "cancelled": int((outcome == "cancelled").sum()),
        "not_sent": int((outcome == "not_sent").sum()),
        "success_ratio": _ratio(ok.sum(), sent.sum()),
        "outcomes": {
            str(name): count for name, count in sorted(outcome.counts().items(), key=lambda item: str(item[0]))
        },
        "finish_reasons": {str(name): count for name, count in measured.texts["finish_reason"][ok].counts().items()},
        "warnings": _warnings(measured.texts["warnings"][mask]),
        "duration_s": duration,
        "requests_per_s": _ratio(ok.sum(), duration),
        "input_tokens": _total(inputs),
        "output_tokens": _total(output),
        "input_tokens_per_s": _ratio(_total(inputs), duration),
        "output_tokens_per_s": _ratio(_total(output), duration),
        "unknown_output_tokens": int(np.isnan(output).sum()),
        "latency_ms": {name: distribution(measured.latency_ms(name)[ok]) for name in REQUEST_LATENCIES},
        "service_latency_ms": {
            name: distribution(measured.latency_ms(name, "service")[ok]) for name in ("ttft", "e2e")
        },
    }
    if goodput:
        good, told = meets(measured, [Condition(name, "<=", bound) for name, bound in goodput.items()])
        evaluable = bool((sent & told).any())
        figures["goodput_per_s"] = _ratio((good & ok).sum(), duration) if evaluable else None
        figures["attainment"] = _ratio((good & ok).sum(), (sent & told).sum())
        figures["not_evaluable"] = int((sent & ~told).sum())
    return figures


def _counts(column: TextColumn) -> dict[str, int]:
    """How often each text occurs, in order of the alphabet."""
    return dict(sorted((str(name), count) for name, count in column.counts().items()))


def _warnings(column: TextColumn) -> dict[str, int]:
    """How many records each warning stands on."""
    found: Counter[str] = Counter()
    for names, count in column.counts().items():
        for name in (names or "").split(","):
            found[name] += count if name else 0
    return {name: count for name, count in found.items() if name}


def meets(measured: Measured, conditions: list[Condition]) -> tuple[Mask, Mask]:
    """Which requests meet all conditions, and for which that can be told.

    A failed request meets none, and one condition that is missed is enough. An answered request without
    a figure (one token has no time per token, a reply that was not streamed has no first token) cannot
    be told, unless another condition tells; beside others, one token has no time per token to miss.
    """
    met, missed = measured.ok.copy(), ~measured.ok
    for condition in conditions:
        values = measured.latency_ms(condition.metric, condition.view)
        with np.errstate(invalid="ignore"):
            good = values <= condition.bound if condition.comparison == "<=" else values < condition.bound
        missed |= ~good & ~np.isnan(values)
        if condition.metric == "tpot" and len(conditions) > 1:
            good |= measured.numbers["output_tokens"] <= 1
        met &= good
    return met & ~missed, met | missed


def distribution(values: Floats) -> dict[str, float | int | None]:
    """Quantiles, mean and extremes of the known values, with their number."""
    known = values[~np.isnan(values)]
    names = [f"p{q * 100:g}" for q in QUANTILES]
    figures: dict[str, float | int | None] = {"n": len(known)} | dict.fromkeys(("mean", "min", "max", *names))
    if len(known):
        figures |= {"mean": float(known.mean()), "min": float(known.min()), "max": float(known.max())}
        # Only these order statistics are needed: putting them in their places is faster than sorting.
        ranks = [quantile_rank(len(known), q) - 1 for q in QUANTILES]
        placed = np.partition(known, ranks)
        figures |= {name: float(placed[rank]) for name, rank in zip(names, ranks, strict=True)}
    return figures


def _ratio(above: Any, below: Any) -> float | None:
    return float(above) / float(below) if below and above is not None else None


def _total(values: Floats) -> int | None:
    return int(np.nansum(values)) if len(values) and not np.isnan(values).all() else None
