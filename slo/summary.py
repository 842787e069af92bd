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
from surgeproof.results import ClassSummary, Interval, LoadFigures, PromptTokens, Stalls, Summary
from surgeproof.slo.correlation import correlation_of
from surgeproof.slo.distributions import QUANTILES, distribution
from surgeproof.slo.intervals import share_interval
from surgeproof.slo.measured import Floats, Mask, Measured
from surgeproof.slo.rates import LoadWindow, arrived, begun_per_s, counted, in_flight, load_windows, wording
from surgeproof.slo.rules import REQUEST_LATENCIES, Condition, Selector
from surgeproof.slo.stalls import stalls_s
from surgeproof.slo.tasks import summarise_tasks


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
                _class_summary(measured, name, measured.main & measured.of_class(name), goodput or {}),
                inter_chunk_ms=measured.gaps.distribution_ms(name, QUANTILES),
            )
            for name in names
        },
        steps=_steps(measured, goodput or {}),
        closed_loop=measured.closed_loop,
        stalls=_stalls(measured),
        tasks=summarise_tasks(measured),
    )


def _stalls(measured: Measured) -> Stalls | None:
    lengths = stalls_s(measured)
    return Stalls(len(lengths), round(float(lengths.max()), 3)) if len(lengths) else None


def _steps(measured: Measured, goodput: dict[str, float]) -> dict[str, ClassSummary]:
    """The same by step of a ladder; empty where there was none."""
    steps = measured.numbers["step"]
    return {
        str(step): _class_summary(
            measured, "all", measured.main & (steps == step), goodput, (Selector("step", value=step),)
        )
        for step in measured.steps()
    }


def _class_summary(
    measured: Measured, name: str, mask: Mask, goodput: dict[str, float], selectors: tuple[Selector, ...] = ()
) -> ClassSummary:
    sent, ok = mask & measured.sent, mask & measured.ok
    outcome = measured.texts["outcome"][mask]
    start, end = measured.span_s(sent)
    output = measured.numbers["output_tokens"][ok]
    inputs, items = (measured.numbers[name][ok] for name in ("input_tokens", "items"))
    windows = load_windows(measured, selectors)
    rates, bounds = _rates(measured, name, windows) if windows else ({}, {})
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
        duration_s=end - start,
        requests_per_s=rates.get("requests"),
        input_tokens=_total(inputs),
        output_tokens=_total(output),
        input_tokens_per_s=rates.get("input_tokens") if _total(inputs) is not None else None,
        output_tokens_per_s=rates.get("output_tokens") if _total(output) is not None else None,
        unknown_output_tokens=int((np.isnan(output) & np.isnan(items)).sum()),
        items=_total(items),
        items_per_s=rates.get("items") if _total(items) is not None else None,
        latency_ms={name: distribution(measured.latency_ms(name)[ok]) for name in REQUEST_LATENCIES},
        service_latency_ms={
            name: distribution(measured.latency_ms(name, "service")[ok]) for name in ("ttft", "last_token", "e2e")
        },
        load=_load(measured, name, windows) if windows else None,
        bounds=bounds | {"success_ratio": _share_bounds(measured, measured.ok, sent)},
        client_error_ms={name: _client_error_ms(measured, name, ok) for name in ("ttft", "e2e")},
        output_length_share=_length_share(output, measured.numbers["planned_output_tokens"][ok]),
        prompt_tokens=_prompt_tokens(measured, ok),
    )
    return _with_goodput(figures, measured, name, mask, goodput, windows) if goodput else figures


def _prompt_tokens(measured: Measured, ok: Mask) -> PromptTokens | None:
    """Prompt tokens of an answered request on average; None where the server counted none."""
    counted, planned = (measured.numbers[name][ok] for name in ("input_tokens", "planned_input_tokens"))
    known = ~np.isnan(counted) & ~np.isnan(planned)
    if not known.any():
        return None
    cached = measured.numbers["cached_tokens"][ok]
    share = float(np.nansum(cached[known]) / counted[known].sum()) if not np.isnan(cached[known]).all() else None
    return PromptTokens(float(planned[known].mean()), float(counted[known].mean()), share)


def _length_share(output: Floats, planned: Floats) -> float | None:
    """Output tokens as a share of those planned, over answers whose tokens were counted."""
    known = ~np.isnan(output) & ~np.isnan(planned)
    return _ratio(output[known].sum(), planned[known].sum())


