"""Comparisons: no more false alarms than promised, and a planted shift is found."""

import math

import numpy as np
import pytest

from surgeproof.records import Verdict
from surgeproof.slo.compare import Difference, Policy, compare, groups, lost
from surgeproof.slo.intervals import share_interval
from surgeproof.slo.measured import Measured
from tests.unit.slo.columns import measured

RUNS = 120


def simulated(seed: int, *, shift_ms: float = 0.0, clustered: bool = False, count: int = 3000) -> Measured:
    """Log-normal first tokens around 150 ms; clustered ones share a factor by fifty."""
    rng = np.random.default_rng(seed)
    ttft = rng.lognormal(5, 0.4, count)
    if clustered:
        ttft = ttft * np.repeat(np.exp(rng.normal(0, 0.3, count // 50)), 50)
    ttft = ttft + shift_ms
    return measured(list(ttft), e2e_ms=list(ttft + rng.gamma(5, 100, count)), tpot_ms=list(rng.gamma(20, 1, count)))


def decided(found: list[Difference]) -> dict[str, Verdict | None]:
    return {d.metric: d.verdict for d in found if d.verdict is not None}


@pytest.mark.slow
@pytest.mark.parametrize("clustered", [False, True])
def test_two_equal_runs_alarm_at_the_nominal_rate(clustered: bool) -> None:
    """A FAIL in 5 % of pairs at most over all figures that decide, and as many with a difference in exploration."""
    alarms = explored = 0
    for seed in range(RUNS):
        found = compare(simulated(2 * seed, clustered=clustered), simulated(2 * seed + 1, clustered=clustered))
        alarms += any(difference.alarm for difference in found)
        explored += any(d.significant for d in found if d.verdict is None)
    assert alarms / RUNS < 0.10
    assert explored / RUNS < 0.10


@pytest.mark.slow
@pytest.mark.parametrize(("shift_ms", "margin_ms"), [(50.0, 20.0), (20.5, 20.0)])
def test_a_release_that_is_slower_than_accepted_does_not_pass(shift_ms: float, margin_ms: float) -> None:
    """Non-inferiority: at or beyond the margin at most 5 % pass; all of the first pairs did before."""
    policy = Policy(p99_rise_ms=margin_ms, p99_rise=0.0)
    passed = 0
    for seed in range(RUNS):
        found = compare(simulated(2 * seed), simulated(2 * seed + 1, shift_ms=shift_ms), policy, paced=True)
        passed += not any(d.alarm or d.unclear for d in found)
    assert passed / RUNS < 0.10


def test_a_p99_of_too_few_requests_is_not_compared() -> None:
    """Under 299 requests nothing bounds a p99 from above: its p95 decides."""
    found = compare(simulated(0, count=250), simulated(1, shift_ms=500.0, count=250))
    assert decided(found)["ttft p95, ms"] is Verdict.FAIL
    assert "ttft p99, ms" not in decided(found)
    few = compare(simulated(0, count=25), simulated(1, count=25))
    assert decided(few)["ttft p95, ms"] is Verdict.INCONCLUSIVE


def test_equal_large_runs_pass_a_wide_margin_and_say_what_a_narrow_one_needs() -> None:
    pair = simulated(1), simulated(2)
    wide = compare(*pair, Policy(p99_rise_ms=200.0), paced=True)
    assert set(decided(wide).values()) == {Verdict.PASS}
    narrow = {d.metric: d for d in compare(*pair, Policy(p99_rise_ms=20.0, p99_rise=0.0), paced=True)}["ttft p99, ms"]
    assert narrow.verdict is Verdict.INCONCLUSIVE
    assert narrow.high is not None
    assert narrow.high > 20.0
    assert narrow.more_requests is not None
    assert narrow.more_requests > 0


def test_a_margin_is_a_share_or_milliseconds_and_the_larger_counts() -> None:
    assert Policy(p99_rise_ms=20.0, p99_rise=0.05).margin("e2e p99, ms", 8000.0) == pytest.approx(400.0)
    assert Policy(p99_rise_ms=20.0, p99_rise=0.05).margin("ttft p99, ms", 100.0) == pytest.approx(20.0)
    assert Policy(success_drop=0.005).margin("success, %", 99.0) == pytest.approx(0.5)
    assert Policy(rate_drop=0.05).margin("requests/s", 40.0) == pytest.approx(2.0)
    assert Policy().margin("ttft p50, ms", 100.0) == pytest.approx(5.0)
    assert Policy().margin("tpot p50, ms", 8.0) == pytest.approx(1.0)
    assert Policy(p50_rise_ms=0.0).margin("tpot mean, ms", 8.0) == pytest.approx(0.4)


def test_rates_decide_only_where_the_server_sets_them() -> None:
    pair = simulated(1), simulated(2)
    assert "requests/s" in decided(compare(*pair))
    assert "requests/s" not in decided(compare(*pair, paced=True))


def test_bounds_of_a_difference_are_those_of_newcombe() -> None:
    """56 of 70 against 48 of 80: Clopper and Pearson's ends, joined as Newcombe's method 10 joins Wilson's."""
    first = measured([100.0] * 70, outcome=["ok", "ok", "ok", "ok", "error:reset"] * 14, every_ms=1000.0)
    other = measured([100.0] * 80, outcome=["ok", "ok", "ok", "error:reset", "error:reset"] * 16, every_ms=1000.0)
    found = {d.metric: d for d in compare(first, other, paced=True)}["success, %"]
    one, two = share_interval(56, 70), share_interval(48, 80)
    assert found.low is not None
    assert one.high is not None
    assert two.low is not None
    step = 100 * (48 / 80 - 56 / 70)
    assert found.low == pytest.approx(step - 100 * math.hypot(48 / 80 - two.low, one.high - 56 / 70))


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_shift_of_thirty_milliseconds_is_found(seed: int) -> None:
    found = {d.metric: d for d in compare(simulated(2 * seed), simulated(2 * seed + 1, shift_ms=30.0))}
    for metric in ("ttft mean, ms", "ttft p50, ms"):
        difference = found[metric]
        assert difference.significant
        assert difference.after - difference.before == pytest.approx(30.0, abs=8.0)
    assert not found["tpot mean, ms"].significant


def test_a_p99_that_rises_beyond_the_policy_alarms_and_one_that_falls_does_not() -> None:
    before, after = simulated(1), simulated(2, shift_ms=300.0)
    assert "ttft p99, ms" in {d.metric for d in compare(before, after) if d.alarm}
    assert not any(d.alarm for d in compare(after, before))
    assert not any(d.alarm for d in compare(before, after, Policy(p99_rise_ms=1000.0, p50_rise_ms=1000.0)))


def test_a_fallen_success_and_throughput_alarm() -> None:
    good = measured([100.0] * 2000)
    bad = measured([100.0] * 2000, outcome=["ok", "error:reset", "ok", "ok"] * 500)
    alarms = {d.metric for d in compare(good, bad) if d.alarm}
    assert {"success, %", "requests/s", "output tokens/s"} <= alarms


def test_groups_are_classes_and_length_buckets_that_both_runs_fill() -> None:
    lengths = [100] * 300 + [3000] * 300
    run = measured([50.0] * 600, request_class=["P0", "P1"] * 300, planned_input_tokens=lengths)
    other = measured([50.0] * 600, request_class=["P0", "P1"] * 300, planned_input_tokens=[100] * 590 + [3000] * 10)
    assert groups(run, run) == ["all", "P0", "P1", "input 0..256", "input 1024..4096"]
    assert groups(run, other) == ["all", "P0", "P1"]


def test_figures_that_a_run_has_lost_are_named() -> None:
    assert lost(simulated(1), measured([None] * 3000))[:3] == ["ttft mean, ms", "ttft p50, ms", "ttft p95, ms"]
    assert lost(simulated(1), simulated(2)) == []


def test_the_delay_of_a_late_client_widens_the_bounds_of_latencies() -> None:
    """30 ms slower where 20 are accepted: shown by clients on time, open where they were late by 15 ms together."""
    before, after = simulated(1), simulated(1, shift_ms=30.0)
    policy = Policy(p50_rise_ms=20.0, p50_rise=0.0)
    sharp, vague = (
        {d.metric: d for d in compare(before, after, policy, paced=True, paired=True, error_ms=error)}["ttft p50, ms"]
        for error in (0.0, 15.0)
    )
    assert sharp.low is not None
    assert vague.low is not None
    assert vague.low == pytest.approx(sharp.low - 15.0)
    assert (str(sharp.verdict), str(vague.verdict)) == ("FAIL", "INCONCLUSIVE")
