"""Each way to another rate does to dispersion what its formula says."""

import numpy as np
import pytest

from surgeproof.errors import ConfigError
from surgeproof.runs.plan_scenario import plan_scenario
from surgeproof.scenario_file import load_scenario
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.inspection import dispersion
from surgeproof.traces.profile import Arrivals, ModulatorFit, Profile, load_profile
from surgeproof.traces.scaling import scale

A, RHO, RATE, FINE_S = 0.55, 0.76, 2.579, 1.0


def profile(rate: float = RATE) -> Profile:
    held = load_profile("azure-code")
    arrivals = Arrivals(60.0, (rate,) * 400, 1.0, FINE_S, ModulatorFit(A, RHO, 99.0), 1.0, 99.0)
    return Profile(held.schema, "x", "pgar", held.source, arrivals, held.marks)


def theory(rate: float, a: float, steps: int) -> float:
    """IDC(m w) = 1 + (R w/a) [1 + 2 sum_{h=1}^{m-1} (1 - h/m) rho^h]."""
    lags = np.arange(1, steps)
    return float(1 + rate * FINE_S / a * (1 + 2 * ((1 - lags / steps) * RHO**lags).sum()))


def drawn(of: Profile, kept: float = 1.0) -> dict[int, float]:
    """Mean dispersion of eight draws at 1, 10 and 60 s."""
    found: dict[int, list[float]] = {1: [], 10: [], 60: []}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        at_s = simulate(of.arrivals, rng)
        at_s = at_s[rng.random(len(at_s)) < kept]
        for window, values in found.items():
            values.append(dispersion(at_s, float(window)) or 0.0)
    return {window: float(np.mean(values)) for window, values in found.items()}


def test_the_model_has_the_closed_form_dispersion() -> None:
    """Known figures: 5.69, 23.8 and 33.3 at 1, 10 and 60 s."""
    assert [theory(RATE, A, steps) for steps in (1, 10, 60)] == pytest.approx([5.69, 23.8, 33.3], rel=0.01)
    for window, value in drawn(profile()).items():
        assert value == pytest.approx(theory(RATE, A, window), rel=0.08)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_superposing_keeps_dispersion(factor: float) -> None:
    for window, value in drawn(scale(profile(), "superpose", factor).profile).items():
        assert value == pytest.approx(theory(RATE, A, window), rel=0.10)


def test_intensifying_multiplies_what_is_beyond_poisson() -> None:
    for window, value in drawn(scale(profile(), "intensify", 3.0).profile).items():
        assert value - 1 == pytest.approx(3 * (theory(RATE, A, window) - 1), rel=0.10)


def test_thinning_divides_what_is_beyond_poisson() -> None:
    thinned = scale(profile(), "thin", 0.5)
    for window, value in drawn(thinned.profile, thinned.kept).items():
        assert value - 1 == pytest.approx(0.5 * (theory(RATE, A, window) - 1), rel=0.10)


def test_compressing_moves_dispersion_to_shorter_lags() -> None:
    """IDC of the compressed at 1 s is the original's at 6 s."""
    assert drawn(scale(profile(), "compress", 6.0).profile)[1] == pytest.approx(theory(RATE, A, 6), rel=0.10)


@pytest.mark.parametrize("mode", ["superpose", "intensify", "thin", "compress"])
def test_every_way_gives_the_rate_that_was_asked_for(mode: str) -> None:
    rate = 1.0 if mode == "thin" else 11.0
    scenario = load_scenario(
        None,
        {
            "target.base_url": "http://127.0.0.1:1/v1",
            "load.profile": "azure-conv",
            "load.request_rate": rate,
            "load.scale": mode,
            "load.duration_s": 3000.0,
        },
    )
    planned = plan_scenario(scenario)
    # Compressed, the profile's hour is over sooner and begins again: another stretch of it is seen.
    assert len(planned.plan) / 3000 == pytest.approx(rate, rel=0.1)
    assert any(mode in note for note in planned.notes)


def test_a_recording_can_be_thinned_or_compressed_only() -> None:
    held = profile()
    from surgeproof.traces.profile import Recording

    exact = Profile(
        held.schema, "x", "exact", held.source, held.arrivals, held.marks, Recording((0, 6_000_000), (1, 2), (3, 4))
    )
    assert scale(exact, "compress", 3.0).profile.recorded()[0].tolist() == [0.0, 2.0]
    with pytest.raises(ConfigError, match="cannot be scaled by superpose"):
        scale(exact, "superpose", 2.0)
    with pytest.raises(ConfigError, match="cannot produce 2 times as many"):
        scale(exact, "thin", 2.0)


def test_a_short_run_has_the_asked_rate_whatever_part_of_the_day_it_plays() -> None:
    """azure-conv's first two minutes are slower than its mean; the run's own mean is what was asked for."""
    asked = {
        "target.base_url": "http://127.0.0.1:1/v1",
        "load.profile": "azure-conv",
        "load.request_rate": 20.0,
        "load.duration_s": 120.0,
    }
    assert len(plan_scenario(load_scenario(None, asked)).plan) == pytest.approx(2400, rel=0.03)
