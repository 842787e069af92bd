"""Judges rules on measured columns. Pure.

A rule passes or fails only when the sample shows it with 95 % confidence; else it is INCONCLUSIVE
and says how many requests would decide. A breach of the client's audit makes the rules INVALID that it
can have changed: a slow client must not become a slow server. Failed requests miss every latency objective.
"""

import math

import msgspec
import numpy as np

from surgeproof.records import Verdict
from surgeproof.results import Audit, AuditCheck, Effect, Interval, RuleVerdict
from surgeproof.slo.breaches import DELAYS, can_have_changed, client_error_of, voided
from surgeproof.slo.correlation import MIN_EFFECTIVE_BLOCKS, Correlation, correlation_of, correlation_of_latencies
from surgeproof.slo.gaps import Counts, Floats, values_ms
from surgeproof.slo.intervals import (
    CONFIDENCE,
    quantile,
    quantile_interval,
    requests_needed,
    requests_without_miss,
    scaled,
    share_interval,
    shown_at_least,
    shown_below,
)
from surgeproof.slo.means import mean_interval, ratio_interval
from surgeproof.slo.measured import Mask, Measured
from surgeproof.slo.rates import amount_of, arrived, counted, in_flight, load_windows, wording
from surgeproof.slo.rules import (
    FLOWS,
    GPU_FIELDS,
    GPU_METRICS,
    LATENCIES,
    PER_GPU,
    RATES,
    Condition,
    Objectives,
    Rule,
)
from surgeproof.slo.sample_size import share_needed
from surgeproof.slo.stalls import stalls_s
from surgeproof.slo.summary import meets

_CORRELATED = 2.0
"""From this design effect on, a reason speaks of correlation."""
_FAR_BELOW = 1 / 3
"""Where the slowest request took at most this share of the bound, clusters under the bound do not count."""
_COVERED = 0.9
"""Share of the twentieths of a run that must hold a sample of a GPU."""
_SEVERITY = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL)


def judge(measured: Measured, objectives: Objectives, audit: Audit) -> list[RuleVerdict]:
    """Judge every rule of every class, in the order they were written."""
    breaches = audit.breaches
    measured = measured.with_client_error(client_error_of(audit))
    longest_stall_s = float(stalls_s(measured).max(initial=0.0))
    verdicts = []
    for name, rule in objectives.by_step(measured.steps()):
        rule = _with_stall(rule, longest_stall_s)
        verdict = _unless_left_out(_judge_rule(measured, name, rule), rule, measured.left_out)
        if measured.closed_loop and longest_stall_s > 0:
            verdict = _after_stall(verdict, longest_stall_s)
        breach = next((one for one in breaches if can_have_changed(one, verdict, rule)), None)
        if breach is None and verdict.verdict is Verdict.INCONCLUSIVE:
            breach = next((one for one in breaches if set(one.effects) & DELAYS), None)
            if breach and _judge_rule(measured.at_best(), name, rule).verdict is Verdict.INCONCLUSIVE:
                # More requests are needed, whatever the client did.
                verdict = _with_remedy(verdict, breach)
                breach = None
        verdicts.append(voided(verdict, breach) if breach else verdict)
    return verdicts


def _with_remedy(verdict: RuleVerdict, breach: AuditCheck) -> RuleVerdict:
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; and before the next run: {breach.remedy}")


def _with_stall(rule: Rule, stall_s: float) -> Rule:
    """The rule with a stall that the run showed declared, where that is longer: it makes as many requests alike."""
    of_requests = rule.quantile is not None and rule.metric in LATENCIES and rule.metric != "inter_chunk"
    return msgspec.structs.replace(rule, stall_s=max(rule.stall_s, stall_s)) if of_requests else rule


def overall(measured: Measured, verdicts: list[RuleVerdict], audit: Audit) -> Verdict | None:
    """The run's verdict: the worst of its rules; None without rules.

    A FAIL that stands whatever the client did comes before INVALID. A run in which nothing was answered is a FAIL,
    with or without rules.
    """
    if measured.count == 0:
        return Verdict.INVALID
    worst = [verdict.verdict for verdict in verdicts]
    if audit.breaches and not verdicts:
        worst.append(Verdict.INVALID)
    by_client = any(not breach.effects or Effect.RECORDS in breach.effects for breach in audit.breaches)
    if not by_client and (measured.main & measured.sent).any() and not (measured.main & measured.ok).any():
        worst.append(Verdict.FAIL)
    return max(worst, key=_SEVERITY.index, default=None)


