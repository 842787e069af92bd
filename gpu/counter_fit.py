"""How much more work an engine does than an ideal one, from an agent's counters beside a run. Pure.

Padding, copies, prompts computed twice or attention without a fused kernel make an engine move and
compute more than its model needs, prompts by another factor than decode steps. Both factors are searched where the
estimated SM and DRAM shares come nearest to the counters. No engine does less than its model needs: factors begin at 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from surgeproof.gpu.datasheets import Gpu
from surgeproof.gpu.sm_estimate import Fit, Work, estimate

_FACTORS = np.geomspace(1.0, 32.0, 31)
_PARTS = 5
_CLEARLY_BETTER = 0.9
MIN_WINDOWS = 2 * _PARTS


class Window(NamedTuple):
    """One stretch of a run: what was asked, and what the counters said, in per cent."""

    decode: Work
    prefill: Work
    length_s: float
    busy_share: float
    sm_pct: float
    dram_pct: float


def fit_to_counters(windows: Sequence[Window], gpu: Gpu, fit: Fit | None = None, gpus: int = 1) -> Fit:
    """The fit with both factors; at least `MIN_WINDOWS` windows.

    A factor other than 1 is taken only where it makes the error clearly smaller: windows with few prompts say little
    about prompts. Its half widths become those that hold nine tenths of the windows, where that is wider than before.
    """
    fit = fit or Fit()

    def error(decode: float, prefill: float) -> float:
        return mean_error(windows, gpu, scaled(fit, decode, prefill), gpus)

    neither = error(1.0, 1.0)
    best_decode = min(_FACTORS, key=lambda factor: error(factor, 1.0))
    best_prefill = min(_FACTORS, key=lambda factor: error(1.0, factor))
    both = min(((d, p) for d in _FACTORS for p in _FACTORS), key=lambda pair: error(*pair))
    chosen, reached = (1.0, 1.0), neither
    for pair in ((best_decode, 1.0), (1.0, best_prefill), both):
        if error(*pair) < _CLEARLY_BETTER * reached:
            chosen, reached = (float(pair[0]), float(pair[1])), error(*pair)
    result = scaled(fit, *chosen)
    busy = np.array([max(window.busy_share, 0.05) for window in windows])
    sm, dram = (np.quantile(np.abs(column) / 100 / busy, 0.9) for column in _errors(windows, gpu, result, gpus).T)
    return msgspec.structs.replace(
        result, sm_half=max(fit.sm_half, float(sm)), dram_half=max(fit.dram_half, float(dram))
    )


def held_out_errors(windows: Sequence[Window], gpu: Gpu, gpus: int = 1) -> tuple[float, float]:
    """Mean errors in points, without and with a calibration that has not seen the windows it is judged on.

    The windows are left out in stretches, since neighbours are alike.
    """
    parts = np.array_split(np.arange(len(windows)), _PARTS)
    without, calibrated = [], []
    for part in parts:
        held_out = [windows[i] for i in part]
        others = [windows[i] for i in np.setdiff1d(np.arange(len(windows)), part)]
        without.append(mean_error(held_out, gpu, Fit(), gpus) * len(part))
        calibrated.append(mean_error(held_out, gpu, fit_to_counters(others, gpu, gpus=gpus), gpus) * len(part))
    return sum(without) / len(windows), sum(calibrated) / len(windows)


def mean_error(windows: Sequence[Window], gpu: Gpu, fit: Fit, gpus: int = 1) -> float:
    """Mean absolute error of SM and DRAM share, in points."""
    return float(np.abs(_errors(windows, gpu, fit, gpus)).mean())


def scaled(fit: Fit, decode: float, prefill: float) -> Fit:
    """The same fit with other factors."""
    return msgspec.structs.replace(fit, decode_scale=round(decode, 4), prefill_scale=round(prefill, 4))


def scaled_work(decode: Work, prefill: Work, fit: Fit) -> Work:
    """What an engine with these factors does."""
    return decode.times(fit.decode_scale).plus(prefill.times(fit.prefill_scale))


def _errors(
    windows: Sequence[Window], gpu: Gpu, fit: Fit, gpus: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    results = []
    for window in windows:
        work = scaled_work(window.decode, window.prefill, fit)
        guess = estimate(work, gpu, window.length_s, window.busy_share, fit=fit, gpus=gpus)
        results.append((guess.sm_pct - window.sm_pct, guess.dram_pct - window.dram_pct))
    return np.array(results)
