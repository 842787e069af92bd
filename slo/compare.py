"""Is B at most as much worse than A as is accepted? Differences of two runs with their bounds. Pure.

A release is judged by the few figures of `POLICY_METRICS`, each against a margin: it PASSes where the
whole bound of the difference is inside (non-inferiority; all must hold, so that none needs a correction,
Berger and Hsu, Statistical Science 11, 1996), FAILs where it is beyond, and is INCONCLUSIVE otherwise.
All other figures are exploration. Bounds of a difference follow from those of the two figures
(Zou and Donner, Statistics in Medicine 27, 2008), and are the ones that are shown. Runs of one plan are
paired: what both share cancels in their difference.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

from surgeproof.records import REQUEST_CLASSES, Verdict
from surgeproof.results import Interval
from surgeproof.slo.correlation import correlation_of, correlation_of_latencies
from surgeproof.slo.intervals import (
    CONFIDENCE,
    NORMAL_POINT,
    Floats,
    quantile,
    quantile_interval,
    scaled,
    share_interval,
)
from surgeproof.slo.means import mean_interval
from surgeproof.slo.measured import Mask, Measured
from surgeproof.slo.pairing import shared_correlation
from surgeproof.slo.rates import arrived, load_windows

POLICY_METRICS = (
    "success, %", "ttft p99, ms", "e2e p99, ms", "ttft p50, ms", "tpot p50, ms", "e2e p50, ms",
    "requests/s", "output tokens/s",
)  # fmt: skip
"""Figures of all requests that decide; rates only where the server sets them."""
_ALPHA = 1 - CONFIDENCE
_LATENCIES = ("ttft", "tpot", "e2e")
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LENGTH_BUCKETS = ((0, 256), (256, 1024), (1024, 4096), (4096, 16_384), (16_384, 1 << 31))
_MIN_REQUESTS = 20
_MAX_MORE = 100
"""Times the requests of a run: beyond, no number of requests is advised."""


class Figure(NamedTuple):
    """A figure of one run and its one-sided 95 % bounds; None where the sample is too small for one."""

    value: float
    low: float | None
    high: float | None


class Policy(msgspec.Struct, frozen=True):
    """The largest change that is accepted.

    Attributes:
        rate_drop: largest accepted fall of a rate, as a share.
        p99_rise_ms: largest accepted rise of a p99, or of a p95 where too few requests bound the p99.
        p99_rise: the same as a share of the first run's; the larger of the two counts.
        p50_rise_ms, p50_rise: the same of a median, and of a mean, which is exploration.
        success_drop: largest accepted fall of the share answered.
    """

    rate_drop: float = 0.05
    p99_rise_ms: float = 20.0
    p99_rise: float = 0.05
    p50_rise_ms: float = 1.0
    p50_rise: float = 0.05
    success_drop: float = 0.005

    def margin(self, metric: str, before: float) -> float | None:
        """The largest accepted change for the worse, in the figure's unit; None for figures without one."""
        if "p99" in metric or "p95" in metric:
            return max(self.p99_rise_ms, self.p99_rise * before)
        if "p50" in metric or "mean" in metric:
            return max(self.p50_rise_ms, self.p50_rise * before)
        if metric.startswith("success"):
            return self.success_drop * 100
        return self.rate_drop * before if metric.endswith("/s") else None


class Difference(msgspec.Struct, frozen=True):
    """One figure in two runs.

    Attributes:
        group: a class, or a bucket of input lengths.
        metric: which figure, with its unit.
        before: in the first run.
        after: in the other.
        low, high: bounds of after minus before; None where a sample is too small. Of a figure that decides:
            its one-sided 95 % bound on the side of the margin, corrected for their number on the other. Of
            any other figure: 95 % bounds corrected for the number of figures.
        margin: largest accepted change for the worse, of a figure that decides.
        verdict: of a figure that decides.
        more_requests: in each run, that would decide at the same values; None if none would.
        significant: whether the bounds exclude no change.
        alarm: whether it decides and FAILs.
        unclear: whether it decides and is INCONCLUSIVE, or is exploration, significant and beyond what the policy
            accepts of such a figure.
    """

    group: str
    metric: str
    before: float
    after: float
    low: float | None
    high: float | None
    margin: float | None = None
    verdict: Verdict | None = None
    more_requests: int | None = None
    significant: bool = False
    alarm: bool = False
    unclear: bool = False


