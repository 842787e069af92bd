"""Rates over days: known figures of published series, and what stitching must keep."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surgeproof.errors import TraceError
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.inspection import dispersion
from surgeproof.traces.profile import load_profile
from surgeproof.traces.rates import Diurnal, RateSeries, draw_series, fit_diurnal, read_rate_series, stitch


@pytest.mark.parametrize(
    ("name", "harmonics", "r2"),
    [("m-large", 4, 0.34), ("m-small", 4, 0.55), ("deepseek-r1", 3, 0.60), ("mm-image", 3, 0.58)],
)
def test_published_series_have_their_known_daily_shape(name: str, harmonics: int, r2: float, real_trace: Any) -> None:
    """Share of the log rate's variance that daily (and, over two weeks, weekly) harmonics explain."""
    series = read_rate_series(real_trace(f"servegen_rates_{name}.csv"))
    assert series.step_s == 600
    assert fit_diurnal(series, harmonics).r2 == pytest.approx(r2, abs=0.02)


def test_a_drawn_series_is_fitted_back() -> None:
    shape = Diurnal(50.0, 600.0, ((0.4, -0.2), (0.1, 0.05)), (), 0.8, 0.1, 0.0)
    series = draw_series(shape, 10.0, np.random.default_rng(1))
    assert np.mean(series.rates_per_s) == pytest.approx(50.0)
    found = fit_diurnal(series, 2)
    assert np.array(found.daily) == pytest.approx(np.array(shape.daily), abs=0.05)
    assert (found.phi, found.sigma) == (pytest.approx(0.8, abs=0.05), pytest.approx(0.1, abs=0.01))


def test_stitching_keeps_the_series_above_and_the_bursts_below() -> None:
    """Hours follow the series; at one second the dispersion is the short-time model's at that rate."""
    profile = load_profile("azure-code")
    series = RateSeries(600.0, tuple([2.58] * 18 + [7.74] * 18))
    made = stitch(profile, series, "x", np.random.default_rng(0))
    assert made.arrivals.span_s == 36 * 600
    means = np.array(made.arrivals.rates_per_s).reshape(36, 10).mean(axis=1)
    assert means == pytest.approx(np.array(series.rates_per_s), rel=1e-5)
    rng = np.random.default_rng(1)
    at_s = simulate(made.arrivals, rng)
    first = at_s[at_s < 18 * 600]
    short = [dispersion(simulate(profile.arrivals, np.random.default_rng(seed)), 1.0) or 0 for seed in range(6)]
    assert dispersion(first, 1.0) == pytest.approx(np.mean(short), rel=0.35)
    assert len(made.draw_lengths(at_s, rng)) == len(at_s)


def test_lengths_of_a_stitched_window_are_those_of_the_window_it_was_taken_from() -> None:
    profile = load_profile("azure-conv")
    made = stitch(profile, RateSeries(600.0, (5.0, 5.0, 5.0)), "x", np.random.default_rng(3))
    assert made.marks.rows is not None
    windows = np.array(made.arrivals.rates_per_s).reshape(3, 10)
    for block, rows in zip(windows, np.array(made.marks.rows).reshape(3, 10), strict=True):
        taken = np.array(profile.arrivals.rates_per_s)[rows % len(profile.arrivals.rates_per_s)]
        assert block / block.mean() == pytest.approx(taken / taken.mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "header must name t_s and rate_rps"),
        ("t_s,rate_rps\n0,1\n600,x\n", "row 3"),
        ("t_s,rate_rps\n0,1\n600,1\n700,1\n", "equal steps"),
        ("t_s,rate_rps\n0,1\n600,-1\n", "negative"),
    ],
)
def test_what_is_no_series_is_refused_with_its_place(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=problem):
        read_rate_series(path)


def test_a_step_that_the_windows_do_not_fill_is_refused() -> None:
    with pytest.raises(TraceError, match="not a whole number"):
        stitch(load_profile("azure-conv"), RateSeries(90.0, (1.0, 1.0)), "x", np.random.default_rng(0))
