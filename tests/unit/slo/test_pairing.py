"""Two runs of one plan: what both share cancels, and bounds stay honest."""

import numpy as np
import pytest

from surgeproof.records import Verdict
from surgeproof.slo.compare import Difference, Policy, compare
from surgeproof.slo.measured import Measured
from surgeproof.slo.pairing import shared_correlation
from tests.unit.slo.columns import measured

RUNS = 100
MARGIN = Policy(p99_rise_ms=40.0, p99_rise=0.0)


def pair(seed: int, shift_ms: float = 0.0, own_ms: float = 5.0, count: int = 3000) -> tuple[Measured, Measured]:
    """Requests that take as long as they are, log-normal around 500 ms, and some milliseconds of each run's own."""
    rng = np.random.default_rng(seed)
    work = rng.lognormal(6.2, 0.4, count)
    runs = [work + rng.normal(0, own_ms, count) + shift for shift in (0.0, shift_ms)]
    before, after = (measured(list(ttft), every_ms=100.0) for ttft in runs)
    return before, after


def p99(pair_of_runs: tuple[Measured, Measured], *, paired: bool) -> Difference:
    found = compare(pair_of_runs[0], pair_of_runs[1], MARGIN, paced=True, paired=paired)
    return next(d for d in found if (d.group, d.metric) == ("all", "ttft p99, ms"))


def test_equal_runs_of_one_plan_are_told_apart_from_chance_by_fewer_requests() -> None:
    """Without pairing the p99 of 1,350 ms is uncertain by more than the margin of 40 ms; paired it is not."""
    alone = [p99(pair(seed), paired=False).verdict for seed in range(10)]
    paired = [p99(pair(seed), paired=True).verdict for seed in range(10)]
    assert alone.count(Verdict.PASS) <= 1
    assert paired.count(Verdict.PASS) >= 8
    assert Verdict.FAIL not in paired


@pytest.mark.slow
@pytest.mark.parametrize("own_ms", [5.0, 300.0])
def test_at_the_margin_pairs_pass_and_fail_at_the_nominal_rate(own_ms: float) -> None:
    """A run that is slower by just the margin passes in 5 % of cases, and fails in as many."""
    verdicts = [p99(pair(seed, shift_ms=40.0, own_ms=own_ms), paired=True).verdict for seed in range(RUNS)]
    assert verdicts.count(Verdict.PASS) / RUNS <= 0.10
    assert verdicts.count(Verdict.FAIL) / RUNS <= 0.10


def test_runs_that_share_nothing_gain_nothing() -> None:
    """The lower bound of a correlation of 0 exceeds 0 in 5 % of cases."""
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        before, after = measured([1.0] * 1000), measured([1.0] * 1000)
        values = rng.standard_normal((2, 1000))
        everything = np.ones(1000, dtype=np.bool_)
        found.append(shared_correlation(before, after, (values[0], values[1]), (everything, everything)))
    assert np.mean(np.array(found) > 0) == pytest.approx(0.05, abs=0.045)


def test_runs_that_are_opposite_share_nothing() -> None:
    everything = np.ones(1000, dtype=np.bool_)
    values = np.random.default_rng(1).standard_normal(1000)
    run = measured([1.0] * 1000)
    assert shared_correlation(run, run, (values, -values), (everything, everything)) == 0.0


def test_requests_are_paired_by_their_place_in_the_plan() -> None:
    """The same values in another order are the same requests; a cyclic shift by a fifth of the plan is not."""
    values = np.repeat(np.random.default_rng(1).standard_normal(50), 20)
    everything = np.ones(1000, dtype=np.bool_)
    order = np.random.default_rng(2).permutation(1000)
    before = measured([1.0] * 1000)
    shuffled = measured([1.0] * 1000, plan_index=order.tolist())
    assert shared_correlation(before, shuffled, (values, values[order]), (everything, everything)) > 0.95
    assert shared_correlation(before, before, (values, np.roll(values, 200)), (everything, everything)) < 0.5
