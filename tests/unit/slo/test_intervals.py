"""Confidence bounds against SciPy and textbook values, and their coverage by simulation."""

import numpy as np
import pytest
from scipy import stats

from surgeproof.slo import intervals
from surgeproof.slo.correlation import correlation_of
from surgeproof.slo.means import mean_interval, ratio_interval


@pytest.mark.parametrize("x", [1e-6, 0.01, 0.3, 0.5, 0.99, 0.9999])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 1), (3, 40), (300, 2), (5000, 6), (999_000, 1_001), (2.5, 7.25)])
def test_the_incomplete_beta_function_is_scipys(x: float, a: float, b: float) -> None:
    assert intervals.beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("level", [1e-4, 0.05, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 1), (3, 40), (300, 2), (999_000, 1_001), (0.3, 1_200)])
def test_quantiles_of_the_beta_distribution_are_scipys(level: float, a: float, b: float) -> None:
    assert intervals.beta_quantile(level, a, b) == pytest.approx(stats.beta.ppf(level, a, b), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("blocks", [8, 16, 60])
def test_bounds_of_a_mean_use_students_t(blocks: int) -> None:
    """Blocks of one value each: the classical interval of a mean."""
    sums = np.random.default_rng(blocks).normal(10, 2, blocks)
    found = ratio_interval(sums, np.ones(blocks))
    half = stats.t.ppf(0.95, blocks - 1) * sums.std(ddof=1) / np.sqrt(blocks)
    assert found.low == pytest.approx(sums.mean() - half)
    assert found.high == pytest.approx(sums.mean() + half)


@pytest.mark.parametrize(
    ("hits", "count"), [(0, 10), (10, 10), (3, 10), (299, 300), (9_990, 10_000), (500_000, 1_000_000)]
)
def test_share_bounds_are_clopper_and_pearsons(hits: int, count: int) -> None:
    """Each end holds with 95 % confidence: the ends of SciPy's exact 90 % interval."""
    exact = stats.binomtest(hits, count).proportion_ci(0.90, "exact")
    found = intervals.share_interval(hits, count)
    assert found.low == pytest.approx(exact.low, abs=1e-7)
    assert found.high == pytest.approx(exact.high, abs=1e-7)


def test_four_nines_need_29956_requests_without_a_miss() -> None:
    """And one fewer does not show it."""
    assert intervals.requests_without_miss(0.9999) == 29_956
    assert intervals.shown_at_least(29_956, 29_956, 0.9999)
    assert not intervals.shown_at_least(29_955, 29_955, 0.9999)


@pytest.mark.parametrize(("share", "floor"), [(0.99, 299), (0.95, 59), (0.9, 29), (0.5, 5)])
def test_sample_floors_are_the_known_ones(share: float, floor: int) -> None:
    assert intervals.requests_without_miss(share) == floor


def test_quantiles_are_order_statistics() -> None:
    values = np.arange(1.0, 101.0)
    assert [intervals.quantile(values, q) for q in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert intervals.quantile(np.array([575.0]), 0.99) == 575.0


def test_the_median_of_twenty_lies_between_the_known_ranks() -> None:
    """One-sided 95 %: ranks 6 and 15 of 20, since P(Bin(20, 1/2) <= 5) = 0.0207 and <= 6 is 0.0577."""
    found = intervals.quantile_interval(np.arange(1.0, 21.0), 0.5)
    assert (found.low, found.high) == (6, 15)


def test_a_quantile_without_enough_requests_has_no_upper_bound() -> None:
    """298 values cannot bound a p99 from above, 299 can."""
    assert intervals.quantile_interval(np.arange(298.0), 0.99).high is None
    assert intervals.quantile_interval(np.arange(299.0), 0.99).high == 298


def test_requests_needed_is_the_smallest_number() -> None:
    needed = intervals.requests_needed(995, 1000, 0.99)
    assert needed is not None
    assert intervals.shown_at_least(0.995 * needed, needed, 0.99)
    assert not intervals.shown_at_least(0.995 * (needed - 1), needed - 1, 0.99)
    assert intervals.requests_needed(980, 1000, 0.99) is None


def test_the_bounds_of_a_quantile_cover_at_their_level() -> None:
    """Both ends at once cover 90 % or more of independent samples of a known law."""
    rng = np.random.default_rng(1)
    true = stats.expon.ppf(0.95)
    covered = 0
    for _ in range(400):
        found = intervals.quantile_interval(np.sort(rng.exponential(size=400)), 0.95)
        assert found.low is not None
        covered += found.low <= true and (found.high is None or true <= found.high)
    assert 0.88 <= covered / 400 <= 0.97


def test_clustered_misses_widen_the_bounds() -> None:
    """Misses that come in bursts of 20 count for about a twentieth; independent ones count whole."""
    rng = np.random.default_rng(2)
    at_s = np.arange(6000) / 10.0
    independent = rng.random(6000) > 0.1
    clustered = np.repeat(rng.random(300) > 0.1, 20)
    assert correlation_of(independent, at_s).design_effect < 2.2
    assert correlation_of(clustered, at_s).design_effect == pytest.approx(20, rel=0.5)


def test_the_bounds_of_a_clustered_share_cover() -> None:
    """Not under 90 % jointly 80 %: blocks of 10 alike requests."""
    rng = np.random.default_rng(3)
    at_s = np.arange(3000) / 5.0
    covered = 0
    for _ in range(200):
        hits = np.repeat(rng.random(300) > 0.2, 10)
        deff = correlation_of(hits, at_s).design_effect
        found = intervals.share_interval(hits.sum() / deff, len(hits) / deff)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.8 <= found.high
    assert covered / 200 >= 0.84


def test_mean_bounds_cover_and_need_blocks() -> None:
    rng = np.random.default_rng(4)
    at_s = np.arange(500) / 10.0
    covered = 0
    for _ in range(300):
        found = mean_interval(rng.exponential(size=500), at_s)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert 0.84 <= covered / 300 <= 0.95
    assert mean_interval(np.ones(5), np.arange(5.0)).low is None
