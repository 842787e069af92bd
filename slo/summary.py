"""What a run measured, class by class: counts, latencies, rates. Pure.

Latency figures are of answered requests; the counts beside them say how many were not. Failed
requests stay in every share.
"""

from collections import Counter

import numpy as np
from msgspec.structs import replace

from surgeproof.columns import TextColumn
from surgeproof.outcomes import Outcome
from surgeproof.records import REQUEST_CLASSES
from surgeproof.results import ClassSummary, Distribution, Stalls, Summary
from surgeproof.slo.intervals import quantile_rank
from surgeproof.slo.measured import Floats, Mask, Measured
from surgeproof.slo.rules import REQUEST_LATENCIES, Condition
from surgeproof.slo.stalls import stalls_s

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def summarise(measured: Measured, goodput: dict[str, float] | None = None) -> Summary:
    """Summarise the main phase of a run: all requests, every class that occurs, every step of a ladder.

    Args:
        measured: the run's records.
        goodput: bounds in ms that a request must all meet to count, by latency.
    """
    names = ["all", *(name for name in REQUEST_CLASSES if measured.of_class(name).any())]
    return Summary(
        records=measured.count,
        warmup=int((~measured.main).sum()),
        classes={
            name: replace(
                _class_summary(measured, measured.main & measured.of_class(name), goodput or {}),
                inter_chunk_ms=measured.gaps.distribution_ms(name, QUANTILES),
            )
            for name in names
        },
        steps=_steps(measured, goodput or {}),
        closed_loop=measured.closed_loop,
        stalls=_stalls(measured),
    )


def _stalls(measured: Measured) -> Stalls | None:
    lengths = stalls_s(measured)
    return Stalls(len(lengths), round(float(lengths.max()), 3)) if len(lengths) else None


def _steps(measured: Measured, goodput: dict[str, float]) -> dict[str, ClassSummary]:
    """The same by step of a ladder; empty where there was none."""
    steps = measured.numbers["step"]
    numbers = [int(step) for step in np.unique(steps) if step > 0]
    return {str(step): _class_summary(measured, measured.main & (steps == step), goodput) for step in numbers}


def _class_summary(measured: Measured, mask: Mask, goodput: dict[str, float]) -> ClassSummary:
    sent, ok = mask & measured.sent, mask & measured.ok
    outcome = measured.texts["outcome"][mask]
    start, end = measured.window_s(sent)
    duration = end - start
    output = measured.numbers["output_tokens"][ok]
    inputs = measured.numbers["input_tokens"][ok]
    figures = ClassSummary(
        requests=int(mask.sum()),
        sent=int(sent.sum()),
        ok=int(ok.sum()),
        failed=int((sent & ~measured.ok).sum()),
        shed=int((sent & measured.shed).sum()),
        cancelled=int((outcome == Outcome.CANCELLED).sum()),
        not_sent=int((outcome == Outcome.NOT_SENT).sum()),
        success_ratio=_ratio(ok.sum(), sent.sum()),
        outcomes=dict(sorted((str(name), count) for name, count in outcome.counts().items())),
        finish_reasons={str(name): count for name, count in measured.texts["finish_reason"][ok].counts().items()},
        warnings=_warnings(measured.texts["warnings"][mask]),
        duration_s=duration,
        requests_per_s=_ratio(ok.sum(), duration),
        input_tokens=_total(inputs),
        output_tokens=_total(output),
        input_tokens_per_s=_ratio(_total(inputs), duration),
        output_tokens_per_s=_ratio(_total(output), duration),
        unknown_output_tokens=int(np.isnan(output).sum()),
        latency_ms={name: distribution(measured.latency_ms(name)[ok]) for name in REQUEST_LATENCIES},
        service_latency_ms={name: distribution(measured.latency_ms(name, "service")[ok]) for name in ("ttft", "e2e")},
    )
    return _with_goodput(figures, measured, mask, goodput) if goodput else figures


def _with_goodput(figures: ClassSummary, measured: Measured, mask: Mask, goodput: dict[str, float]) -> ClassSummary:
    """The same with how many requests met all bounds."""
    sent, ok = mask & measured.sent, mask & measured.ok
    good, evaluable = meets(measured, [Condition(name, "<=", bound) for name, bound in goodput.items()])
    rate = _ratio((good & ok).sum(), figures.duration_s) if (sent & evaluable).any() else None
    return replace(
        figures,
        goodput_per_s=rate,
        attainment=_ratio((good & ok).sum(), (sent & evaluable).sum()),
        not_evaluable=int((sent & ~evaluable).sum()),
    )


def _warnings(column: TextColumn) -> dict[str, int]:
    """How many records have each warning."""
    counts: Counter[str] = Counter()
    for names, count in column.counts().items():
        for name in (names or "").split(","):
            counts[name] += count if name else 0
    return {name: count for name, count in counts.items() if name}


def meets(measured: Measured, conditions: list[Condition]) -> tuple[Mask, Mask]:
    """Which requests meet all conditions, and for which that is known.

    A failed request meets none, and one condition that is missed is enough. For an answered request
    without a value (one token has no time per token, a reply that was not streamed has no first token)
    it is unknown, unless another condition decides; beside others, one token has no time per token to miss.
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


def distribution(values: Floats) -> Distribution:
    """Quantiles, mean and extremes of the known values, with their number."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return Distribution(0, min=None, max=None)
    # Only these order statistics are needed: putting them in their places is faster than sorting.
    ranks = [quantile_rank(len(known), q) - 1 for q in QUANTILES]
    placed = np.partition(known, ranks)
    quantiles = {q: float(placed[rank]) for q, rank in zip(QUANTILES, ranks, strict=True)}
    return Distribution.of_quantiles(
        len(known), float(known.mean()), quantiles, (float(known.min()), float(known.max()))
    )


def _ratio(above: float | None, below: float) -> float | None:
    return float(above) / float(below) if below and above is not None else None


def _total(values: Floats) -> int | None:
    return int(np.nansum(values)) if len(values) and not np.isnan(values).all() else None
