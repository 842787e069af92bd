"""PASS, FAIL or INCONCLUSIVE of a sample, with the reason in a sentence: from counts, or from an interval. Pure.

A share is shown, or missed, with 95 % confidence by the number of independent requests that it stands on; what was not
measured, what failed, and what the client or a proxy may have caused can take a decision back.
"""

import math

import numpy as np

from surgeproof.records import Verdict
from surgeproof.results import Interval
from surgeproof.slo.correlation import MIN_EFFECTIVE_BLOCKS, Correlation
from surgeproof.slo.intervals import (
    CONFIDENCE,
    requests_needed,
    requests_without_miss,
    shown_at_least,
    shown_below,
)
from surgeproof.slo.rules import (
    Rule,
)

_CORRELATED = 2.0
"""From this design effect on, a reason speaks of correlation."""


def decide_share(
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


def decide_value(rule: Rule, interval: Interval) -> tuple[Verdict, str]:
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


def undecided_by(unknown: int, metric: str, decision: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """A decision that values which were not measured could change."""
    responses = "1 response has" if unknown == 1 else f"{unknown} responses have"
    return Verdict.INCONCLUSIVE, f"{decision[1]}; {responses} no {metric}; the verdict could change"


def unless_failed(rule: Rule, failed: int, decision: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """A failed request misses any bound on a mean or a maximum."""
    if failed and rule.aggregate != "min" and decision[0] is not Verdict.FAIL:
        return Verdict.FAIL, f"{failed} requests failed, so no latency bound on the {rule.aggregate} can be met"
    return decision


def unless_client(
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


def holds_for_all(verdict: Verdict, hits: float, n: float, unknown: float, share: float) -> bool:
    """Whether a verdict is the same for any values of the requests without a figure."""
    if verdict is Verdict.PASS:
        return shown_at_least(hits, n + unknown, share)
    return verdict is not Verdict.FAIL or shown_below(hits + unknown, n + unknown, share)


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