def compare(
    before: Measured,
    after: Measured,
    policy: Policy | None = None,
    *,
    paced: bool = False,
    paired: bool = False,
    error_ms: float = 0.0,
) -> list[Difference]:
    """All differences between two runs, in the order a reader wants them.

    Args:
        before: the first run.
        after: the other.
        policy: what is accepted.
        paced: whether a plan set the rate of a run (open loop): its rates tell of the plan and decide nothing.
        paired: whether both ran one plan, so that requests can be compared one by one.
        error_ms: how far off a latency of the one run against the other can be by the doing of late clients.
    """
    policy = policy or Policy()
    tokens = _later_tokens(before, after)
    pairs = []
    for group in groups(before, after):
        old, new = (figures_of(run, group) for run in (before, after))
        for metric in (name for name in old if name in new):
            shared = _shared(before, after, group, metric) if paired else 0.0
            pairs.append(_Pair(group, metric, old[metric], new[metric], shared))
    chosen = _deciding({pair.metric: pair for pair in pairs if pair.group == "all"})
    deciding = {("all", metric) for metric in chosen if not (paced and metric.endswith("/s"))}
    count = min(int(before.judged.sum()), int(after.judged.sum()))
    return [
        _decided(pair, policy, count, len(deciding), error_ms / (tokens if pair.metric.startswith("tpot") else 1.0))
        if (pair.group, pair.metric) in deciding
        else _explored(pair, policy, len(pairs) - len(deciding))
        for pair in pairs
    ]


def _later_tokens(*runs: Measured) -> float:
    """Tokens after the first of a usual answer, over which a delay of one event is spread; at least 1."""
    tokens = np.concatenate([run.numbers["output_tokens"][run.judged & run.ok] for run in runs])
    known = tokens[~np.isnan(tokens)]
    return max(1.0, float(np.median(known)) - 1) if len(known) else 1.0


class _Pair(NamedTuple):
    """A figure of two runs, and how much of its error they share."""

    group: str
    metric: str
    old: Figure
    new: Figure
    shared: float

    @property
    def bounded(self) -> bool:
        return all(figure.low is not None and figure.high is not None for figure in (self.old, self.new))


def _shared(before: Measured, after: Measured, group: str, metric: str) -> float:
    """Correlation of a figure's error between two runs of one plan; 0 of rates, which are of no single requests."""
    if metric.endswith("/s"):
        return 0.0
    found = [_deviations(run, group, metric) for run in (before, after)]
    return shared_correlation(before, after, (found[0][0], found[1][0]), (found[0][1], found[1][1]))


def _deviations(run: Measured, group: str, metric: str) -> tuple[Floats, Mask]:
    """By how much each request moves a figure, and which requests count for it."""
    mask = run.judged & of_group(run, group)
    if metric.startswith("success"):
        values, label = run.ok.astype(np.float64), "mean"
    else:
        name, label = metric.removesuffix(", ms").split(" ")
        values = _values(run, name)
        mask = mask & run.ok & ~np.isnan(values)
    if label != "mean":
        values = (values > quantile(np.sort(values[mask]), _QUANTILES[label])).astype(np.float64)
    return np.where(mask, values - values[mask].mean(), 0.0), mask


def _values(run: Measured, name: str) -> Floats:
    """A latency of every request, ms."""
    return run.columns.between_ms("connected_at_ns", "connect_at_ns") if name == "connect" else run.latency_ms(name)


def _deciding(pairs: dict[str, _Pair]) -> list[str]:
    """The figures that decide; a p95 replaces a p99 that a sample does not bound."""
    chosen = []
    for metric in POLICY_METRICS:
        p95 = metric.replace("p99", "p95")
        if metric in pairs and p95 in pairs and not pairs[metric].bounded:
            metric = p95
        if metric in pairs:
            chosen.append(metric)
    return chosen


def lost(before: Measured, after: Measured) -> list[str]:
    """Figures of all requests that the first run has and the other has not: too little was answered, or streamed."""
    available = figures_of(after, "all")
    return [metric for metric in figures_of(before, "all") if metric not in available]


def groups(*runs: Measured) -> list[str]:
    """`all`, the classes that occur in every run, and the buckets of input length that hold enough requests."""
    names = ["all"]
    if sum(any(run.of_class(name).any() for run in runs) for name in REQUEST_CLASSES) > 1:
        names += [name for name in REQUEST_CLASSES if all(run.of_class(name).any() for run in runs)]
    buckets = [f"input {low}..{high if high < 1 << 31 else ''}" for low, high in LENGTH_BUCKETS]
    large = [name for name in buckets if all(_answers(run, name) >= _MIN_REQUESTS for run in runs)]
    return names + (large if len(large) > 1 else [])


def _answers(run: Measured, group: str) -> int:
    return int((run.judged & run.ok & of_group(run, group)).sum())


def of_group(run: Measured, group: str) -> Mask:
    """The requests of a group, of all phases."""
    if not group.startswith("input "):
        return run.of_class(group)
    low, _, high = group.removeprefix("input ").partition("..")
    tokens = run.columns.integers("planned_input_tokens")
    return (tokens >= int(low)) & (tokens < int(high or 1 << 31))


