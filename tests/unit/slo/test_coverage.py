"""Bounds hold as often as they say, by simulation: each end is a 95 % bound of its own side."""

from collections.abc import Callable

import numpy as np
import pytest

from surgeproof.results import Interval
from surgeproof.slo.correlation import correlation_of, correlation_of_latencies
from surgeproof.slo.intervals import quantile_interval, share_interval
from surgeproof.slo.means import mean_interval

SIMULATIONS = 2000
COUNT = 1500
Draw = Callable[[np.random.Generator], np.ndarray]
pytestmark = pytest.mark.slow


def independent(rng: np.random.Generator) -> np.ndarray:
    return rng.exponential(100.0, COUNT)


def clustered(rng: np.random.Generator) -> np.ndarray:
    """Bursts of 25 alike requests, on average the same exponential."""
    return rng.exponential(100.0, COUNT) * np.repeat(rng.gamma(8, 1 / 8, COUNT // 25), 25)


def covered(draw: Draw, interval: Callable[[np.ndarray, np.ndarray], Interval], truth: float) -> tuple[float, float]:
    """How often the lower and the upper bound hold; an end that is not given holds."""
    at_s = np.arange(COUNT) * 0.1
    low = high = 0
    for seed in range(SIMULATIONS):
        found = interval(draw(np.random.default_rng(seed)), at_s)
        low += found.low is None or found.low <= truth
        high += found.high is None or found.high >= truth
    return low / SIMULATIONS, high / SIMULATIONS


def of_quantile(q: float) -> Callable[[np.ndarray, np.ndarray], Interval]:
    def interval(values: np.ndarray, at_s: np.ndarray) -> Interval:
        level = np.quantile(values, q, method="inverted_cdf")
        return quantile_interval(
            np.sort(values), q, correlation_of_latencies(values, values <= level, at_s, q).design_effect
        )

    return interval


def of_share(bound: float) -> Callable[[np.ndarray, np.ndarray], Interval]:
    def interval(values: np.ndarray, at_s: np.ndarray) -> Interval:
        hits = values <= bound
        effect = correlation_of(hits, at_s).design_effect
        return share_interval(hits.sum() / effect, len(hits) / effect)

    return interval


CASES = {
    "mean": (mean_interval, lambda sample: sample.mean()),
    "median": (of_quantile(0.5), lambda sample: np.quantile(sample, 0.5)),
    "p99": (of_quantile(0.99), lambda sample: np.quantile(sample, 0.99)),
    "share": (of_share(150.0), lambda sample: (sample <= 150.0).mean()),
}


def truth(draw: Draw, of: Callable[[np.ndarray], float]) -> float:
    rng = np.random.default_rng(10**6)
    return float(of(np.concatenate([draw(rng) for _ in range(2000)])))


@pytest.mark.parametrize("name", CASES)
def test_independent_data_are_covered_as_promised(name: str) -> None:
    """93 to 97 %, and the per cent that whole ranks, simulation and looking for clusters add."""
    interval, of = CASES[name]
    for share in covered(independent, interval, truth(independent, of)):
        assert 0.93 <= share <= 0.98


@pytest.mark.parametrize("name", CASES)
def test_clustered_data_are_covered_at_ninety_per_cent_or_better(name: str) -> None:
    interval, of = CASES[name]
    assert min(covered(clustered, interval, truth(clustered, of))) >= 0.90