def _client_error_ms(measured: Measured, metric: str, ok: Mask) -> float:
    """By how much the p99 of a latency would be lower without the client's own delay, at most."""
    least, most = (distribution(end[ok]).p99 for end in measured.latency_ends_ms(metric))
    return round(most - least, 6) if least is not None and most is not None else 0.0


def _rates(measured: Measured, name: str, windows: list[LoadWindow]) -> tuple[dict[str, float], dict[str, Interval]]:
    """What arrived a second, of what, and its bounds by the name of the figure."""
    of = counted(measured, name, ())
    counts = ("requests", "input_tokens", "output_tokens", "items")
    found = {what: arrived(measured, what, of, windows) for what in counts}
    return (
        {what: amounts.per_s for what, amounts in found.items()},
        {f"{what}_per_s": amounts.interval for what, amounts in found.items()},
    )


def _load(measured: Measured, name: str, windows: list[LoadWindow]) -> LoadFigures:
    """What was asked of the server over the window of the rates."""
    of = measured.of_class(name)
    return LoadFigures(
        start_s=windows[0].start_s,
        end_s=windows[-1].end_s,
        window=wording(windows),
        planned_per_s=None if measured.closed_loop else begun_per_s(measured, "intended_at_ns", of, windows),
        sent_per_s=begun_per_s(measured, "sent_at_ns", of, windows),
        in_flight=in_flight(measured, of & measured.sent, windows),
    )


def _share_bounds(measured: Measured, hits: Mask, of: Mask) -> Interval:
    """Bounds of the share of some requests that meet a condition."""
    n = int(of.sum())
    if n == 0:
        return Interval(None, None)
    deff = correlation_of(hits[of], measured.times_s["intended_at_ns"][of]).design_effect
    return share_interval(int(hits[of].sum()) / deff, n / deff)


def _with_goodput(
    figures: ClassSummary,
    measured: Measured,
    name: str,
    mask: Mask,
    goodput: dict[str, float],
    windows: list[LoadWindow],
) -> ClassSummary:
    """The same with how many requests met all bounds."""
    sent, ok = mask & measured.sent, mask & measured.ok
    good, evaluable = meets(measured, [Condition(metric, "<=", bound) for metric, bound in goodput.items()])
    known = sent & evaluable
    bounds = figures.bounds | {"attainment": _share_bounds(measured, good & ok, known)}
    rate = (
        arrived(measured, "requests", counted(measured, name, ()) & good, windows) if windows and known.any() else None
    )
    if rate is not None:
        bounds |= {"goodput_per_s": rate.interval}
    return replace(
        figures,
        goodput_per_s=rate.per_s if rate is not None else None,
        attainment=_ratio((good & ok).sum(), known.sum()),
        not_evaluable=int((sent & ~evaluable).sum()),
        bounds=bounds,
    )


def _warnings(column: TextColumn) -> dict[str, int]:
    """How many records have each warning."""
    counts: Counter[str] = Counter()
    for names, count in column.counts().items():
        for name in (names or "").split(","):
            counts[name] += count if name else 0
    return {name: count for name, count in counts.items() if name}


def meets(measured: Measured, conditions: list[Condition], *, least: bool = False) -> tuple[Mask, Mask]:
    """Which requests meet all conditions, and for which that is known.

    Each latency is taken as the most that it can have been, or as the least: what the client's own delay leaves open.

    A failed request meets none, and one condition that is missed is enough. For an answered request
    without a value (one token has no time per token, a reply that was not streamed has no first token)
    it is unknown, unless another condition decides; beside others, one token has no time per token to miss.
    """
    met, missed = measured.ok.copy(), ~measured.ok
    for condition in conditions:
        values = measured.latency_ends_ms(condition.metric, condition.view)[0 if least else 1]
        with np.errstate(invalid="ignore"):
            good = values <= condition.bound if condition.comparison == "<=" else values < condition.bound
        missed |= ~good & ~np.isnan(values)
        if condition.metric == "tpot" and len(conditions) > 1:
            good |= measured.numbers["output_tokens"] <= 1
        met &= good
    return met & ~missed, met | missed


def _ratio(above: float | None, below: float) -> float | None:
    return float(above) / float(below) if below and above is not None else None


def _total(values: Floats) -> int | None:
    return int(np.nansum(values)) if len(values) and not np.isnan(values).all() else None
