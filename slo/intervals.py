"""Confidence for shares and quantiles: exact binomial bounds, widened for clustering in time. Pure.

A bound holds with 95 % confidence on its own side (one-sided): an objective of 99.99 % is shown to
hold by 29,956 requests without a miss, since 0.9999^29956 < 0.05. Bounds of a share are Clopper and
Pearson's (Biometrika 26, 1934); those of a quantile are the order statistics that follow from them.
Requests that arrive together are alike, so counts are first divided by the design effect of
`slo/correlation.py`.
"""

import functools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from surgeproof.results import Interval

CONFIDENCE = 0.95
_ALPHA = 1 - CONFIDENCE
NORMAL_POINT = NormalDist().inv_cdf(CONFIDENCE)
"""95 % point of the normal law."""

Floats = npt.NDArray[np.float64]


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by Lentz's continued fraction.

    P(Binomial(n, x) >= k) is I_x(k, n - k + 1). Relative error below 1e-10 (tested against SciPy).
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_cdf(1 - x, b, a)
    return x * (1 - x) * _beta_density(x, a, b) / a * _beta_fraction(x, a, b)


def _beta_density(x: float, a: float, b: float) -> float:
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)
    return math.exp(logarithm)


def _beta_fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d or tiny)
    value = d
    # Convergence takes about sqrt(max(a, b)) steps; a million requests need some thousands.
    for m in range(1, 200_000):
        top = a + 2 * m
        even = m * (b - m) * x / ((top - 1) * top)
        d = 1.0 / (1.0 + even * d or tiny)
        c = 1.0 + even / c or tiny
        value *= c * d
        odd = -(a + m) * (a + b + m) * x / (top * (top + 1))
        d = 1.0 / (1.0 + odd * d or tiny)
        c = 1.0 + odd / c or tiny
        step = c * d
        value *= step
        if -1e-14 < step - 1.0 < 1e-14:
            break
    return value


def beta_quantile(level: float, a: float, b: float) -> float:
    """Where I_x(a, b) reaches `level`: Newton's steps, halving where one leaves the bracket."""
    a, b = float(a), float(b)  # NumPy warns of a density that underflows, where inf is what is meant
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(100):
        error = beta_cdf(x, a, b) - level
        low, high = (x, high) if error < 0 else (low, x)
        density = _beta_density(x, a, b)
        stepped = x - error / density if density > 0 else low
        following = stepped if low < stepped < high else (low + high) / 2
        if abs(following - x) <= 1e-15 + 1e-13 * x:
            return following
        x = following
    return x


def share_interval(hits: float, count: float) -> Interval:
    """Clopper-Pearson bounds of a share; each end holds with 95 % confidence.

    Args:
        hits: successes; need not be whole after a design effect.
        count: trials.
    """
    if count <= 0:
        return Interval(None, None)
    low = 0.0 if hits <= 0 else beta_quantile(_ALPHA, hits, count - hits + 1)
    high = 1.0 if hits >= count else beta_quantile(1 - _ALPHA, hits + 1, count - hits)
    return Interval(low, high)


def scaled(interval: Interval, factor: float) -> Interval:
    """Bounds of a figure times a positive factor."""
    low, high = interval.low, interval.high
    return Interval(None if low is None else low * factor, None if high is None else high * factor)


def shown_at_least(hits: float, count: float, share: float) -> bool:
    """Whether the true share is at least `share` with 95 % confidence."""
    return hits > 0 and beta_cdf(share, hits, count - hits + 1) <= _ALPHA


def shown_below(hits: float, count: float, share: float) -> bool:
    """Whether the true share is under `share` with 95 % confidence."""
    return hits < count and 1 - beta_cdf(share, hits + 1, count - hits) <= _ALPHA


def quantile(sorted_values: Floats, q: float) -> float:
    """The order statistic at rank ceil(q n), from ascending values."""
    return float(sorted_values[quantile_rank(len(sorted_values), q) - 1])


def quantile_rank(count: int, q: float) -> int:
    """Rank of the order statistic, from 1, that is the q-quantile of `count` values."""
    return max(math.ceil(q * count - 1e-9), 1)


def quantile_interval(sorted_values: Floats, q: float, deff: float = 1.0) -> Interval:
    """Order-statistic bounds of a quantile; an end that the sample is too small for is None."""
    count = len(sorted_values)
    effective = count / deff

    def at(rank: int) -> float:
        return float(sorted_values[rank - 1])

    high = _first_rank(count, lambda k: shown_at_least(k / deff, effective, q))
    # The quantile lies at or above rank l when l - 1 values below it are too few to be likely.
    low = _first_rank(count, lambda k: not shown_below(k / deff, effective, q))
    low_is_shown = low is not None and shown_below((low - 1) / deff, effective, q)
    return Interval(
        at(low) if low is not None and low_is_shown else None,
        at(high) if high is not None else None,
    )


def _first_rank(count: int, holds: Callable[[int], bool]) -> int | None:
    """Smallest rank in 1..count for which a monotone condition holds."""
    if count == 0 or not holds(count):
        return None
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


@functools.lru_cache(1024)
def t_quantile(freedom: float) -> float:
    """95 % point of Student's t, from its beta form: freedom / (freedom + t^2) is Beta(freedom / 2, 1 / 2)."""
    x = beta_quantile(2 * _ALPHA, freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - x) / x)


def requests_without_miss(share: float) -> int:
    """Requests without a single miss that show a share to hold with 95 % confidence."""
    return math.ceil(math.log(_ALPHA) / math.log(share)) if 0 < share < 1 else 1


def requests_needed(hits: float, count: float, share: float, limit: int = 10**9) -> int | None:
    """Requests in all that would show `share` at the observed rate of misses; None if none would."""
    if count <= 0 or hits / count <= share:
        return None
    rate = hits / count
    low, high = 1, max(int(count), 2)
    while not shown_at_least(rate * high, high, share):
        high *= 2
        if high > limit:
            return None
    while low < high:
        middle = (low + high) // 2
        if shown_at_least(rate * middle, middle, share):
            high = middle
        else:
            low = middle + 1
    return low
