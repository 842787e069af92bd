"""Is B worse than A? Differences of two or more runs with their confidence, corrected for how many are looked at. Pure.

Each figure carries a standard error: quantiles from their order-statistic bounds, means and rates from
blocks of time, shares from the binomial with its design effect. Differences are judged by the normal
law, and all p values of one comparison together by Holm's step-down method (Scandinavian Journal of
Statistics 6, 1979), so that many figures do not make false alarms.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from surgeproof.records import REQUEST_CLASSES
from surgeproof.results import Interval
from surgeproof.slo.correlation import correlation_of, correlation_of_latencies
from surgeproof.slo.intervals import quantile, quantile_interval, share_interval
from surgeproof.slo.means import mean_interval, rate_interval
from surgeproof.slo.measured import Mask, Measured

ALPHA = 0.05
_ONE_SIDED_Z = 1.6448536269514722
_LATENCIES = ("ttft", "tpot", "e2e")
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LENGTH_BUCKETS = ((0, 256), (256, 1024), (1024, 4096), (4096, 16_384), (16_384, 1 << 31))
_MIN_REQUESTS = 20


class Figure(NamedTuple):
    """A figure of one run and its standard error; None where the sample is too small for one."""

    value: float
    error: float | None


class Policy(msgspec.Struct, frozen=True):
    """The largest change that is accepted.

    Attributes:
        rate_drop: largest accepted fall of a rate, as a share.
        p99_rise_ms: largest accepted rise of a p99, or of a p95 where too few requests bound the p99.
        success_drop: largest accepted fall of the share answered.
    """

    rate_drop: float = 0.05
    p99_rise_ms: float = 20.0
    success_drop: float = 0.001


class Difference(msgspec.Struct, frozen=True):
    """One figure in two runs.

    Attributes:
        group: a class, or a bucket of input lengths.
        metric: which figure, with its unit.
        before: in the first run.
        after: in the other.
        low, high: 95 % bounds of after minus before; None without a standard error.
        p: of no difference; None without a standard error.
        significant: whether it is significant after Holm's correction.
        alarm: whether it is significant and more than the policy accepts.
        unclear: whether it is more than the policy accepts and the sample too small to tell it from chance.
    """

    group: str
    metric: str
    before: float
    after: float
    low: float | None
    high: float | None
    p: float | None
    significant: bool = False
    alarm: bool = False
    unclear: bool = False


def compare(before: Measured, after: Measured, policy: Policy | None = None) -> list[Difference]:
    """All differences between two runs, in the order a reader wants them."""
    policy = policy or Policy()
    results = []
    for group in groups(before, after):
        old, new = (figures_of(run, group_mask(run, group)) for run in (before, after))
        results += [_difference(group, metric, old[metric], new[metric]) for metric in old if metric in new]
    unbounded = {(d.group, d.metric) for d in results if d.p is None and "p99" in d.metric}
    return [_judged(difference, policy, unbounded) for difference in holm(results)]


def lost(before: Measured, after: Measured) -> list[str]:
    """Figures of all requests that the first run has and the other has not: too little was answered, or streamed."""
    available = figures_of(after, group_mask(after, "all"))
    return [metric for metric in figures_of(before, group_mask(before, "all")) if metric not in available]


def groups(*runs: Measured) -> list[str]:
    """`all`, the classes that occur in every run, and the buckets of input length that hold enough requests."""
    names = ["all"]
    if sum(any(run.of_class(name).any() for run in runs) for name in REQUEST_CLASSES) > 1:
        names += [name for name in REQUEST_CLASSES if all(run.of_class(name).any() for run in runs)]
    buckets = [f"input {low}..{high if high < 1 << 31 else ''}" for low, high in LENGTH_BUCKETS]
    large = [name for name in buckets if all((group_mask(run, name) & run.ok).sum() >= _MIN_REQUESTS for run in runs)]
    return names + (large if len(large) > 1 else [])


def group_mask(run: Measured, group: str) -> Mask:
    """The judged requests of a group."""
    if not group.startswith("input "):
        return run.judged & run.of_class(group)
    low, _, high = group.removeprefix("input ").partition("..")
    tokens = run.columns.integers("planned_input_tokens")
    return run.judged & (tokens >= int(low)) & (tokens < int(high or 1 << 31))


def figures_of(run: Measured, mask: Mask) -> dict[str, Figure]:
    """Figures of some requests with their standard errors."""
    answered = mask & run.ok
    sent = int(mask.sum())
    if sent == 0:
        return {}
    at_s = run.times_s["intended_at_ns"]
    hits = int(answered.sum())
    deff = correlation_of(run.ok[mask], at_s[mask]).design_effect
    results = {"success, %": _scaled(_from_bounds(hits / sent, share_interval(hits / deff, sent / deff)), 100)}
    for name in ("connect", *_LATENCIES):
        if name == "connect":
            values = run.columns.between_ms("connected_at_ns", "connect_at_ns")
        else:
            values = run.latency_ms(name)
        known = answered & ~np.isnan(values)
        if known.sum() < _MIN_REQUESTS:
            continue
        chosen, when = values[known], at_s[known]
        results[f"{name} mean, ms"] = _from_bounds(float(chosen.mean()), mean_interval(chosen, when))
        ordered = np.sort(chosen)
        for label, q in _QUANTILES.items():
            value = quantile(ordered, q)
            effect = correlation_of_latencies(chosen, chosen <= value, when, q).design_effect
            results[f"{name} {label}, ms"] = _from_bounds(value, quantile_interval(ordered, q, effect))
    start, end = run.window_s(mask)
    if end > start and hits:
        for label, amounts in (
            ("requests/s", np.ones(hits)),
            ("output tokens/s", run.numbers["output_tokens"][answered]),
        ):
            if np.isnan(amounts).any():
                continue  # a rate of known counts only would drop where a server reports no usage
            interval = rate_interval(amounts, run.times_s["done_at_ns"][answered] - start, end - start)
            results[label] = _from_bounds(float(amounts.sum() / (end - start)), interval)
    return results


def _from_bounds(value: float, interval: Interval) -> Figure:
    """The standard error that one-sided 95 % bounds imply; none where the sample bounds one side only.

    Half a bound would not do: of two equal runs of 100 log-normal latencies the p99 then differs in 19 of 100 pairs.
    """
    if interval.low is None or interval.high is None:
        return Figure(value, None)
    return Figure(value, (interval.high - interval.low) / (2 * _ONE_SIDED_Z))


def _scaled(figure: Figure, factor: float) -> Figure:
    return Figure(figure.value * factor, None if figure.error is None else figure.error * factor)


def _difference(group: str, metric: str, old: Figure, new: Figure) -> Difference:
    step = new.value - old.value
    if old.error is None or new.error is None:
        return Difference(group, metric, old.value, new.value, None, None, None)
    error = math.hypot(old.error, new.error)
    p = math.erfc(abs(step) / error / math.sqrt(2)) if error > 0 else float(step == 0)
    return Difference(group, metric, old.value, new.value, step - 1.96 * error, step + 1.96 * error, p)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Mark differences that are significant at 5 % over all comparisons."""
    order = sorted((d.p, index) for index, d in enumerate(differences) if d.p is not None)
    standing = set()
    for rank, (p, index) in enumerate(order):
        if p > ALPHA / (len(order) - rank):
            break
        standing.add(index)
    return [msgspec.structs.replace(d, significant=index in standing) for index, d in enumerate(differences)]


def _judged(difference: Difference, policy: Policy, unbounded: set[tuple[str, str]]) -> Difference:
    """A p95 replaces a p99 that the samples do not bound."""
    step = difference.after - difference.before
    stands_in = (difference.group, difference.metric.replace("p95", "p99")) in unbounded
    if "p99" in difference.metric or ("p95" in difference.metric and stands_in):
        too_much = step > policy.p99_rise_ms
    elif difference.metric.startswith("success"):
        too_much = -step > policy.success_drop * 100
    elif difference.metric.endswith("/s"):
        too_much = difference.before > 0 and -step / difference.before > policy.rate_drop
    else:
        too_much = False
    return msgspec.structs.replace(
        difference, alarm=difference.significant and too_much, unclear=difference.p is None and too_much
    )
