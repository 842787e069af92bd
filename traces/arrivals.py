"""Arrival processes: the planned times of a run, made whole before it starts. Pure numpy.

Times are offsets from the start in ns, sorted, int64. A process is drawn until `duration_s` or
`count` is reached, whichever is first; at least one must be given. Gaps are never rescaled to hit
a duration exactly, so their distribution does not change.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from surgeproof.records import NS_PER_S
from surgeproof.traces.profile import Arrivals

Times = npt.NDArray[np.int64]


def constant(rate_per_s: float, *, duration_s: float | None = None, count: int | None = None) -> Times:
    """Equal gaps of 1/rate, the first request at 0."""
    wanted = _limit(rate_per_s, duration_s, count)
    times = np.arange(wanted, dtype=np.float64) / rate_per_s
    return _cut(times, duration_s, count)


def gamma(
    rate_per_s: float,
    shape: float,
    rng: np.random.Generator,
    *,
    duration_s: float | None = None,
    count: int | None = None,
) -> Times:
    """Independent Gamma gaps of mean 1/rate.

    Args:
        rate_per_s: mean arrivals a second.
        shape: k; the gaps' squared coefficient of variation is 1/k. Below 1 is burstier than
            Poisson, 1 is Poisson (vLLM calls it burstiness).
        rng: source of the gaps.
        duration_s: end of the schedule, seconds.
        count: number of requests at most.
    """
    wanted = _limit(rate_per_s, duration_s, count)
    times = np.zeros(0)
    end = 0.0
    while len(times) < wanted or (count is None and end < (duration_s or 0)):
        chunk = max(1024, int(wanted * 0.1) if len(times) else wanted)
        gaps = rng.gamma(shape, 1.0 / (shape * rate_per_s), size=chunk)
        times = np.concatenate((times, end + np.cumsum(gaps)))
        end = float(times[-1])
    return _cut(times, duration_s, count)


def at_once(count: int) -> Times:
    """All at the start: an unlimited request rate."""
    return np.zeros(count, dtype=np.int64)


def _limit(rate_per_s: float, duration_s: float | None, count: int | None) -> int:
    if count is not None:
        return count
    assert duration_s is not None, "a schedule needs a duration or a count"
    return int(np.ceil(rate_per_s * duration_s))


def _cut(times: npt.NDArray[np.float64], duration_s: float | None, count: int | None) -> Times:
    if count is not None:
        times = times[:count]
    if duration_s is not None:
        times = times[times < duration_s]
    return np.round(times * NS_PER_S).astype(np.int64)


class Modulator(NamedTuple):
    """A stationary unit-mean Gamma autoregression: variance 1/a, correlation rho from step to step."""

    a: float
    rho: float


def modulate(modulator: Modulator, steps: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw the modulator's values, one a fine window.

    X_1 ~ Gamma(a, 1/a); Z ~ Poisson(a rho X / (1 - rho)); next X ~ Gamma(a + Z, (1 - rho)/a).
    (Gourieroux and Jasiak 2006, autoregressive gamma process with an exact Gamma marginal.)
    """
    a, rho = modulator
    if rho <= 0:
        return rng.gamma(a, 1 / a, size=steps)
    values = np.empty(steps)
    values[0] = rng.gamma(a, 1 / a)
    for index in range(1, steps):
        pulls = rng.poisson(a * rho * values[index - 1] / (1 - rho))
        values[index] = rng.gamma(a + pulls, (1 - rho) / a)
    return values


def pgar(
    rates_per_s: npt.NDArray[np.float64],
    coarse_window_s: float,
    fine_window_s: float,
    rng: np.random.Generator,
    *,
    modulator: Modulator | None = None,
    shape: float = 1.0,
    gap_quantiles: npt.NDArray[np.float64] | None = None,
    conserve_count: bool = True,
    until_s: float | None = None,
) -> Times:
    """Time-varying rate x Gamma autoregression x Gamma gaps within a window.

    Unit-mean Gamma gaps are laid on operational time and mapped back through the integral of
    `rates x modulator`, which is piecewise linear.

    Args:
        rates_per_s: rate of each coarse window.
        coarse_window_s: its length, a whole multiple of the fine one.
        fine_window_s: step of the modulator.
        rng: source of all draws.
        modulator: None for a rate that varies by coarse window only.
        shape: k of the gaps; 1 is Poisson given the intensity.
        gap_quantiles: evenly spaced quantiles of unit-mean gaps, drawn from in place of Gamma(k).
        conserve_count: scale the modulator so that the expected number of requests is that of the
            rates; without it the volume varies from run to run.
        until_s: end of what is sent: nothing is drawn, or conserved, beyond it.
    """
    per_window = max(1, round(coarse_window_s / fine_window_s))
    intensity = np.repeat(rates_per_s, per_window).astype(np.float64)
    if until_s is not None:
        intensity = intensity[: max(1, int(np.ceil(until_s * per_window / coarse_window_s - 1e-9)))]
    if modulator is not None:
        values = modulate(modulator, len(intensity), rng)
        if conserve_count and (weighted := float((values * intensity).sum())) > 0:
            values *= intensity.sum() / weighted
        intensity = intensity * values
    step_s = coarse_window_s / per_window
    cumulative = np.concatenate(([0.0], np.cumsum(intensity * step_s)))
    total = cumulative[-1]
    # The first gap is cut at a random point: the process began before the schedule does.
    wanted = int(total + 6 * np.sqrt(total / min(shape, 1.0)) + 16)
    if gap_quantiles is None:
        gaps = rng.gamma(shape, 1 / shape, size=wanted)
    else:
        knots = np.linspace(0, 1, len(gap_quantiles))
        gaps = np.interp(rng.random(size=2 * wanted), knots, gap_quantiles)
    gaps[0] *= rng.random()
    operational = np.cumsum(gaps)
    operational = operational[operational < total]
    edges = np.arange(len(cumulative)) * step_s
    at_s = np.interp(operational, cumulative, edges)
    times: Times = np.round(at_s * NS_PER_S).astype(np.int64)
    return times


def simulate(
    model: Arrivals, rng: np.random.Generator, *, conserve_count: bool = True, until_s: float | None = None
) -> npt.NDArray[np.float64]:
    """Arrival times of a fitted model, seconds; arguments as those of `pgar`."""
    fitted = model.modulator
    times = pgar(
        np.array(model.rates_per_s),
        model.coarse_window_s,
        model.fine_window_s,
        rng,
        modulator=Modulator(fitted.a, fitted.rho) if fitted else None,
        shape=model.gap_shape,
        gap_quantiles=np.array(model.gap_quantiles) if model.gap_quantiles else None,
        conserve_count=conserve_count,
        until_s=until_s,
    )
    seconds: npt.NDArray[np.float64] = times / 1e9
    return seconds
