"""Two runs of one plan, request by request: what both runs share cancels in their difference. Pure.

A long request is slow in both runs, and a burst is one in both. The variance of a difference is less by
twice their covariance (Zou, Psychological Methods 12, 2007, for bounds of dependent figures).
"""

import math

import numpy as np

from surgeproof.slo.intervals import NORMAL_POINT, Floats
from surgeproof.slo.measured import Mask, Measured

_BLOCKS = 64


def shared_correlation(
    before: Measured, after: Measured, deviations: tuple[Floats, Floats], chosen: tuple[Mask, Mask]
) -> float:
    """A lower bound of the correlation of a figure between two runs of one plan, from 0 to 1.

    It is that of sums over blocks of the plan, so that it holds what neighbours share, and taken from below
    with 95 % confidence (Fisher's transformation): too large a value would make bounds too narrow.

    Args:
        before: the first run.
        after: the other.
        deviations: by how much each request moves the figure, in each run; 0 for those that do not.
        chosen: the requests that count, in each run.
    """
    indexes = [run.columns.integers("plan_index") for run in (before, after)]
    used = np.concatenate([index[mask] for index, mask in zip(indexes, chosen, strict=True)])
    if len(used) < 2 * _BLOCKS:
        return 0.0
    edges = np.quantile(used, np.linspace(0, 1, _BLOCKS + 1)[1:-1])
    sums = [
        np.bincount(np.searchsorted(edges, index[mask]), weights=values[mask], minlength=_BLOCKS)
        for index, mask, values in zip(indexes, chosen, deviations, strict=True)
    ]
    if min(part.std() for part in sums) <= 0:
        return 0.0
    left, right = ((part - part.mean()) / part.std() for part in sums)
    correlation = min(float((left * right).mean()), 1 - 1e-9)
    if correlation <= 0:
        return 0.0
    shown = math.tanh(math.atanh(correlation) - NORMAL_POINT / math.sqrt(_BLOCKS - 3))
    # Thirty requests beyond a p99 that are the same in both runs do not show that all would be (rule of three).
    few = min(_participation(values[mask]) for values, mask in zip(deviations, chosen, strict=True))
    return max(0.0, min(shown, 1 - 3 / max(few, 3.0)))


def _participation(deviations: Floats) -> float:
    """How many requests carry the variance: all where they deviate alike, the slow ones of a percentile."""
    squares = deviations**2
    return float(squares.sum() ** 2 / (squares**2).sum())
