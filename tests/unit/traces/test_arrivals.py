"""Arrival processes against their formulas."""

import numpy as np
import pytest

from surgeproof.traces import arrivals
from surgeproof.traces.arrivals import Modulator


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_constant_gaps_are_equal_and_start_at_zero() -> None:
    assert arrivals.constant(4.0, duration_s=1.0).tolist() == [0, 250_000_000, 500_000_000, 750_000_000]
    assert len(arrivals.constant(4.0, count=3)) == 3


def test_a_duration_and_a_count_both_limit() -> None:
    assert len(arrivals.constant(10.0, duration_s=1.0, count=4)) == 4
    assert len(arrivals.constant(10.0, duration_s=0.35, count=100)) == 4


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_and_variation_of_their_shape(shape: float) -> None:
    """CV^2 = 1/k, vLLM's burstiness."""
    gaps = np.diff(arrivals.gamma(50.0, shape, rng(), count=40_000)) / 1e9
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.03)


def test_a_duration_is_filled_to_its_end() -> None:
    """However slow the first draws were."""
    for seed in range(20):
        times = arrivals.gamma(5.0, 0.2, rng(seed), duration_s=200.0) / 1e9
        assert 190 < times[-1] < 200


def test_equal_seeds_give_equal_times() -> None:
    first, second = (arrivals.gamma(9.0, 1.0, rng(7), duration_s=30.0) for _ in range(2))
    assert (first == second).all()


def test_a_million_arrivals_are_sorted_integers() -> None:
    times = arrivals.gamma(1000.0, 1.0, rng(), count=1_000_000)
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()


def test_the_modulator_has_unit_mean_variance_one_over_a_and_correlation_rho() -> None:
    """ARG(1): corr(X_i, X_{i+h}) = rho^h."""
    values = arrivals.modulate(Modulator(a=0.55, rho=0.76), 200_000, rng())
    centred = values - values.mean()
    correlation = (centred[:-5] * centred[5:]).mean() / centred.var()
    assert values.mean() == pytest.approx(1.0, abs=0.03)
    assert values.var() == pytest.approx(1 / 0.55, rel=0.06)
    assert correlation == pytest.approx(0.76**5, abs=0.04)


@pytest.mark.parametrize(("window_s", "expected"), [(1, 5.69), (10, 23.8), (60, 33.3)])
def test_pgar_has_the_dispersion_of_the_closed_form(window_s: int, expected: float) -> None:
    """IDC(m w) = 1 + R w/a (1 + 2 sum (1 - h/m) rho^h), for R=2.579, a=0.55, rho=0.76, w=1 s."""
    found = []
    for seed in range(6):
        rates = np.full(400, 2.579)
        times = arrivals.pgar(rates, 60.0, 1.0, rng(seed), modulator=Modulator(0.55, 0.76), conserve_count=False)
        counts = np.bincount((times // (window_s * 10**9)).astype(int), minlength=24_000 // window_s)
        found.append(counts.var() / counts.mean())
    assert np.mean(found) == pytest.approx(expected, rel=0.1)


def test_conserving_the_count_makes_seeds_comparable() -> None:
    """With correlated bursts the volume of a run wanders; scaled, only counting noise is left."""
    rates = np.full(60, 5.0)
    modulator = Modulator(a=2.0, rho=0.95)
    sizes = [len(arrivals.pgar(rates, 60.0, 5.0, rng(s), modulator=modulator)) for s in range(20)]
    assert np.std(sizes) < 3 * np.sqrt(18_000)
    assert np.mean(sizes) == pytest.approx(18_000, rel=0.02)


def test_windows_without_rate_stay_empty() -> None:
    """Silence is part of the traffic."""
    times = arrivals.pgar(np.array([10.0, 0.0, 0.0, 10.0]), 60.0, 5.0, rng()) / 1e9
    assert ((times < 60) | (times >= 180)).all()
    assert (times < 60).any()
    assert (times >= 180).any()
