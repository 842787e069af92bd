"""How much more work an engine does than an ideal one, from an agent's counters beside a run. Pure.

Padding, copies, prompts computed twice or attention without a fused kernel make an engine move and
compute more than its model needs, prompts by another factor than decode steps. Both factors are searched
where the estimated SM and DRAM shares come nearest to the counters, window by window.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from surgeproof.gpu.datasheets import Gpu
from surgeproof.gpu.sm_estimate import Fit, Work, estimate

_FACTORS = np.geomspace(0.5, 32.0, 37)
_MIN_WINDOWS = 5


class Window(NamedTuple):
    """One stretch of a run: what was asked, and what the counters said, in per cent."""

    decode: Work
    prefill: Work
    length_s: float
    busy_share: float
    sm_pct: float
    dram_pct: float


def fit_to_counters(windows: Sequence[Window], gpu: Gpu, fit: Fit | None = None, gpus: int = 1) -> Fit | None:
    """The fit with both factors; None under five windows.

    Its half widths become those that hold nine tenths of the windows, where that is wider than before.
    """
    if len(windows) < _MIN_WINDOWS:
        return None
    fit = fit or Fit()
    errors = {
        (decode, prefill): float(np.abs(_errors(windows, gpu, scaled(fit, decode, prefill), gpus)).mean())
        for decode in _FACTORS
        for prefill in _FACTORS
    }
    decode, prefill = min(errors, key=errors.__getitem__)
    result = scaled(fit, float(decode), float(prefill))
    busy = np.array([max(window.busy_share, 0.05) for window in windows])
    sm, dram = (np.quantile(np.abs(column) / 100 / busy, 0.9) for column in _errors(windows, gpu, result, gpus).T)
    return msgspec.structs.replace(
        result, sm_half=max(fit.sm_half, float(sm)), dram_half=max(fit.dram_half, float(dram))
    )


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
