"""The index of dispersion of counts: how bursty arrivals are. Pure.

Variance over mean of the counts in equal windows (Cox and Lewis 1966): 1 for Poisson arrivals at any
window, more where they come in bursts. Traces, the audit and the dispatch table share this one.
"""

import numpy as np
import numpy.typing as npt


def dispersion(at_s: npt.NDArray[np.float64], window_s: float, min_windows: int = 2) -> float | None:
    """The index of sorted arrival times, over their whole windows.

    Args:
        at_s: times since the start, seconds, sorted; shape (n,).
        window_s: length of a window.
        min_windows: whole windows that are needed; None is returned under them.
    """
    windows = int(at_s[-1] // window_s) if len(at_s) else 0
    if windows < min_windows:
        return None
    return dispersion_of_counts(np.bincount((at_s / window_s).astype(np.int64), minlength=windows)[:windows])


def dispersion_of_counts(counts: npt.NDArray[np.int64]) -> float | None:
    """The index of counts in equal windows; None for fewer than two, or without any arrival."""
    if len(counts) < 2 or not counts.any():
        return None
    return float(counts.var(ddof=1) / counts.mean())