def figures_of(run: Measured, group: str) -> dict[str, Figure]:
    """Figures of a group's judged requests with their bounds."""
    mask = run.judged & of_group(run, group)
    answered = mask & run.ok
    sent = int(mask.sum())
    if sent == 0:
        return {}
    at_s = run.times_s["intended_at_ns"]
    hits = int(answered.sum())
    deff = correlation_of(run.ok[mask], at_s[mask]).design_effect
    results = {"success, %": _figure(hits / sent, share_interval(hits / deff, sent / deff), 100)}
    for name in ("connect", *_LATENCIES):
        values = _values(run, name)
        known = answered & ~np.isnan(values)
        if known.sum() < _MIN_REQUESTS:
            continue
        chosen, when = values[known], at_s[known]
        results[f"{name} mean, ms"] = _figure(float(chosen.mean()), mean_interval(chosen, when))
        ordered = np.sort(chosen)
        for label, q in _QUANTILES.items():
            value = quantile(ordered, q)
            effect = correlation_of_latencies(chosen, chosen <= value, when, q).design_effect
            results[f"{name} {label}, ms"] = _figure(value, quantile_interval(ordered, q, effect))
    windows = load_windows(run)
    if windows and hits:
        for label, what in (("requests/s", "requests"), ("output tokens/s", "output_tokens")):
            if what != "requests" and np.isnan(run.numbers[what][answered]).any():
                continue  # a rate of known counts only would drop where a server reports no usage
            rate = arrived(run, what, of_group(run, group) & run.ok, windows)
            results[label] = _figure(rate.per_s, rate.interval)
    return results


def _figure(value: float, interval: Interval, factor: float = 1.0) -> Figure:
    bounds = scaled(interval, factor)
    return Figure(value * factor, bounds.low, bounds.high)


def _bounds(pair: _Pair, alpha_low: float, alpha_high: float) -> tuple[float | None, float | None]:
    """One-sided bounds of new minus old, from the distances to the bounds of each (Zou and Donner)."""
    old, new = pair.old, pair.new
    step = new.value - old.value
    below = _distance(_off(new.low, new), _off(old.high, old), pair)
    above = _distance(_off(new.high, new), _off(old.low, old), pair)
    low = None if below is None else step - below * _points(alpha_low)
    return low, None if above is None else step + above * _points(alpha_high)


def _off(bound: float | None, figure: Figure) -> float | None:
    return None if bound is None else abs(bound - figure.value)


def _distance(new: float | None, old: float | None, pair: _Pair) -> float | None:
    """Distance to a bound of the difference, from those of the two figures.

    What both runs share cancels but for its scale; what is left of each is independent. With equal distances up
    and down this is Zou's formula for correlated figures (2007), whose bounds would otherwise meet from opposite sides.
    """
    if new is None or old is None:
        return None
    shared = pair.shared if pair.bounded else 0.0
    scales = [(figure.high - figure.low) / 2 for figure in (pair.new, pair.old)
              if figure.high is not None and figure.low is not None] if shared else [0.0, 0.0]  # fmt: skip
    return math.sqrt((1 - shared) * (new**2 + old**2) + shared * (scales[0] - scales[1]) ** 2)


def _points(alpha: float) -> float:
    """How much wider bounds at another level than 5 % are, by the normal law."""
    return NormalDist().inv_cdf(1 - alpha) / NORMAL_POINT


def _decided(pair: _Pair, policy: Policy, count: int, figures: int, error_ms: float) -> Difference:
    """PASS where the bound for the worse is inside the margin, FAIL where the other, corrected one is beyond it."""
    metric, old, new = pair.metric, pair.old, pair.new
    margin = policy.margin(metric, old.value)
    assert margin is not None, "figures that decide have a margin"
    rises = metric.endswith("ms")
    better, worse = _ALPHA / figures, _ALPHA
    low, high = _bounds(pair, better if rises else worse, worse if rises else better)
    if rises and low is not None and high is not None:
        low, high = low - error_ms, high + error_ms
    least, most = (low, high) if rises else (_negative(high), _negative(low))
    change = (new.value - old.value) * (1 if rises else -1)
    if most is not None and most <= margin:
        verdict = Verdict.PASS
    elif least is not None and least > margin:
        verdict = Verdict.FAIL
    else:
        verdict = Verdict.INCONCLUSIVE
    more = None
    if verdict is Verdict.INCONCLUSIVE and most is not None and least is not None and change != margin:
        # Bounds narrow with the root of the number of requests.
        distance = most - change if change < margin else change - least
        more = max(1, math.ceil(count * ((distance / (margin - change)) ** 2 - 1)))
        more = more if more <= _MAX_MORE * count else None
    return Difference(
        pair.group, metric, old.value, new.value, low, high, margin, verdict, more,
        significant=_excludes_zero(low, high), alarm=verdict is Verdict.FAIL,
        unclear=verdict is Verdict.INCONCLUSIVE,
    )  # fmt: skip


def _explored(pair: _Pair, policy: Policy, figures: int) -> Difference:
    metric, old, new = pair.metric, pair.old, pair.new
    alpha = _ALPHA / 2 / max(1, figures)
    low, high = _bounds(pair, alpha, alpha)
    significant = _excludes_zero(low, high)
    margin = policy.margin(metric, old.value)
    change = (new.value - old.value) * (1 if metric.endswith("ms") else -1)
    beyond = significant and margin is not None and change > margin
    return Difference(pair.group, metric, old.value, new.value, low, high, significant=significant, unclear=beyond)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _excludes_zero(low: float | None, high: float | None) -> bool:
    return (low is not None and low > 0) or (high is not None and high < 0)
