"""How much a series of requests says, when requests that arrive together are alike. Pure.

A design effect (Kish 1965) is the variance of a share over that of independent requests. It is taken
from blocks of time and the correlation between them (Geyer's initial positive sequence, Statistical
Science 7, 1992), from how exceedances of a high level cluster (Ferro and Segers, Journal of the Royal
Statistical Society B 65, 2003), and widened by Student's t for the number of blocks that are
independent in effect (Korn and Graubard, Survey Methodology 24, 1998).
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.autocorrelation import autocorrelation_time
from surgeproof.slo.intervals import NORMAL_POINT, Floats, quantile_rank, t_quantile
from surgeproof.slo.measured import Mask

MIN_EFFECTIVE_BLOCKS = 8
"""Under so many independent stretches of time a run does not show what its next hour looks like."""
MIN_REQUESTS = 80
_REQUESTS_PER_BLOCK = 10
_MIN_BLOCKS = 24
_MAX_BLOCKS = 256
_NOISE = 2.0
"""A clustering within so many standard errors of none is taken as none."""
_HIGH = 0.9
"""The level whose exceedances show clusters where the bound itself is seldom missed."""


class Correlation(msgspec.Struct, frozen=True):
    """What correlation in time leaves of a sample.

    Attributes:
        design_effect: how many requests say as much as one independent one; at least 1.
        effective_blocks: independent stretches of time in the sample; None where it is too small to tell.
        span_s: from the first request to the last.
    """

    design_effect: float = 1.0
    effective_blocks: float | None = None
    span_s: float = 0.0

    @property
    def too_few_blocks(self) -> bool:
        """Whether the sample is too short, for its correlation, to show that a bound holds."""
        return self.effective_blocks is not None and self.effective_blocks < MIN_EFFECTIVE_BLOCKS

    @property
    def correlation_s(self) -> float | None:
        """Length of one independent stretch, s."""
        return self.span_s / self.effective_blocks if self.effective_blocks else None


class Blocks(msgspec.Struct, frozen=True):
    """Equal blocks of time: the number of each request's block, requests in each, and the time they span."""

    numbers: npt.NDArray[np.int64]
    sizes: Floats
    span_s: float

    def sums(self, values: Floats) -> Floats:
        """Total of the values in each block."""
        totals: Floats = np.bincount(self.numbers, weights=values, minlength=len(self.sizes)).astype(np.float64)
        return totals


def correlation_of_latencies(
    latencies: Floats, met: Mask, at_s: Floats, share: float, stall_s: float = 0.0
) -> Correlation:
    """Correlation that matters for `share` of the latencies to meet a bound.

    Clusters show in three series: misses of the bound, exceedances of the observed quantile, and those
    of the 90th percentile, which are there even where nothing misses. The ranks show slow changes.

    Args:
        latencies: of each request; infinite for a failed one.
        met: whether each met the bound.
        at_s: when each was due, s.
        share: the share that is asked for, over 0 and under 1.
        stall_s: length of stalls that the server may have, s, seen or not; 0 for none declared.
    """
    blocks = blocks_of(at_s)
    if blocks is None:
        return Correlation(_stall_effect(at_s, stall_s))
    levels = [quantile_rank(len(latencies), share)]
    if share > _HIGH and len(latencies) * (1 - _HIGH) >= _REQUESTS_PER_BLOCK:
        levels.append(quantile_rank(len(latencies), _HIGH))
    ordered = np.partition(latencies, [rank - 1 for rank in levels])
    within = [latencies <= ordered[rank - 1] for rank in levels]
    effects = [_block_effect(hits, blocks) for hits in (met, *within)]
    effect = max(effect for effect, _ in effects)
    if len(levels) > 1:
        effect = max(effect, _cluster_size(~within[-1], at_s))
    independent = min(*(number for _, number in effects), _independent_blocks(_ranks(latencies), blocks))
    return _corrected(effect, independent, blocks, _stall_effect(at_s, stall_s))


