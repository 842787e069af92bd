"""How long must a run be? The requests that each rule needs before it can come to a verdict. Pure."""

import math
from collections.abc import Mapping

import msgspec

from surgeproof.slo.correlation import MIN_EFFECTIVE_BLOCKS, Correlation
from surgeproof.slo.intervals import requests_needed, requests_without_miss
from surgeproof.slo.rules import FLOWS, GPU_METRICS, LATENCIES, RATES, Objectives, Rule

_MIN_FOR_A_MEAN = 80
_GAP_BLOCKS_MINUTES = 1.5  # gaps are judged by eight blocks of ten seconds


class Need(msgspec.Struct, frozen=True):
    """What one rule needs.

    Attributes:
        intervals: independent observations when none misses: a p99 needs 299.
        at_best: requests of the class that hold so many, by their correlation and declared stalls.
        likely: requests when half as many miss as may; None where that has no meaning.
        minutes: to send `likely` (or `at_best`) at the class's rate, and at least 8 times as long as requests are
            alike; None where nothing tells the time.
        correlation_s: over how long requests are alike; None where no run or profile told.
    """

    request_class: str
    rule: str
    intervals: int
    at_best: int
    likely: int | None
    minutes: float | None
    correlation_s: float | None = None


Correlations = Mapping[tuple[str, str], Correlation]
"""By class and text of the rule."""


def needs(
    objectives: Objectives,
    rate_per_s: float | None,
    shares: dict[str, float],
    correlations: Correlations | None = None,
) -> list[Need]:
    """What every rule needs.

    Args:
        objectives: the rules.
        rate_per_s: requests a second of the whole run, where it is known.
        shares: weight of each class in the mix, in any scale.
        correlations: how alike requests were in an earlier run, or are behind a simulated server.
    """
    total = sum(shares.values())
    results = []
    for name, rule in objectives:
        share = 1.0 if name == "all" else shares.get(name, 0.0) / total
        correlation = (correlations or {}).get((name, rule.text))
        results.append(_need(name, rule, rate_per_s * share if rate_per_s is not None else None, correlation))
    return results


def _need(name: str, rule: Rule, rate_per_s: float | None, correlation: Correlation | None) -> Need:
    share = share_needed(rule)
    if share is None:
        intervals, likely = _MIN_FOR_A_MEAN, None
    else:
        intervals = requests_without_miss(share)
        likely = requests_needed((1 + share) / 2 * 1e6, 1e6, share)
    # Requests within one stall, or near in time where they are alike, count as one.
    effect = max(1.0, rule.stall_s * (rate_per_s or 0.0), correlation.design_effect if correlation else 1.0)
    at_best, enough = math.ceil(intervals * effect), math.ceil((likely or intervals) * effect)
    lengths_s = [(likely or intervals) * rule.stall_s]
    if rate_per_s:
        lengths_s.append(enough / rate_per_s)
    length_s = correlation.correlation_s if correlation else None
    if length_s is not None and share is not None:
        lengths_s.append(MIN_EFFECTIVE_BLOCKS * length_s)
    if rule.metric == "inter_chunk" and max(lengths_s) > 0:
        lengths_s.append(_GAP_BLOCKS_MINUTES * 60)
    minutes = math.ceil(max(lengths_s) / 6) / 10 if max(lengths_s) > 0 else None
    likely = None if likely is None else enough
    return Need(name, rule.text, intervals, at_best, likely, minutes, None if length_s is None else round(length_s, 1))


def share_needed(rule: Rule) -> float | None:
    """The share of requests that must be good for a rule to hold; None for means, extremes and rates."""
    if rule.metric in GPU_METRICS:
        return None
    if rule.quantile is not None:
        return rule.quantile
    if rule.metric in LATENCIES | RATES | FLOWS:
        return None
    condition = rule.conditions[0]
    share = 1 - condition.bound if condition.upper else condition.bound
    return share if 0 < share < 1 else None
