"""A circuit breaker's load score over a run, and the threshold that would have opened it in time. Pure.

    score = 0.3 x requests a second + 0.4 x slope of the p99 + 0.3 x GPU memory, each from 0 to 1

Requests are taken over the run's busiest window, the slope over the steepest one, memory as a share.
Without GPU samples the other two weigh 3 : 4.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.slo.measured import Measured

_WEIGHTS = (0.3, 0.4, 0.3)
_WINDOWS = 30
_MIN_REQUESTS = 5

Floats = npt.NDArray[np.float64]


class Breaker(msgspec.Struct, frozen=True):
    """The score of each window (start in seconds, score), and the suggested threshold.

    The threshold is the lowest score seen in or just before a window whose p99 missed the bound, None
    where none did; `false_alarms` counts the other windows that reach it too.
    """

    windows: tuple[tuple[float, float], ...]
    threshold: float | None
    false_alarms: int = 0


def breaker(measured: Measured, p99_bound_ms: float, gpu_memory_bytes: float | None = None) -> Breaker:
    """Score a run.

    Args:
        measured: the run.
        p99_bound_ms: upper bound on the first-token p99.
        gpu_memory_bytes: memory of a GPU beside the run; None where it was not sampled.
    """
    at_s = measured.times_s["intended_at_ns"]
    ttft = measured.latency_ms("ttft")
    mask = measured.judged
    if int(mask.sum()) < _MIN_REQUESTS:
        return Breaker((), None)
    span = max(float(at_s[mask].max()), 1e-9)
    window = np.minimum((at_s / span * _WINDOWS).astype(np.int64), _WINDOWS - 1)
    counts = np.bincount(window[mask], minlength=_WINDOWS).astype(np.float64)
    # A failed request counts as an infinite wait; a window without requests repeats the one before.
    waited = np.where(measured.ok, ttft, np.inf)
    by_window = [waited[mask & (window == number)] for number in range(_WINDOWS)]
    p99 = np.minimum(_filled(np.array([_p99(values) for values in by_window])), 2 * p99_bound_ms)
    slopes = np.maximum(np.diff(p99, prepend=p99[0]), 0.0)
    parts = [counts / max(counts.max(), 1.0), slopes / max(float(slopes.max()), 1e-9)]
    weights = list(_WEIGHTS[:2])
    memory = _memory_bytes(measured, span)
    if memory is not None and gpu_memory_bytes:
        parts.append(memory / gpu_memory_bytes)
        weights.append(_WEIGHTS[2])
    scores = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights)
    bad = np.flatnonzero(p99 > p99_bound_ms)
    around = sorted({number for index in bad.tolist() for number in (max(0, index - 1), index)})
    threshold = min((float(scores[number]) for number in around), default=None)
    others = np.delete(scores, around)
    false_alarms = 0 if threshold is None else int((others >= threshold).sum())
    windows = tuple((round(number * span / _WINDOWS, 3), round(float(scores[number]), 4)) for number in range(_WINDOWS))
    return Breaker(windows, None if threshold is None else round(threshold, 4), false_alarms)


def _memory_bytes(measured: Measured, span_s: float) -> Floats | None:
    """Mean memory used in each window, over all GPUs; between samples where a window has none of its own."""
    used, at_s = measured.gpu_values("memory_used_bytes")
    inside = (at_s >= 0) & (at_s <= span_s)
    if not inside.any():
        return None
    window = np.minimum((at_s[inside] / span_s * _WINDOWS).astype(np.int64), _WINDOWS - 1)
    counts = np.bincount(window, minlength=_WINDOWS)
    known = np.flatnonzero(counts)
    means = np.bincount(window, weights=used[inside], minlength=_WINDOWS)[known] / counts[known]
    return np.interp(np.arange(_WINDOWS), known, means)


def _p99(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.quantile(known, 0.99, method="inverted_cdf")) if len(known) else np.nan


def _filled(values: Floats) -> Floats:
    """Fill missing values from the previous value, or at the start from the next one."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) == 0:
        return np.zeros_like(values)
    before = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    return values[known[np.maximum(before, 0)]]
