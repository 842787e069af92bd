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


class GridTally:
    """Collects gaps chunk by chunk and detects their clock grid."""

    def __init__(self) -> None:
        self._gaps = self._zero = self._moving = 0
        self._on_grid = np.zeros(len(_CANDIDATES_MS), dtype=np.int64)

    def add(self, gaps_ns: npt.NDArray[np.int64]) -> None:
        """More gaps between neighbouring rows, ns, none negative."""
        moving = gaps_ns[gaps_ns > 0]
        self._gaps += len(gaps_ns)
        self._zero += len(gaps_ns) - len(moving)
        self._moving += len(moving)
        for index, step_ms in enumerate(_CANDIDATES_MS):
            step = step_ms * NS_PER_MS
            offset = np.abs(moving - np.round(moving / step) * step)
            self._on_grid[index] += int(((offset <= _NEAR * step) & (moving > step / 2)).sum())

    def result(self) -> int | None:
        """The largest step that at least 95 % of the non-zero gaps are multiples of, ns.

        None under 50 gaps, and unless at least 1 % of them are zero: times that merely have few
        digits are no grid.
        """
        if self._gaps < _MIN_GAPS or self._moving == 0 or self._zero / self._gaps < _SHARE_OF_ZERO_GAPS:
            return None
        for step_ms, on_grid in zip(_CANDIDATES_MS, self._on_grid, strict=True):
            if on_grid / self._moving >= _SHARE_ON_GRID:
                return step_ms * NS_PER_MS
        return None


def detect_grid_ns(sorted_at_ns: npt.NDArray[np.int64]) -> int | None:
    """The clock grid of sorted times, ns; None where there is none."""
    tally = GridTally()
    tally.add(np.diff(sorted_at_ns))
    return tally.result()


def dequantise(at_ns: npt.NDArray[np.int64], grid_ns: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Add a uniform draw from [0, grid) to each time."""
    return at_ns + rng.integers(0, grid_ns, size=len(at_ns), dtype=np.int64)
