"""How each kind of rule is judged on measured columns: percentiles, means, shares, rates, gaps, fluidity, GPUs. Pure.

Which verdicts a stall, a part of a profile or a breach of the client's audit takes back is in `verdict`; when a sample
is enough for PASS or FAIL is in `conclusions`.
"""

import numpy as np

from surgeproof.records import Verdict
from surgeproof.results import Interval, RuleVerdict
from surgeproof.slo.conclusions import (
    decide_share,
    decide_value,
    holds_for_all,
    undecided_by,
    unless_client,
    unless_failed,
)
from surgeproof.slo.correlation import Correlation, correlation_of, correlation_of_latencies
from surgeproof.slo.gaps import Counts, Floats, values_ms
from surgeproof.slo.intervals import (
    quantile,
    quantile_interval,
    scaled,
    share_interval,
    shown_at_least,
)
from surgeproof.slo.means import mean_interval, ratio_interval
from surgeproof.slo.measured import Mask, Measured
from surgeproof.slo.rates import amount_of, arrived, counted, in_flight, load_windows, wording
from surgeproof.slo.rules import (
    GPU_FIELDS,
    GPU_METRICS,
    LATENCIES,
    PER_GPU,
    RATES,
    TASK,
    TASK_RATE,
    Condition,
    Rule,
)
from surgeproof.slo.sample_size import share_needed
from surgeproof.slo.summary import meets
from surgeproof.slo.tasks import of_tasks

_FAR_BELOW = 1 / 3
"""Where the slowest request took at most this share of the bound, clusters under the bound do not count."""
_COVERED = 0.9
"""Share of the twentieths of a run that must hold a sample of a GPU."""


def judge_rule(measured: Measured, name: str, rule: Rule) -> RuleVerdict:
    """Judge one rule of one class, as if the client had been on time."""
    if rule.metric in (TASK, TASK_RATE):
        measured = of_tasks(measured)
    mask = _population(measured, name, rule)
    if rule.metric == "inter_chunk":
        return _judge_gaps(measured, name, rule)
    if rule.metric in GPU_METRICS:
        return _judge_gpu(measured, name, rule)
    if rule.deadlines_ms is not None:
        return _judge_flow(measured, name, rule, mask)
    if rule.metric in RATES:
        return _judge_rate(measured, name, rule, mask)
    if rule.metric not in LATENCIES:
        return _judge_share(measured, name, rule, mask)
    if rule.quantile is not None:
        return _judge_quantile(measured, name, rule, mask)
    return _judge_aggregate(measured, name, rule, mask)


def _population(measured: Measured, name: str, rule: Rule) -> Mask:
    """The requests that a rule is about: those of the main phase, unless it names another."""
    mask = measured.of_class(name) & measured.selected(rule.selectors)
    names_phase = any(selector.column == "phase" for selector in rule.selectors)
    return mask & (measured.sent if names_phase else measured.judged)


def _judge_gpu(measured: Measured, name: str, rule: Rule) -> RuleVerdict:
    """Samples of all GPUs: their mean by its interval, quantiles and extremes as they are."""
    field, unit, scale = GPU_FIELDS[rule.metric]
    windows = load_windows(measured, rule.selectors)
    values, at_s = measured.gpu_values(field)
    if windows:
        inside = np.logical_or.reduce([window.contains(at_s) for window in windows])
        values, at_s = values[inside], at_s[inside]
    unit = unit.upper()
    if len(values) == 0:
        decision = (Verdict.INCONCLUSIVE, f"no GPU agent reported {rule.metric}: pass --gpu-agent")
        return _verdict(name, rule, unit, None, 0, Interval(None, None), decision)
    values = values / scale
    if rule.metric == "gpu_memory_per_request":
        together = in_flight(measured, measured.sent, windows)
        if together <= 0:
            return _without_answers(name, rule)
        values = values * measured.gpu_count() / together
    n, condition = len(values), rule.conditions[0]
    if rule.aggregate == "mean":
        observed, interval = float(values.mean()), mean_interval(values, at_s)
        decision = decide_value(rule, interval)
    elif rule.aggregate:
        observed = float(values.max() if rule.aggregate == "max" else values.min())
        interval = Interval(observed, observed)
        decision = decide_value(rule, interval)
    else:
        assert rule.quantile is not None, "a rule on samples has an aggregate or a quantile"
        ordered = np.sort(values)
        observed = quantile(ordered, rule.quantile)
        # `p95 < 85%` asks that 95 % of the samples lie below, `p5 > 20%` that 95 % lie above.
        share = rule.quantile if condition.upper else 1 - rule.quantile
        good = np.array([condition.met_by(value) for value in values.tolist()])
        correlation = correlation_of_latencies(values if condition.upper else -values, good, at_s, share)
        interval = quantile_interval(ordered, rule.quantile, correlation.design_effect)
        decision = decide_share(int(good.sum()), n, correlation, share, "met the bound", "samples", len(windows))
    covered = min((measured.gpu_coverage(field, one.start_s, one.end_s) for one in windows), default=0.0)
    if decision[0] is Verdict.PASS and covered < _COVERED:
        decision = (Verdict.INCONCLUSIVE, f"samples cover only {covered:.0%} of the run")
    return _verdict(name, rule, unit, observed, n, interval, decision)


