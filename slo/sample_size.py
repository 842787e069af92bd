"""How long must a run be? The requests that each rule needs before it can come to a verdict. Pure."""

import math

import msgspec

from surgeproof.slo.intervals import requests_needed, requests_without_miss
from surgeproof.slo.rules import FLOWS, GPU_METRICS, LATENCIES, RATES, Objectives, Rule

_MIN_FOR_A_MEAN = 80
_GAP_BLOCKS_MINUTES = 1.5  # gaps are judged by eight blocks of ten seconds


class Need(msgspec.Struct, frozen=True):
    """What one rule needs.

    Attributes:
        at_best: requests of the class when none misses; with declared stalls, those of as many stalls' lengths.
        likely: requests when half as many miss as may; None where that has no meaning.
        minutes: to send `likely` (or `at_best`) at the class's rate; None without one, unless stalls are declared.
    """

    request_class: str
    rule: str
    at_best: int
    likely: int | None
    minutes: float | None


def needs(objectives: Objectives, rate_per_s: float | None, shares: dict[str, float]) -> list[Need]:
    """What every rule needs.

    Args:
        objectives: the rules.
        rate_per_s: requests a second of the whole run, where it is known.
        shares: weight of each class in the mix, in any scale.
    """
    total = sum(shares.values())
    results = []
    for name, rule in objectives:
        share = 1.0 if name == "all" else shares.get(name, 0.0) / total
        results.append(_need(name, rule, rate_per_s * share if rate_per_s is not None else None))
    return results


def _need(name: str, rule: Rule, rate_per_s: float | None) -> Need:
    share = share_needed(rule)
    if share is None:
        at_best, likely = _MIN_FOR_A_MEAN, None
    else:
        at_best = requests_without_miss(share)
        likely = requests_needed((1 + share) / 2 * 1e6, 1e6, share)
    # Requests within one declared stall count as one: what is needed are stretches of its length.
    stretches = likely or at_best
    stretch_s = max(1 / rate_per_s if rate_per_s else 0.0, rule.stall_s)
    per_stretch = max(1.0, rule.stall_s * (rate_per_s or 0.0))
    at_best, likely = math.ceil(at_best * per_stretch), None if likely is None else math.ceil(likely * per_stretch)
    minutes = math.ceil(stretches * stretch_s / 6) / 10 if stretch_s else None
    if minutes is not None and rule.metric == "inter_chunk":
        minutes = max(minutes, _GAP_BLOCKS_MINUTES)
    return Need(name, rule.text, at_best, likely, minutes)


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
