"""Confidence for means and rates: ratios of totals over blocks of time that may be correlated. Pure."""

import math

from surgeproof.autocorrelation import autocorrelation_time
from surgeproof.results import Interval
from surgeproof.slo.correlation import blocks_of
from surgeproof.slo.intervals import Floats, t_quantile

_MIN_BLOCKS = 8


def mean_interval(values: Floats, at_s: Floats) -> Interval:
    """Bounds of a mean from the means of time blocks; None ends under 80 requests."""
    blocks = blocks_of(at_s)
    return Interval(None, None) if blocks is None else ratio_interval(blocks.sums(values), blocks.sizes)


def ratio_interval(sums: Floats, weights: Floats) -> Interval:
    """Bounds of a ratio of totals from blocks (Cochran 1977, section 6.4); None ends under 8 blocks.

    The variance is multiplied by the blocks' autocorrelation time, by which their number is divided.

    Args:
        sums: numerator of each block, in the order of time; shape (blocks,).
        weights: denominator of each block.
    """
    used = weights > 0
    sums, weights = sums[used], weights[used]
    blocks = len(sums)
    if blocks < _MIN_BLOCKS:
        return Interval(None, None)
    ratio = sums.sum() / weights.sum()
    residuals = sums - ratio * weights
    time = autocorrelation_time(residuals)
    error = math.sqrt(time * blocks / (blocks - 1) * float((residuals**2).sum())) / float(weights.sum())
    half = t_quantile(max(1.0, blocks / time - 1)) * error
    return Interval(float(ratio - half), float(ratio + half))