def _judge_flow(measured: Measured, name: str, rule: Rule, mask: Mask) -> RuleVerdict:
    """A mean fluidity index, or the share of requests that reach one; failed requests have an index of 0."""
    assert rule.deadlines_ms is not None, "parsed so"
    index = np.where(measured.ok, measured.fluidity(*rule.deadlines_ms), 0.0)
    chosen = mask & ~np.isnan(index)
    n, unknown = int(chosen.sum()), int((mask & np.isnan(index)).sum())
    if n == 0:
        decision = (Verdict.INCONCLUSIVE, "no arrival times were stored for this class")
        return _verdict(name, rule, "%", None, 0, Interval(None, None), decision)
    values, at_s = index[chosen], measured.times_s["intended_at_ns"][chosen]
    condition = rule.conditions[0]
    if rule.quantile is None:
        interval = mean_interval(values, at_s)
        decision = decide_value(rule, interval)
        if unknown:
            decision = undecided_by(unknown, rule.metric, decision)
        return _verdict(name, rule, "%", float(values.mean()), n, interval, decision)
    hits = values > condition.bound if condition.comparison == ">" else values >= condition.bound
    correlation = correlation_of_latencies(-values, hits, at_s, rule.quantile, rule.stall_s)
    deff = correlation.design_effect
    runs = measured.run_count
    decision = decide_share(int(hits.sum()), n, correlation, rule.quantile, "reached that fluidity", runs=runs)
    if unknown and not holds_for_all(decision[0], int(hits.sum()) / deff, n / deff, unknown / deff, rule.quantile):
        decision = undecided_by(unknown, rule.metric, decision)
    attained = float(hits.mean())
    return _verdict(name, rule, "%", attained, n, share_interval(hits.sum() / deff, n / deff), decision, attained)


def _judge_gaps(measured: Measured, name: str, rule: Rule) -> RuleVerdict:
    """A share of gaps under a bound, its error from how blocks of ten seconds differ.

    A failed request misses as many gaps as an answered one has on average.
    """
    by_block = measured.gaps.by_block(name)
    n = int(by_block.sum())
    of_class = measured.judged & measured.of_class(name)
    failed, answered = int((of_class & ~measured.ok).sum()), int((of_class & measured.ok).sum())
    if n == 0:
        why = f"all {failed} requests failed" if failed and not answered else "no gap between arrivals was measured"
        decision = (Verdict.FAIL if failed and not answered else Verdict.INCONCLUSIVE, f"{why} for this class")
        return _verdict(name, rule, "ms", None, 0, Interval(None, None), decision)
    if len(measured.steps()) > 1:
        decision = (Verdict.INCONCLUSIVE, "gaps are not kept by step of a ladder: use max_gap, or a run for each step")
        return _verdict(name, rule, "ms", None, n, Interval(None, None), decision)
    values = values_ms()
    if rule.quantile is None:
        return _judge_gap_value(name, rule, by_block, values, failed)
    good = np.array([rule.conditions[0].met_by(value) for value in values])
    hits, counts = by_block[:, good].sum(axis=1), by_block.sum(axis=1)
    share, kept = rule.quantile, answered / max(1, answered + failed)
    attained = float(hits.sum() / n) * kept
    interval = ratio_interval(hits.astype(np.float64), counts.astype(np.float64))
    if failed:
        deff = correlation_of(measured.ok[of_class], measured.times_s["intended_at_ns"][of_class]).design_effect
        interval = _product(interval, share_interval(answered / deff, (answered + failed) / deff))
    below = np.cumsum(by_block.sum(axis=0))
    rank = max(1.0, np.ceil(share / kept * n - 1e-9))
    observed = float(values[np.searchsorted(below, rank)]) if rank <= n else None
    sentence = f"{attained * 100:.6g} % of {n} gaps met the bound ({share * 100:.6g} % needed)"
    if failed:
        sentence += f", those of {failed} failed requests counted as missed"
    if interval.low is None or interval.high is None:
        decision = (Verdict.INCONCLUSIVE, f"{sentence}; a run under 80 s has too few blocks to judge")
    elif interval.high < share:
        decision = (Verdict.FAIL, sentence)
    elif interval.low < share:
        decision = (Verdict.INCONCLUSIVE, f"{sentence}; the interval includes the bound; run longer")
    elif not shown_at_least(attained * n, n, share):
        # Blocks without a miss do not differ, but few gaps show little all the same.
        decision = decide_share(round(attained * n), n, Correlation(), share, "met the bound", "gaps")
    else:
        decision = (Verdict.PASS, sentence)
    return _verdict(name, rule, "ms", observed, n, Interval(None, None), decision, attained)


