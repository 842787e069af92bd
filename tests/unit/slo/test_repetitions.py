"""Several runs judged as one: how they are laid end to end, and what that shows which one run cannot."""

import numpy as np
import pytest

from surgeproof.audit_results import Audit
from surgeproof.records import Verdict
from surgeproof.results import RuleVerdict
from surgeproof.slo.measured import Measured
from surgeproof.slo.rates import load_windows
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.stalls import stalls_s
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge
from tests.unit.slo.columns import EPOCH_NS, MS, measured


def verdict(rule: str, runs: list[Measured]) -> RuleVerdict:
    (found,) = judge(Measured.together(runs), parse_objectives({"all": (rule,)}), Audit())
    return found


def test_the_judged_requests_of_a_run_begin_where_those_before_it_ended() -> None:
    """Two runs of 100 requests every 10 ms, of which 20 warm up: 160 judged ones every 10 ms."""
    phase = ["warmup"] * 20 + ["main"] * 80
    later = [EPOCH_NS + 86_400_000 * MS + i * 10 * MS for i in range(100)]
    one = measured([5.0] * 100, phase=phase)
    two = measured([5.0] * 100, phase=phase, intended_at_ns=later, first_token_at_ns=[at + 5 * MS for at in later])
    whole = Measured.together([one, two])
    planned = whole.times_s["intended_at_ns"][whole.judged]
    assert np.diff(planned) == pytest.approx([0.01] * 159)
    assert len(set(whole.columns.integers("plan_index").tolist())) == 200
    assert whole.latency_ms("ttft").tolist() == [5.0] * 200


def test_repetitions_give_the_requests_that_one_run_lacks() -> None:
    """299 without a miss show a p99: 100 do not, three times 100 do."""
    runs = [measured([100.0] * 100) for _ in range(3)]
    assert verdict("ttft p99 < 350ms", runs[:1]).verdict is Verdict.INCONCLUSIVE
    found = verdict("ttft p99 < 350ms", runs)
    assert (found.verdict, found.n) == (Verdict.PASS, 300)


def test_runs_that_differ_are_as_few_as_they_are() -> None:
    """Three good runs and a bad one, each steady in itself: four stretches, not 4,000 requests."""
    levels = [200.0, 210.0, 190.0, 900.0]
    rng = np.random.default_rng(1)
    runs = [measured(list(level + rng.uniform(0, 20, 1000)), every_ms=100.0) for level in levels]
    found = verdict("ttft p70 < 500ms", runs)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "these 4 runs are too short" in found.reason or "near in time are alike" in found.reason
    assert verdict("ttft p70 < 500ms", runs[:3] * 3).verdict is Verdict.PASS


def test_a_rate_is_taken_over_the_windows_of_all_runs() -> None:
    """10/s in each of three runs, whose drains of 30 s are in none."""
    hung: list[float | None] = [100.0] * 299 + [30_000.0]
    runs = [measured([50.0] * 300, e2e_ms=hung, every_ms=100.0) for _ in range(3)]
    whole = Measured.together(runs)
    assert len(load_windows(whole)) == 3
    figures = summarise(whole).total
    assert figures.requests_per_s == pytest.approx(10.0, rel=0.01)
    assert figures.load is not None
    assert figures.load.window.startswith("over 89.4 s of 3 runs, ")
    alone = summarise(runs[0]).total.bounds["requests_per_s"]
    together = figures.bounds["requests_per_s"]
    assert alone.low is not None
    assert together.low is not None
    assert together.low >= alone.low


def test_a_part_without_the_busiest_minutes_passes_only_what_they_cannot_change() -> None:
    """3 % of the profile's requests are due in busier minutes: they could break a p99, not a p90."""
    quiet = measured([100.0] * 1000, every_ms=100.0)
    part = Measured(quiet.columns, left_out=0.03)
    (p99, p90, mean) = judge(
        part, parse_objectives({"all": ("ttft p99 < 1s", "ttft p90 < 1s", "ttft mean < 1s")}), Audit()
    )
    assert p99.verdict is Verdict.INCONCLUSIVE
    assert "3% of the profile's requests are due in busier minutes than were played" in p99.reason
    assert (p90.verdict, mean.verdict) == (Verdict.PASS, Verdict.PASS)
    assert verdict("ttft p99 < 1s", [part, Measured(quiet.columns)]).verdict is Verdict.PASS


def test_the_time_between_runs_is_no_stall() -> None:
    steady = Measured(measured([50.0] * 300, e2e_ms=[100.0] * 300, every_ms=100.0).columns, closed_loop=True)
    assert len(stalls_s(Measured.together([steady] * 4))) == 0
