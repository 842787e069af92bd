"""Fitting: parameters known from elsewhere, controls, and what a profile must keep."""

from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

from surgeproof.errors import TraceError
from surgeproof.records import TracePoint
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.fit import (
    choose_coarse_window,
    fit_arrivals,
    fit_marks,
    fit_profile,
    gamma_gap_shape,
    shrunk_rates,
)
from surgeproof.traces.inspection import dispersion
from surgeproof.traces.profile import Arrivals, ModulatorFit, bundled_profiles, load_profile
from surgeproof.traces.reader import Trace, read_trace

KNOWN = {
    # a, rho, k: figures of the fits the model was designed with
    "AzureLLMInferenceTrace_conv.csv": (131.0, 0.33, 0.9),
    "AzureLLMInferenceTrace_code.csv": (0.55, 0.76, 1.0),
    "mooncake_conversation_trace.jsonl": (None, None, 1.0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_real_traces_give_the_known_parameters(name: str, real_trace: Any) -> None:
    a, rho, k = KNOWN[name]
    fitted = fit_profile(read_trace(real_trace(name)), "x").arrivals
    if a is None:
        assert fitted.modulator is None
    else:
        assert fitted.modulator is not None
        assert fitted.modulator.a == pytest.approx(a, rel=0.03)
        assert fitted.modulator.rho == pytest.approx(rho, abs=0.02)
    assert fitted.gap_shape == pytest.approx(k, abs=0.101)


def test_poisson_arrivals_yield_no_modulator_and_a_constant_rate() -> None:
    """The control: the method finds no burst where there is none."""
    at_s = np.cumsum(np.random.default_rng(3).exponential(0.2, 20_000))
    fitted = fit_arrivals(at_s, choose_coarse_window(at_s))
    assert fitted.modulator is None
    rates = np.array(fitted.rates_per_s)
    assert rates.std() / rates.mean() < 0.03


def test_fit_generate_fit_recovers_the_parameters() -> None:
    """Within the estimator's own bias: taking window means off costs about 1/15 of the correlation."""
    rates = np.full(120, 4.0)
    true = ModulatorFit(a=1.5, rho=0.6, z=0)
    model = Arrivals(60.0, tuple(rates), 1.0, 1.0, true, 1.0, 0.0)
    at_s = simulate(model, np.random.default_rng(5))
    fitted = fit_arrivals(at_s, 60.0).modulator
    assert fitted is not None
    assert fitted.a == pytest.approx(1.5, rel=0.15)
    assert fitted.rho == pytest.approx(0.6, abs=0.08)


def test_shrinking_takes_the_poisson_noise_out_of_the_rates() -> None:
    """n_j - mean is scaled by sqrt((I-1)/I); counts of dispersion 1 become one rate."""
    counts = np.array([80.0, 120.0, 100.0, 60.0, 140.0])
    index = counts.var(ddof=1) / counts.mean()
    rates, factor = shrunk_rates(counts, 10.0)
    assert factor == pytest.approx(np.sqrt((index - 1) / index))
    assert rates[0] == pytest.approx((100 + factor * -20) / 10)
    assert shrunk_rates(np.array([100.0, 101.0, 99.0]), 10.0)[0].std() == 0


def test_lengths_follow_the_window_and_keep_their_pairs() -> None:
    """Two kinds of requests that take turns by minute stay apart in time and as pairs."""
    rng = np.random.default_rng(1)
    at_s = np.sort(rng.uniform(0, 3600, 12_000))
    kind = (at_s // 60).astype(int) % 2
    pairs = np.where(kind[:, None] == 0, [100, 400], [2000, 20]) + rng.integers(0, 10, (12_000, 2))
    profile = load_profile("azure-conv")
    marks = fit_marks(at_s, pairs.astype(np.int64), 60.0)
    drawn = type(profile)(profile.schema, "x", "pgar", profile.source, profile.arrivals, marks).draw_lengths(at_s, rng)
    early, late = drawn[kind == 0], drawn[kind == 1]
    assert (early[:, 1] > 300).mean() > 0.9
    assert (late[:, 0] > 1000).mean() > 0.9
    assert not ((drawn[:, 0] > 1000) & (drawn[:, 1] > 300)).any()


@pytest.mark.parametrize(
    ("name", "k"), [("AzureLLMInferenceTrace_conv.csv", 0.871), ("AzureLLMInferenceTrace_code.csv", 0.231)]
)
def test_gamma_gaps_are_fitted_by_maximum_likelihood(name: str, k: float, real_trace: Any) -> None:
    """Known figures of the renewal fits; the mean rate is kept exactly."""
    trace = read_trace(real_trace(name))
    profile = fit_profile(trace, "x", kind="gamma")
    assert profile.arrivals.gap_shape == pytest.approx(k, abs=0.005)
    assert profile.arrivals.modulator is None
    assert profile.arrivals.mean_rate_per_s == pytest.approx(len(trace.points) / (trace.points[-1].at_ns / 1e9))


def test_gamma_shape_agrees_with_scipy() -> None:
    gaps = np.random.default_rng(4).gamma(0.4, 2.5, 5000)
    expected = stats.gamma.fit(gaps, floc=0)[0]
    assert gamma_gap_shape(gaps) == pytest.approx(expected, rel=1e-3)


def test_a_constant_rate_profile_draws_at_its_rate(real_trace: Any) -> None:
    profile = fit_profile(read_trace(real_trace("AzureLLMInferenceTrace_conv.csv")), "x", kind="poisson")
    at_s = simulate(profile.arrivals, np.random.default_rng(1))
    assert len(at_s) == pytest.approx(19_366, rel=0.03)
    assert dispersion(at_s, 10.0) == pytest.approx(1.0, abs=0.15)


def test_an_exact_profile_is_the_recording(real_trace: Any) -> None:
    trace = read_trace(real_trace("AzureLLMInferenceTrace_code.csv"))
    at_s, lengths = fit_profile(trace, "x", kind="exact").recorded()
    assert at_s == pytest.approx([point.at_ns / 1e9 for point in trace.points], abs=1e-6)
    assert lengths.tolist() == [[point.input_tokens, point.output_tokens] for point in trace.points]


def test_empirical_gaps_have_unit_mean_and_the_traces_own_law(real_trace: Any) -> None:
    trace = read_trace(real_trace("AzureLLMInferenceTrace_code.csv"))
    arrivals = fit_profile(trace, "x", empirical_gaps=True).arrivals
    assert arrivals.gap_quantiles is not None
    quantiles = np.array(arrivals.gap_quantiles)
    assert np.diff(quantiles).min() >= 0
    assert (quantiles[1:] + quantiles[:-1]).mean() / 2 == pytest.approx(1.0, abs=1e-4)
    at_s = simulate(msgspec.structs.replace(arrivals, modulator=None), np.random.default_rng(2))
    assert len(at_s) == pytest.approx(len(trace.points), rel=0.1)


def test_a_short_trace_is_refused_with_what_it_lacks() -> None:
    trace = Trace("short", "surgeproof")
    trace.points = [TracePoint(at_ns=i * 10**9, input_tokens=1, output_tokens=1, row=i) for i in range(50)]
    with pytest.raises(TraceError, match="50 requests over 49 s are too few"):
        fit_profile(trace, "x")


@pytest.mark.parametrize("name", ["azure-code", "azure-conv", "mooncake-conv"])
def test_bundled_profiles_load_and_name_source_and_licence(name: str) -> None:
    assert name in bundled_profiles()
    profile = load_profile(name)
    assert profile.source.licence
    assert len(profile.source.sha256) == 64
    assert len(profile.marks.mix) >= len(profile.arrivals.rates_per_s)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("azure-conv", {1: 1.38, 10: 3.87, 60: 16.4, 300: 61.7}),
        ("mooncake-conv", {1: 1.05, 10: 1.51, 60: 2.86, 300: 8.06}),
        ("azure-code", {1: 13.2, 10: 71.9, 60: 167, 300: 152}),
    ],
)
def test_bundled_profiles_have_their_traces_dispersion(name: str, expected: dict[int, float]) -> None:
    """|ln(model/real)| within 0.35 at 1, 10, 60 and 300 s, and the error of a mean of 12 draws (0.06)."""
    fitted = load_profile(name).arrivals
    draws = [simulate(fitted, np.random.default_rng(seed)) for seed in range(12)]
    for window_s, real in expected.items():
        model = np.mean([dispersion(at_s, float(window_s)) or np.nan for at_s in draws])
        assert abs(np.log(model / real)) <= 0.35 + 0.06


def test_an_unknown_profile_lists_the_bundled_ones() -> None:
    with pytest.raises(TraceError, match="bundled are azure-code"):
        load_profile("nonsense")
