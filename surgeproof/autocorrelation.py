"""Over how many steps a series stays alike: its integrated autocorrelation time. Pure.

The judge takes it of blocks of a run, profiles take it of their rates; both mean the same by it.
"""

import math

import numpy as np
import numpy.typing as npt

_NOISE = 5.0
"""The sum of autocorrelations must exceed so many times 1 / sqrt(steps); its first pair has a standard error of 2."""


def autocorrelation_time(series: npt.NDArray[np.float64]) -> float:
    """Steps that one independent step takes: 1 plus twice the sum of the autocorrelations; at least 1.

    The sum ends where a pair of neighbouring lags is no longer positive, and pairs may not grow (Geyer's initial
    positive sequence, Statistical Science 7, 1992). A sum within two and a half standard errors of that of
    independent steps is taken as theirs.
    """
    count = len(series)
    centred = series - series.mean()
    spectrum = np.fft.rfft(centred, 2 * count)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[:count] / count
    if covariance[0] <= 0:
        return 1.0
    total, smallest = -covariance[0], math.inf
    for lag in range(0, count - 1, 2):
        pair = covariance[lag] + covariance[lag + 1]
        if pair <= 0:
            break
        smallest = min(pair, smallest)
        total += 2 * smallest
    time = float(total / covariance[0])
    return time if time > 1 + _NOISE / math.sqrt(count) else 1.0
