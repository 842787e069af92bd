"""Quantiles, mean and extremes of measured values. Pure numpy."""

import numpy as np

from surgeproof.results import Distribution
from surgeproof.slo.intervals import quantile_rank
from surgeproof.slo.measured import Floats

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def distribution(values: Floats) -> Distribution:
    """Quantiles, mean and extremes of the known values, with their number."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return Distribution(0, min=None, max=None)
    # Only these order statistics are needed: putting them in their places is faster than sorting.
    ranks = [quantile_rank(len(known), q) - 1 for q in QUANTILES]
    placed = np.partition(known, ranks)
    quantiles = {q: float(placed[rank]) for q, rank in zip(QUANTILES, ranks, strict=True)}
    return Distribution.of_quantiles(
        len(known), float(known.mean()), quantiles, (float(known.min()), float(known.max()))
    )