def correlation_of(hits: Mask, at_s: Floats, stall_s: float = 0.0) -> Correlation:
    """Correlation of a condition that each request met or not, as in `correlation_of_latencies`."""
    blocks = blocks_of(at_s)
    if blocks is None:
        return Correlation(_stall_effect(at_s, stall_s))
    effect, independent = _block_effect(hits, blocks)
    return _corrected(effect, independent, blocks, _stall_effect(at_s, stall_s))


def blocks_of(at_s: Floats) -> Blocks | None:
    """Cut the time of a sample into blocks of about ten requests; None for fewer than 80, or for one moment."""
    if len(at_s) < MIN_REQUESTS:
        return None
    start, span = float(at_s.min()), float(at_s.max() - at_s.min())
    if span <= 0:
        return None
    count = int(np.clip(len(at_s) // _REQUESTS_PER_BLOCK, _MIN_BLOCKS, _MAX_BLOCKS))
    numbers: npt.NDArray[np.int64] = np.minimum((at_s - start) / span * count, count - 1).astype(np.int64)
    return Blocks(numbers, np.bincount(numbers, minlength=count).astype(np.float64), span)


def _block_effect(hits: Mask, blocks: Blocks) -> tuple[float, float]:
    """Design effect of a share by blocks, and how many of them are independent in effect."""
    count, number = len(hits), len(blocks.sizes)
    share = float(hits.mean())
    if not 0 < share < 1:
        return 1.0, float(number)
    residuals = blocks.sums(hits.astype(np.float64)) - share * blocks.sizes
    time = autocorrelation_time(residuals)
    independent = count * share * (1 - share)
    effect = time * float((residuals**2).sum()) / independent
    if effect < 1 + _NOISE * math.sqrt(2 / number + 1 / max(1.0, independent)):
        return 1.0, number / time
    return effect, number / time


def _independent_blocks(values: Floats, blocks: Blocks) -> float:
    residuals = blocks.sums(values) - float(values.mean()) * blocks.sizes
    return len(blocks.sizes) / autocorrelation_time(residuals)


def _cluster_size(exceeds: Mask, at_s: Floats) -> float:
    """Mean number of exceedances in a cluster, from the gaps between them (Ferro and Segers, equation 5)."""
    places = np.flatnonzero(exceeds[np.argsort(at_s, kind="stable")])
    if len(places) < _REQUESTS_PER_BLOCK:
        return 1.0
    gaps = np.diff(places).astype(np.float64)
    number = len(places) - 1
    if gaps.max() <= 2:
        index = 2 * gaps.sum() ** 2 / (number * (gaps**2).sum())
    else:
        index = 2 * (gaps - 1).sum() ** 2 / (number * ((gaps - 1) * (gaps - 2)).sum())
    size = 1 / min(1.0, max(float(index), 1 / len(places)))
    return size if size > 1 + _NOISE / math.sqrt(len(places)) else 1.0


def _ranks(values: Floats) -> Floats:
    """Mean rank of each value among all; equal values have equal ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - counts / 2)[places]
    return ranks


def _stall_effect(at_s: Floats, stall_s: float) -> float:
    """Requests in one stall: a stall of 2.5 s makes 25 requests of 10/s alike."""
    span = float(at_s.max() - at_s.min()) if len(at_s) else 0.0
    return max(1.0, len(at_s) * stall_s / span) if span > 0 else 1.0


def _corrected(effect: float, independent: float, blocks: Blocks, least: float) -> Correlation:
    """Student's t in place of the normal law where the effect is an estimate; the binomial is exact without."""
    if effect > 1 or independent < len(blocks.sizes):
        effect *= (t_quantile(max(1.0, independent - 1)) / NORMAL_POINT) ** 2
    return Correlation(max(effect, least), independent, blocks.span_s)
