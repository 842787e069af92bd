"""Comparisons: no more false alarms than promised, and a planted shift is found."""

import numpy as np
import pytest

from surgeproof.slo.compare import Difference, Policy, compare, groups, holm, lost
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


@pytest.mark.slow
@pytest.mark.parametrize("clustered", [False, True])
def test_two_equal_runs_alarm_at_the_nominal_rate(clustered: bool) -> None:
    """Single figures at about 5 % (4 standard errors: 1 to 13 % of 120), the whole family at no more."""
    single: dict[str, int] = {}
    family = 0
    for seed in range(RUNS):
        found = compare(simulated(2 * seed, clustered=clustered), simulated(2 * seed + 1, clustered=clustered))
        family += any(difference.significant for difference in found)
        for difference in found:
            if difference.p is not None:
                single[difference.metric] = single.get(difference.metric, 0) + (difference.p < 0.05)
        assert not any(difference.alarm for difference in found)
    assert single["ttft mean, ms"] / RUNS == pytest.approx(0.05, abs=0.06)
    assert max(single.values()) / RUNS < 0.13
    assert family / RUNS < 0.10


def test_a_p99_of_too_few_requests_is_not_compared() -> None:
    """Under 299 requests nothing bounds a p99 from above: a difference would mostly be chance."""
    found = {d.metric: d for d in compare(simulated(0, count=250), simulated(1, shift_ms=500.0, count=250))}
    assert found["ttft p99, ms"].p is None
    assert (found["ttft p99, ms"].alarm, found["ttft p99, ms"].unclear) == (False, True)
    assert found["ttft p95, ms"].alarm


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
    assert not any(d.alarm for d in compare(before, after, Policy(p99_rise_ms=1000.0)))


def test_a_fallen_success_and_throughput_alarm() -> None:
    good = measured([100.0] * 2000)
    bad = measured([100.0] * 2000, outcome=["ok", "error:reset", "ok", "ok"] * 500)
    alarms = {d.metric for d in compare(good, bad) if d.alarm}
    assert {"success, %", "requests/s", "output tokens/s"} <= alarms


def test_holm_steps_down() -> None:
    """Textbook: of p = .01, .04, .03, .005 only .005 and .01 stand at 5 %."""
    differences = [Difference("all", str(p), 0, 1, 0, 1, p) for p in (0.01, 0.04, 0.03, 0.005)]
    assert [d.metric for d in holm(differences) if d.significant] == ["0.01", "0.005"]


def test_groups_are_classes_and_length_buckets_that_both_runs_fill() -> None:
    lengths = [100] * 300 + [3000] * 300
    run = measured([50.0] * 600, request_class=["P0", "P1"] * 300, planned_input_tokens=lengths)
    other = measured([50.0] * 600, request_class=["P0", "P1"] * 300, planned_input_tokens=[100] * 590 + [3000] * 10)
    assert groups(run, run) == ["all", "P0", "P1", "input 0..256", "input 1024..4096"]
    assert groups(run, other) == ["all", "P0", "P1"]


def test_figures_that_a_run_has_lost_are_named() -> None:
    assert lost(simulated(1), measured([None] * 3000))[:3] == ["ttft mean, ms", "ttft p50, ms", "ttft p95, ms"]
    assert lost(simulated(1), simulated(2)) == []