def _product(left: Interval, right: Interval) -> Interval:
    """Bounds of the product of two shares."""
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return Interval(None, None)
    return Interval(left.low * right.low, left.high * right.high)


def _judge_gap_value(name: str, rule: Rule, by_block: Counts, values: Floats, failed: int) -> RuleVerdict:
    """Mean of all gaps by its interval; their extremes are taken as observed."""
    sums, counts = by_block @ values, by_block.sum(axis=1).astype(np.float64)
    used = np.flatnonzero(by_block.sum(axis=0))
    if rule.aggregate == "mean":
        observed, interval = float(sums.sum() / counts.sum()), ratio_interval(sums, counts)
    else:
        observed = float(values[used[-1] if rule.aggregate == "max" else used[0]])
        interval = Interval(observed, observed)
    decision = unless_failed(rule, failed, decide_value(rule, interval))
    return _verdict(name, rule, "ms", observed, int(counts.sum()), interval, decision)


def _verdict(
    name: str,
    rule: Rule,
    unit: str,
    observed: float | None,
    n: int,
    interval: Interval,
    decision: tuple[Verdict, str],
    attainment: float | None = None,
) -> RuleVerdict:
    return RuleVerdict(
        request_class=name,
        rule=rule.text,
        metric=rule.metric,
        unit=unit,
        observed=observed,
        bound=rule.conditions[0].bound,
        n=n,
        interval=interval,
        verdict=decision[0],
        reason=decision[1],
        attainment=attainment,
    )


def correlation_for(measured: Measured, name: str, rule: Rule) -> Correlation | None:
    """How alike a run's requests are in what a rule on shares of them looks at; None for other rules."""
    mask = _population(measured, name, rule)
    if share_needed(rule) is None or rule.deadlines_ms is not None or rule.metric == "inter_chunk":
        return None
    if rule.metric not in LATENCIES:
        return _correlation_of_share(measured, rule, mask) if mask.any() else None
    met, evaluable = meets(measured, list(rule.conditions))
    chosen = mask & evaluable
    return _correlations(measured, rule, met, chosen)[1] if chosen.any() else None


def _correlations(measured: Measured, rule: Rule, met: Mask, chosen: Mask) -> tuple[Correlation, Correlation]:
    """Correlation of the latencies, and that which matters for the verdict."""
    assert rule.quantile is not None, "a rule on a quantile has one"
    at_s = measured.times_s["intended_at_ns"][chosen]
    over_bound = _latency_by_bound(measured, rule)[chosen]
    of_latencies = correlation_of_latencies(over_bound, met[chosen], at_s, rule.quantile, rule.stall_s)
    if over_bound.max() > _FAR_BELOW:
        return of_latencies, of_latencies
    # Clusters of requests that all stay far below the bound say nothing of misses.
    return of_latencies, correlation_of(met[chosen], at_s, rule.stall_s)


def _correlation_of_share(measured: Measured, rule: Rule, mask: Mask) -> Correlation:
    return correlation_of(_hits(measured, rule)[mask], measured.times_s["intended_at_ns"][mask], rule.stall_s)


def _aggregate(rule: Rule, values: Floats) -> float:
    if rule.aggregate == "mean":
        return float(values.mean())
    return float(values.max() if rule.aggregate == "max" else values.min())


def _exactly(value: float) -> Interval:
    return Interval(value, value)


