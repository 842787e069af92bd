"""Calibration against counters that a known engine would show."""

import pytest

from surgeproof.gpu.counter_fit import Window, fit_to_counters, held_out_errors, scaled, scaled_work
from surgeproof.gpu.datasheets import gpu_named
from surgeproof.gpu.model_shape import ModelShape
from surgeproof.gpu.sm_estimate import Fit, decode_work, estimate, prefill_work

H200 = gpu_named("H200")
SHAPE = ModelShape(
    dense_params=7.5e9, layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ff=14336, vocab=128256
)
LOADS = 2 * [(1, 0.2), (4, 0.5), (8, 1.0), (16, 0.0), (32, 2.0), (64, 1.0), (2, 0.0), (48, 0.5)]


def windows(decode_factor: float, prefill_factor: float, off: float = 0.0) -> list[Window]:
    """One second of 20 steps and some prompts each, with the counters of an engine with these factors."""
    found = []
    for number, (batch, prompts) in enumerate(LOADS):
        decode = decode_work(SHAPE, batch, 1000).times(20)
        prefill = prefill_work(SHAPE, 1000).times(prompts)
        work = scaled_work(decode, prefill, scaled(Fit(), decode_factor, prefill_factor))
        seen = estimate(work, H200, 1.0, 0.9)
        wrong = off if number % 2 else -off
        found.append(Window(decode, prefill, 1.0, 0.9, seen.sm_pct + wrong, seen.dram_pct))
    return found


@pytest.mark.parametrize(("decode", "prefill"), [(1.0, 1.0), (2.0, 4.0), (2**1.5, 2**0.5), (2.0, 1.0)])
def test_the_factors_of_a_known_engine_are_found(decode: float, prefill: float) -> None:
    """Factors on the grid of sixths of an octave that is searched."""
    fit = fit_to_counters(windows(decode, prefill), H200)
    assert fit.decode_scale == pytest.approx(decode, rel=0.001)
    assert fit.prefill_scale == pytest.approx(prefill, rel=0.001)
    without, calibrated = held_out_errors(windows(decode, prefill), H200)
    assert calibrated == pytest.approx(0.0, abs=0.01)
    assert without > 1.0 or decode == prefill == 1.0


def test_prompts_that_say_little_keep_their_factor() -> None:
    """Windows of decode steps with hardly a prompt: an SM share that is 3 points off must not become prompt work."""
    decode_only = [
        window._replace(prefill=prefill_work(SHAPE, 10).times(0.1), sm_pct=window.sm_pct - 3.0)
        for window in windows(1.0, 1.0)
    ]
    assert fit_to_counters(decode_only, H200).prefill_scale == 1.0


def test_an_estimate_that_is_too_high_is_not_made_worse() -> None:
    """No engine does less than its model needs: the factors stay at 1, and nothing is gained."""
    lower = [window._replace(sm_pct=window.sm_pct - 8.0) for window in windows(1.0, 1.0)]
    fit = fit_to_counters(lower, H200)
    assert (fit.decode_scale, fit.prefill_scale) == (1.0, 1.0)
    without, calibrated = held_out_errors(lower, H200)
    assert calibrated == pytest.approx(without)


def test_intervals_become_as_wide_as_what_is_left() -> None:
    """Counters 18 points off either way, at a busy share of 0.9: half widths of 0.2."""
    fit = fit_to_counters(windows(1.0, 1.0, off=18.0), H200)
    assert fit.sm_half == pytest.approx(0.2, abs=0.05)
    assert fit.dram_half >= Fit().dram_half