def _unless_left_out(verdict: RuleVerdict, rule: Rule, left_out: float) -> RuleVerdict:
    """No PASS where busier minutes that were not played hold more requests than may miss."""
    share = share_needed(rule)
    if verdict.verdict is not Verdict.PASS or share is None or left_out <= 1 - share:
        return verdict
    reason = (
        f"{verdict.reason}; but {left_out:.0%} of the profile's requests are due in busier minutes than were played, "
        f"and {1 - share:.2g} of all may miss: name the part to judge (--window), or play more of it (--repeat)"
    )
    return msgspec.structs.replace(verdict, verdict=Verdict.INCONCLUSIVE, reason=reason)


def _after_stall(verdict: RuleVerdict, stall_s: float) -> RuleVerdict:
    if verdict.verdict not in (Verdict.PASS, Verdict.INCONCLUSIVE) or verdict.metric not in LATENCIES | FLOWS:
        return verdict
    stall = (
        f"closed loop: a stall of {stall_s:.1f} s stopped the schedule, so requests that would have waited "
        "are missing; use --request-rate"
    )
    reason = stall if verdict.verdict is Verdict.PASS else f"{verdict.reason}; {stall}"
    return msgspec.structs.replace(verdict, verdict=Verdict.INCONCLUSIVE, reason=reason)


def _judge_rule(measured: Measured, name: str, rule: Rule) -> RuleVerdict:
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
        decision = _decide_value(rule, interval)
    elif rule.aggregate:
        observed = float(values.max() if rule.aggregate == "max" else values.min())
        interval = Interval(observed, observed)
        decision = _decide_value(rule, interval)
    else:
        assert rule.quantile is not None, "a rule on samples has an aggregate or a quantile"
        ordered = np.sort(values)
        observed = quantile(ordered, rule.quantile)
        # `p95 < 85%` asks that 95 % of the samples lie below, `p5 > 20%` that 95 % lie above.
        share = rule.quantile if condition.upper else 1 - rule.quantile
        good = np.array([condition.met_by(value) for value in values.tolist()])
        correlation = correlation_of_latencies(values if condition.upper else -values, good, at_s, share)
        interval = quantile_interval(ordered, rule.quantile, correlation.design_effect)
        decision = _decide_share(int(good.sum()), n, correlation, share, "met the bound", "samples", len(windows))
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
        decision = _decide_value(rule, interval)
        if unknown:
            decision = _undecided_by(unknown, rule.metric, decision)
        return _verdict(name, rule, "%", float(values.mean()), n, interval, decision)
    hits = values > condition.bound if condition.comparison == ">" else values >= condition.bound
    correlation = correlation_of_latencies(-values, hits, at_s, rule.quantile, rule.stall_s)
    deff = correlation.design_effect
    runs = measured.run_count
    decision = _decide_share(int(hits.sum()), n, correlation, rule.quantile, "reached that fluidity", runs=runs)
    if unknown and not _holds_for_all(decision[0], int(hits.sum()) / deff, n / deff, unknown / deff, rule.quantile):
        decision = _undecided_by(unknown, rule.metric, decision)
    attained = float(hits.mean())
    return _verdict(name, rule, "%", attained, n, share_interval(hits.sum() / deff, n / deff), decision, attained)