def _hits(measured: Measured, rule: Rule) -> Mask:
    """Which requests a rule on a share counts."""
    return {"success": measured.ok, "shed": measured.shed, "errors": ~measured.ok}[rule.metric]


def _judge_quantile(measured: Measured, name: str, rule: Rule, mask: Mask) -> RuleVerdict:
    """A quantile under a bound is a share of requests under that bound."""
    share = rule.quantile
    assert share is not None
    met, evaluable = meets(measured, list(rule.conditions))
    chosen = mask & evaluable
    n, unevaluable = int(chosen.sum()), int((mask & ~evaluable).sum())
    if n == 0:
        return _without_answers(name, rule, unevaluable)
    hits = int((met & chosen).sum())
    of_latencies, correlation = _correlations(measured, rule, met, chosen)
    deff = of_latencies.design_effect
    if len(rule.conditions) > 1:
        observed, interval, unit = hits / n, share_interval(hits / deff, n / deff), "%"
    else:
        condition = rule.conditions[0]
        values = np.where(measured.ok, measured.latency_ms(condition.metric, condition.view), np.inf)[chosen]
        observed, unit = quantile(np.sort(values), share), "ms"
        interval = _between_ends(measured, condition, chosen, share, deff)
    deff = correlation.design_effect
    decision = decide_share(hits, n, correlation, share, "met the bound", runs=measured.run_count)
    if decision[0] is Verdict.FAIL:
        at_least = int((meets(measured, list(rule.conditions), least=True)[0] & chosen).sum())
        at_best = decide_share(at_least, n, correlation, share, "met the bound")
        decision = unless_client(decision, at_best, buffered=_through_a_buffer(measured, rule, chosen))
    unseen = np.logical_or.reduce([measured.unknown(one.metric) for one in rule.conditions])
    unknown = int((mask & ~evaluable & unseen).sum())
    if unknown and not holds_for_all(decision[0], hits / deff, n / deff, unknown / deff, share):
        decision = undecided_by(unknown, rule.metric, decision)
    elif unevaluable:
        decision = (decision[0], f"{decision[1]}; {unevaluable} responses without this metric left out")
    shown = observed if np.isfinite(observed) else None
    finite = Interval(_finite(interval.low), _finite(interval.high))
    return _verdict(name, rule, unit, shown, n, finite, decision, hits / n)


def _between_ends(measured: Measured, condition: Condition, chosen: Mask, share: float, deff: float) -> Interval:
    """Bounds of a quantile: the lower one of the least that latencies can have been, the upper one of the most."""
    least, most = (
        quantile_interval(np.sort(np.where(measured.ok, end, np.inf)[chosen]), share, deff)
        for end in measured.latency_ends_ms(condition.metric, condition.view)
    )
    return Interval(least.low, most.high)


def _through_a_buffer(measured: Measured, rule: Rule, chosen: Mask) -> bool:
    """Whether a rule is about times per token that a proxy's buffer hides."""
    return any(one.metric == "tpot" for one in rule.conditions) and bool((measured.buffered & chosen).any())


def _latency_by_bound(measured: Measured, rule: Rule) -> Floats:
    """Latency of every request as a multiple of its bound, the largest of several; infinite for a failed one."""
    ratios = [measured.latency_ms(one.metric, one.view) / max(one.bound, 1e-9) for one in rule.conditions]
    return np.where(measured.ok, np.fmax.reduce(ratios), np.inf)


def _without_answers(name: str, rule: Rule, unevaluable: int = 0, failed: int = 0) -> RuleVerdict:
    if failed and not unevaluable:
        decision = (Verdict.FAIL, f"all {failed} requests failed")
    elif unevaluable:
        what = rule.metric if len(rule.conditions) == 1 else "values for all conditions"
        decision = (Verdict.INCONCLUSIVE, f"not evaluable: {unevaluable} of {unevaluable} responses have no {what}")
    else:
        decision = (Verdict.INCONCLUSIVE, "no request of this class was measured")
    return _verdict(name, rule, _unit(rule), None, 0, Interval(None, None), decision)


def _unit(rule: Rule) -> str:
    if rule.metric in GPU_METRICS:
        return GPU_FIELDS[rule.metric][1].upper()
    if rule.metric in RATES:
        return "/s"
    return "ms" if rule.metric in LATENCIES and len(rule.conditions) == 1 else "%"


