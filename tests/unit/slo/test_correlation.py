"""Correlation in time: figures of processes whose correlation is known, and the verdicts that follow."""

import re

import numpy as np
import pytest

from surgeproof.audit_results import Audit
from surgeproof.errors import RuleError
from surgeproof.records import Verdict
from surgeproof.slo.correlation import (
    MIN_EFFECTIVE_BLOCKS,
    autocorrelation_time,
    correlation_of,
    correlation_of_latencies,
)
from surgeproof.slo.intervals import shown_at_least
from surgeproof.slo.rules import parse_objectives, parse_rule
from surgeproof.slo.verdict import judge
from tests.unit.slo.columns import measured

RATE = 10.0


def autoregressive(rng: np.random.Generator, count: int, coefficient: float) -> np.ndarray:
    series = np.empty(count)
    series[0] = rng.normal()
    for index in range(1, count):
        series[index] = coefficient * series[index - 1] + rng.normal() * np.sqrt(1 - coefficient**2)
    return series


def slow_latencies(rng: np.random.Generator, count: int, time_s: float = 30.0) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal latencies whose level has a correlation of exp(-t / time_s), and when each was due."""
    at_s = np.cumsum(rng.exponential(1 / RATE, count))
    level = autoregressive(rng, count, np.exp(-1 / RATE / time_s))
    return np.exp(5 + 0.5 * level + 0.3 * rng.normal(size=count)), at_s


@pytest.mark.parametrize("coefficient", [0.5, 0.8])
def test_the_autocorrelation_time_of_an_autoregressive_series_is_its_formula(coefficient: float) -> None:
    """(1 + a) / (1 - a): 3 for 0.5, 9 for 0.8."""
    found = [autocorrelation_time(autoregressive(np.random.default_rng(seed), 4096, coefficient)) for seed in range(20)]
    assert np.median(found) == pytest.approx((1 + coefficient) / (1 - coefficient), rel=0.15)


def test_independent_blocks_have_an_autocorrelation_time_of_one() -> None:
    found = [autocorrelation_time(np.random.default_rng(seed).normal(size=64)) for seed in range(200)]
    assert np.mean(np.array(found) == 1.0) > 0.9
    assert autocorrelation_time(np.ones(64)) == 1.0


def test_constant_latencies_are_not_correlated() -> None:
    found = correlation_of_latencies(np.full(300, 5.0), np.full(300, True), np.arange(300) / RATE, 0.99)
    assert found.design_effect == 1.0
    assert not found.too_few_blocks


def test_a_level_that_changes_slowly_leaves_few_independent_blocks() -> None:
    """100 s with a correlation time of 30 s hold about 100 / 60 independent stretches; nothing passes there."""
    values, at_s = slow_latencies(np.random.default_rng(3), 1000)
    found = correlation_of_latencies(values, values <= 1e9, at_s, 0.99)
    assert found.too_few_blocks
    assert found.correlation_s is not None
    assert found.correlation_s > 100 / MIN_EFFECTIVE_BLOCKS


@pytest.mark.slow
def test_slow_changes_do_not_pass_a_bound_at_the_truth() -> None:
    """At most 0.10 of runs of 10,000 pass a p99 that sits at the bound; 0.20 to 0.30 did by 60 blocks alone."""
    bound, passed = np.exp(5 + np.sqrt(0.34) * 2.3263), 0
    for seed in range(60):
        values, at_s = slow_latencies(np.random.default_rng(seed), 10_000)
        met = values <= bound
        found = correlation_of_latencies(values, met, at_s, 0.99)
        effective = len(met) / found.design_effect
        passed += not found.too_few_blocks and shown_at_least(met.mean() * effective, effective, 0.99)
    assert passed <= 6


def test_independent_latencies_keep_their_power() -> None:
    """A p99 bound of 1.5 times the truth passes in 0.98 to 1.00 of runs of 1,000 by the binomial alone."""
    passed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        values, at_s = np.exp(5 + 0.6 * rng.normal(size=1000)), np.cumsum(rng.exponential(1 / RATE, 1000))
        met = values <= 1.5 * np.exp(5 + 0.6 * 2.3263)
        found = correlation_of_latencies(values, met, at_s, 0.99)
        effective = len(met) / found.design_effect
        passed += not found.too_few_blocks and shown_at_least(met.mean() * effective, effective, 0.99)
    assert passed / 200 >= 0.93


def test_a_declared_stall_makes_requests_within_it_one() -> None:
    """Stalls of 2.5 s at 10 requests a second: 25 requests say as much as one; 299 stretches take 748 s."""
    at_s = np.arange(1001) / RATE
    assert correlation_of(np.full(1001, True), at_s, 2.5).design_effect == pytest.approx(25, rel=0.01)
    rule = "ttft p99 < 200ms with stalls of 2.5s"
    for count, expected in ((7000, Verdict.INCONCLUSIVE), (7600, Verdict.PASS)):
        (verdict,) = judge(measured([100.0] * count, every_ms=100.0), parse_objectives({"all": (rule,)}), Audit())
        assert (verdict.verdict, verdict.rule) == (expected, rule)


def test_a_short_run_of_a_slow_server_says_what_it_lacks() -> None:
    values, _ = slow_latencies(np.random.default_rng(3), 1000)
    held = measured(list(values), every_ms=100.0)
    (verdict,) = judge(held, parse_objectives({"all": ("ttft p50 < 800ms",)}), Audit())
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert "so this run is too short for a PASS" in verdict.reason
    assert re.search(r"at least \d+ more minutes?, or --repeat \d+$", verdict.reason)


def test_clusters_far_below_the_bound_do_not_count() -> None:
    """The same run against 60 times its median: nothing comes near, so 1,000 requests without a miss show a p99."""
    values, _ = slow_latencies(np.random.default_rng(3), 1000)
    (verdict,) = judge(measured(list(values), every_ms=100.0), parse_objectives({"all": ("ttft p99 < 10s",)}), Audit())
    assert verdict.verdict is Verdict.PASS


def test_twenty_times_the_allowed_misses_fail_whatever_their_correlation() -> None:
    """One outage of 20 % of the run, where 1 % may miss: the mean could not be 1 % more often than 1 in 20."""
    values = [100.0] * 800 + [9000.0] * 200
    (verdict,) = judge(measured(values, every_ms=100.0), parse_objectives({"all": ("ttft p99 < 200ms",)}), Audit())
    assert verdict.verdict is Verdict.FAIL


@pytest.mark.parametrize("rule", ["ttft mean < 1s with stalls of 2s", "requests_per_s > 5 with stalls of 2s"])
def test_stalls_are_declared_for_shares_only(rule: str) -> None:
    with pytest.raises(RuleError, match="for shares of requests"):
        parse_rule(rule)


def test_a_stall_has_a_length_and_stands_last() -> None:
    assert parse_rule("success >= 99.9% where model = a with stalls of 500ms").stall_s == 0.5
    with pytest.raises(RuleError, match="longer than 0"):
        parse_rule("ttft p99 < 1s with stalls of 0s")