def _undecided_by(unknown: int, metric: str, decision: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """A decision that values which were not measured could change."""
    responses = "1 response has" if unknown == 1 else f"{unknown} responses have"
    return Verdict.INCONCLUSIVE, f"{decision[1]}; {responses} no {metric}; the verdict could change"


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
        decision = _decide_share(round(attained * n), n, Correlation(), share, "met the bound", "gaps")
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
    decision = _unless_failed(rule, failed, _decide_value(rule, interval))
    return _verdict(name, rule, "ms", observed, int(counts.sum()), interval, decision)


def _unless_failed(rule: Rule, failed: int, decision: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """A failed request misses any bound on a mean or a maximum."""
    if failed and rule.aggregate != "min" and decision[0] is not Verdict.FAIL:
        return Verdict.FAIL, f"{failed} requests failed, so no latency bound on the {rule.aggregate} can be met"
    return decision


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
    decision = _decide_share(hits, n, correlation, share, "met the bound", runs=measured.run_count)
    if decision[0] is Verdict.FAIL:
        at_least = int((meets(measured, list(rule.conditions), least=True)[0] & chosen).sum())
        at_best = _decide_share(at_least, n, correlation, share, "met the bound")
        decision = _unless_client(decision, at_best, buffered=_through_a_buffer(measured, rule, chosen))
    unseen = np.logical_or.reduce([measured.unknown(one.metric) for one in rule.conditions])
    unknown = int((mask & ~evaluable & unseen).sum())
    if unknown and not _holds_for_all(decision[0], hits / deff, n / deff, unknown / deff, share):
        decision = _undecided_by(unknown, rule.metric, decision)
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


def _unless_client(
    decision: tuple[Verdict, str], at_best: tuple[Verdict, str], *, buffered: bool
) -> tuple[Verdict, str]:
    """A FAIL stands only if the bound is missed whatever the client's own delay, or a proxy's buffer, was."""
    if at_best[0] is Verdict.FAIL:
        return decision
    if buffered:
        reason = (
            f"{decision[1]}, as a proxy delivered tokens many at a time, so that times per token may have been longer "
            "than they look; turn its buffering off (nginx: proxy_buffering off)"
        )
        return Verdict.INCONCLUSIVE, reason
    reason = (
        f"{decision[1]}; the client's own delay (late sending, or first tokens that it read with later ones) may "
        "explain it: use more worker processes (--processes), or stop other programs on the cores"
    )
    return Verdict.INCONCLUSIVE, reason


def _latency_by_bound(measured: Measured, rule: Rule) -> Floats:
    """Latency of every request as a multiple of its bound, the largest of several; infinite for a failed one."""
    ratios = [measured.latency_ms(one.metric, one.view) / max(one.bound, 1e-9) for one in rule.conditions]
    return np.where(measured.ok, np.fmax.reduce(ratios), np.inf)


def _holds_for_all(verdict: Verdict, hits: float, n: float, unknown: float, share: float) -> bool:
    """Whether a verdict is the same for any values of the requests without a figure."""
    if verdict is Verdict.PASS:
        return shown_at_least(hits, n + unknown, share)
    return verdict is not Verdict.FAIL or shown_below(hits + unknown, n + unknown, share)


def _decide_share(
    hits: int, n: int, correlation: Correlation, share: float, phrase: str, of: str = "requests", runs: int = 1
) -> tuple[Verdict, str]:
    """PASS, FAIL or INCONCLUSIVE for 'at least `share` of requests'; `runs` were laid end to end."""
    deff = correlation.design_effect
    sentence = f"{hits} of {n} {phrase} ({hits / n * 100:.6g} %, {share * 100:.6g} % needed)"
    if share >= 1:
        # No sample shows that nothing ever misses: what is asked is that nothing did.
        return (Verdict.PASS if hits == n else Verdict.FAIL), sentence
    if shown_at_least(hits / deff, n / deff, share):
        if correlation.too_few_blocks:
            return Verdict.INCONCLUSIVE, f"{sentence}; {_too_short(correlation, of, runs)}"
        return Verdict.PASS, sentence
    if shown_below(hits / deff, n / deff, share) or _far_beyond(hits, n, share):
        return Verdict.FAIL, sentence
    needed = requests_without_miss(share) if hits == n else requests_needed(hits / deff, n / deff, share)
    if needed is None:
        return Verdict.INCONCLUSIVE, f"{sentence}; too close to the bound for a verdict at 95 % confidence"
    more = max(int(np.ceil(needed * deff)) - n, 1)
    sentence = f"{sentence}; {more} more {of} like these would decide"
    if deff < _CORRELATED:
        return Verdict.INCONCLUSIVE, sentence
    per_stretch = f"{of} near in time are alike: {deff:.3g} say as much as 1 independent one"
    return Verdict.INCONCLUSIVE, f"{sentence} ({per_stretch}; {_minutes(more / n * correlation.span_s)})"


def _far_beyond(hits: int, n: int, share: float) -> bool:
    """Twenty times the misses that are allowed have a chance of 1 in 20 at most, however correlated (Markov)."""
    return (n - hits) * (1 - CONFIDENCE) >= (1 - share) * n * (1 - 1e-9)


def _too_short(correlation: Correlation, of: str, runs: int) -> str:
    """Why a run with fewer independent stretches than needed does not pass, and what would help."""
    length_s, independent = correlation.correlation_s, correlation.effective_blocks
    assert length_s is not None, "too few blocks are known to be few"
    assert independent is not None, "too few blocks are known to be few"
    more_s = (MIN_EFFECTIVE_BLOCKS - independent) * length_s
    repetitions = math.ceil(runs * MIN_EFFECTIVE_BLOCKS / independent)
    short = "this run is" if runs == 1 else f"these {runs} runs are"
    return (
        f"{of} are alike over {length_s:.3g} s, so {short} too short for a PASS: "
        f"at least {_minutes(more_s)}, or --repeat {repetitions}"
    )


def _minutes(seconds: float) -> str:
    minutes = max(1, math.ceil(seconds / 60))
    return "1 more minute" if minutes == 1 else f"{minutes} more minutes"


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
    decision = _decide_value(rule, most)
    if decision[0] is Verdict.FAIL:
        buffered = _through_a_buffer(measured, rule, chosen)
        decision = _unless_client(decision, _decide_value(rule, least), buffered=buffered)
    decision = _unless_failed(rule, failed, decision)
    unknown = int((mask & measured.unknown(condition.metric)).sum())
    # What was not seen can only lower a minimum and raise a maximum; it can move a mean either way.
    robust = {"min": Verdict.PASS, "max": Verdict.FAIL}.get(rule.aggregate or "")
    decided_by_failures = failed and rule.aggregate != "min"
    if unknown and not decided_by_failures and decision[0] is not robust:
        decision = _undecided_by(unknown, rule.metric, decision)
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
        decision = _decide_share(n - hits, n, correlation, 1 - condition.bound, f"were not {rule.metric}", runs=runs)
    else:
        phrase = "were answered" if rule.metric == "success" else f"were {rule.metric}"
        decision = _decide_share(hits, n, correlation, condition.bound, phrase, runs=runs)
    return _verdict(name, rule, "%", hits / n, n, interval, decision, 1 - hits / n if condition.upper else hits / n)


def _judge_rate(measured: Measured, name: str, rule: Rule, mask: Mask) -> RuleVerdict:
    windows = load_windows(measured, rule.selectors)
    if not mask.any() or not windows:
        return _without_answers(name, rule)
    of = counted(measured, name, rule.selectors)
    n, what = int((mask & of).sum()), amount_of(rule.metric)
    if n == 0:
        interval = Interval(0.0, 0.0)
        return _verdict(name, rule, "/s", 0.0, 0, interval, _decide_value(rule, interval))
    gpus = 1
    if rule.metric.endswith(PER_GPU):
        gpus = measured.gpu_count()
        if not gpus:
            decision = (Verdict.INCONCLUSIVE, "no GPU agent reported any GPU: pass --gpu-agent")
            return _verdict(name, rule, "/s", None, n, Interval(None, None), decision)
    unknown = 0 if what == "requests" else int(np.isnan(measured.numbers[what][mask & of]).sum())
    if unknown == n:
        return _without_answers(name, rule, unknown)
    amounts = arrived(measured, what, of, windows)
    observed, interval = amounts.per_s / gpus, scaled(amounts.interval, 1 / gpus)
    decision = _decide_value(rule, interval)
    if unknown:
        # The known sum is a minimum: it can satisfy a lower bound, or exceed an upper one.
        robust = Verdict.FAIL if rule.conditions[0].upper else Verdict.PASS
        reason = f"at least {observed:,.0f}/s; {unknown} of {n} responses have no token count"
        decision = (decision[0] if decision[0] is robust else Verdict.INCONCLUSIVE, reason)
        interval = Interval(interval.low, None)
    decision = (decision[0], f"{decision[1]}; {wording(windows)}")
    return _verdict(name, rule, "/s", None if unknown else observed, n, interval, decision)


def _decide_value(rule: Rule, interval: Interval) -> tuple[Verdict, str]:
    """Compare an interval with the bound; without an interval, only a large miss gives a verdict."""
    condition = rule.conditions[0]
    if interval.low is None or interval.high is None:
        return Verdict.INCONCLUSIVE, "too few requests for a confidence interval; run longer"
    ends = (condition.met_by(interval.low), condition.met_by(interval.high))
    if all(ends):
        return Verdict.PASS, "the whole interval meets the bound"
    if not any(ends):
        return Verdict.FAIL, "the whole interval misses the bound"
    return Verdict.INCONCLUSIVE, "the interval includes the bound; run longer"


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