def _judge_aggregate(measured: Measured, name: str, rule: Rule, mask: Mask) -> RuleVerdict:
    """Mean by its interval; max and min are taken as observed."""
    condition = rule.conditions[0]
    values = measured.latency_ms(condition.metric, condition.view)
    failed = int((mask & ~measured.ok).sum())
    chosen = mask & measured.ok & ~np.isnan(values)
    n = int(chosen.sum())
    if n == 0:
        return _without_answers(name, rule, int((mask & measured.ok).sum()), failed)
    known, at_s = values[chosen], measured.times_s["intended_at_ns"][chosen]
    observed = _aggregate(rule, known)
    least, most = (
        mean_interval(end[chosen], at_s) if rule.aggregate == "mean" else _exactly(_aggregate(rule, end[chosen]))
        for end in measured.latency_ends_ms(condition.metric, condition.view)
    )
    interval = Interval(least.low, most.high)
    decision = decide_value(rule, most)
    if decision[0] is Verdict.FAIL:
        buffered = _through_a_buffer(measured, rule, chosen)
        decision = unless_client(decision, decide_value(rule, least), buffered=buffered)
    decision = unless_failed(rule, failed, decision)
    unknown = int((mask & measured.unknown(condition.metric)).sum())
    # What was not seen can only lower a minimum and raise a maximum; it can move a mean either way.
    robust = {"min": Verdict.PASS, "max": Verdict.FAIL}.get(rule.aggregate or "")
    decided_by_failures = failed and rule.aggregate != "min"
    if unknown and not decided_by_failures and decision[0] is not robust:
        decision = undecided_by(unknown, rule.metric, decision)
    return _verdict(name, rule, "ms", observed, n, interval, decision)


def _judge_share(measured: Measured, name: str, rule: Rule, mask: Mask) -> RuleVerdict:
    n = int(mask.sum())
    if n == 0:
        return _without_answers(name, rule)
    hits = int((_hits(measured, rule) & mask).sum())
    condition = rule.conditions[0]
    correlation = _correlation_of_share(measured, rule, mask)
    deff = correlation.design_effect
    interval = share_interval(hits / deff, n / deff)
    runs = measured.run_count
    if condition.upper:
        decision = decide_share(n - hits, n, correlation, 1 - condition.bound, f"were not {rule.metric}", runs=runs)
    else:
        phrase = "were answered" if rule.metric == "success" else f"were {rule.metric}"
        decision = decide_share(hits, n, correlation, condition.bound, phrase, runs=runs)
    return _verdict(name, rule, "%", hits / n, n, interval, decision, 1 - hits / n if condition.upper else hits / n)


def _judge_rate(measured: Measured, name: str, rule: Rule, mask: Mask) -> RuleVerdict:
    windows = load_windows(measured, rule.selectors)
    if not mask.any() or not windows:
        return _without_answers(name, rule)
    of = counted(measured, name, rule.selectors)
    n, what = int((mask & of).sum()), amount_of(rule.metric)
    unit, factor = ("/h", 3600.0) if rule.metric == TASK_RATE else ("/s", 1.0)
    if n == 0:
        interval = Interval(0.0, 0.0)
        return _verdict(name, rule, unit, 0.0, 0, interval, decide_value(rule, interval))
    if rule.metric.endswith(PER_GPU):
        gpus = measured.gpu_count()
        if not gpus:
            decision = (Verdict.INCONCLUSIVE, "no GPU agent reported any GPU: pass --gpu-agent")
            return _verdict(name, rule, unit, None, n, Interval(None, None), decision)
        factor = 1 / gpus
    unknown = 0 if what == "requests" else int(np.isnan(measured.numbers[what][mask & of]).sum())
    if unknown == n:
        return _without_answers(name, rule, unknown)
    amounts = arrived(measured, what, of, windows)
    observed, interval = amounts.per_s * factor, scaled(amounts.interval, factor)
    decision = decide_value(rule, interval)
    if unknown:
        # The known sum is a minimum: it can satisfy a lower bound, or exceed an upper one.
        robust = Verdict.FAIL if rule.conditions[0].upper else Verdict.PASS
        reason = f"at least {observed:,.0f}/s; {unknown} of {n} responses have no token count"
        decision = (decision[0] if decision[0] is robust else Verdict.INCONCLUSIVE, reason)
        interval = Interval(interval.low, None)
    decision = (decision[0], f"{decision[1]}; {wording(windows)}")
    return _verdict(name, rule, unit, None if unknown else observed, n, interval, decision)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
