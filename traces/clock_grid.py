"""Finds and undoes the clock grid of a collector that rounds its time stamps. Pure numpy.

Published traces carry such grids: Mooncake's time stamps lie 3 s apart with up to 28 requests on
one. Replayed as they are, the collector's rounding becomes a burst that never happened (dispersion
at 1 s of 7.9 where the spread times give 1.05).
"""

import numpy as np
import numpy.typing as npt

from surgeproof.records import NS_PER_MS

_CANDIDATES_MS = (
    60_000, 30_000, 20_000, 15_000, 12_000, 10_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000,
    500, 250, 200, 100, 50, 20, 10, 5, 2, 1,
)  # fmt: skip
_NEAR = 0.01
_SHARE_ON_GRID = 0.95
_SHARE_OF_ZERO_GAPS = 0.01
_MIN_GAPS = 50


def detect_grid_ns(sorted_at_ns: npt.NDArray[np.int64]) -> int | None:
    """The largest step that at least 95 % of the non-zero gaps are multiples of, ns.

    None under 50 gaps, and unless at least 1 % of them are zero: times that merely have few digits
    are no grid.
    """
    gaps = np.diff(sorted_at_ns)
    moving = gaps[gaps > 0]
    if len(gaps) < _MIN_GAPS or len(moving) == 0 or np.mean(gaps == 0) < _SHARE_OF_ZERO_GAPS:
        return None
    for step_ms in _CANDIDATES_MS:
        step = step_ms * NS_PER_MS
        offset = np.abs(moving - np.round(moving / step) * step)
        on_grid = (offset <= _NEAR * step) & (moving > step / 2)
        if np.mean(on_grid) >= _SHARE_ON_GRID:
            return step
    return None


def dequantise(at_ns: npt.NDArray[np.int64], grid_ns: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Add a uniform draw from [0, grid) to each time."""
    return at_ns + rng.integers(0, grid_ns, size=len(at_ns), dtype=np.int64)
