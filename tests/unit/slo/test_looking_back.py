"""Baselines, decisions, budgets, breakers and the length of a run."""

from typing import Any

import numpy as np
import pytest

from surgeproof.errors import RuleError
from surgeproof.records import RunState, Verdict
from surgeproof.slo.baseline import Slot, choose_history, deviations, earlier_runs, explain
from surgeproof.slo.breaker import breaker
from surgeproof.slo.burn import budgets
from surgeproof.slo.compare import Figure, compare
from surgeproof.slo.correlation import Correlation
from surgeproof.slo.decision import Action, decide
from surgeproof.slo.intervals import share_interval
from surgeproof.slo.measured import Measured
from surgeproof.slo.presets import PRESETS
from surgeproof.slo.rules import parse_objectives, parse_rule
from surgeproof.slo.sample_size import needs
from surgeproof.stored_runs import RunHead
from tests.unit.gpu.fakes import sample
from tests.unit.slo.columns import EPOCH_NS, measured, rng

HOUR_NS = 3_600_000_000_000


def run(number: int, hours_ago: float, **changes: Any) -> RunHead:
    values: dict[str, Any] = {
        "id": number,
        "uid": str(number),
        "name": "nightly",
        "state": RunState.FINISHED,
        "verdict": Verdict.PASS,
        "started_at_ns": 1_800_000_000_000_000_000 - round(hours_ago * HOUR_NS),
        "base_url": "http://x/v1",
        "model": "m",
        "endpoint": "chat",
    }
    return RunHead(**values | changes)


def test_history_is_of_the_same_name_and_hour_where_three_are() -> None:
    others = [run(1, 24), run(2, 48.5), run(3, 71.4), run(4, 30), run(5, 24, name="x")]
    others += [run(6, 24, state=RunState.BROKEN), run(7, 24, verdict=Verdict.INVALID), run(8, 24 * 9), run(9, -1)]
    earlier = earlier_runs(run(0, 0), others, 7)
    assert [head.id for head in earlier] == [1, 2, 3, 4]
    chosen, slot = choose_history(run(0, 0), earlier, 7)
    assert ([head.id for head in chosen], slot) == ([1, 2, 3], Slot.HOUR)
    few = [run(1, 24), run(4, 30), run(2, 49.5)]
    assert choose_history(run(0, 0), few, 7) == (few, Slot.ANY)


def test_a_sunday_is_compared_with_sundays_where_three_of_four_weeks_ran() -> None:
    """Every day of four weeks at one hour; two weeks give two Sundays, and then the last seven days count."""
    daily = [run(number, 24 * number) for number in range(1, 29)]
    chosen, slot = choose_history(run(0, 0), daily, 7)
    assert ([head.id for head in chosen], slot) == ([7, 14, 21, 28], Slot.WEEKDAY)
    chosen, slot = choose_history(run(0, 0), daily[:14], 7)
    assert ([head.id for head in chosen], slot) == ([1, 2, 3, 4, 5, 6, 7], Slot.HOUR)


def exact(value: float) -> Figure:
    """A figure without error."""
    return Figure(value, value, value)


def test_a_share_is_compared_in_points_and_with_its_interval() -> None:
    """99.95 % answered before; 85.5 % of 2,000 alarm, 99.8 % do not, nor do 97 % of 100, which chance explains."""
    history = [{"all": {"success, %": exact(value)}} for value in (99.9, 99.95, 99.95, 100.0)]

    def alarm(hits: int, count: int) -> bool:
        interval = share_interval(hits, count)
        assert interval.low is not None
        assert interval.high is not None
        figure = Figure(100 * hits / count, 100 * interval.low, 100 * interval.high)
        return deviations({"all": {"success, %": figure}}, history)[0].alarm

    assert alarm(1710, 2000)
    assert not alarm(1996, 2000)
    assert not alarm(97, 100)


def test_a_figure_whose_own_error_explains_the_step_does_not_alarm() -> None:
    history = [{"all": {"ttft p99, ms": exact(100.0)}} for _ in range(5)]
    for low, expected in ((125.0, True), (60.0, False), (None, False)):
        figure = Figure(140.0, low, None)
        assert deviations({"all": {"ttft p99, ms": figure}}, history)[0].alarm is expected, low


def test_a_figure_alarms_when_it_is_off_by_share_and_by_spread() -> None:
    """Median 100, spread 1.4826 x 4: 120 is 20 % and 3.4 spreads off; 114 is too little, 80 is faster."""
    history = [{"all": {"ttft p99, ms": exact(value)}} for value in (96.0, 100.0, 104.0, 98.0, 106.0)]

    def alarm(value: float) -> bool:
        (found,) = deviations({"all": {"ttft p99, ms": exact(value)}}, history)
        assert (found.median, found.spread) == (100.0, pytest.approx(1.4826 * 4))
        return found.alarm

    assert alarm(120.0)
    assert not alarm(114.0)
    assert not alarm(80.0)
    rates = [{"all": {"requests/s": exact(10.0 + i / 100)}} for i in range(5)]
    assert deviations({"all": {"requests/s": exact(8.0)}}, rates)[0].alarm
    assert deviations({"all": {"requests/s": exact(8.0)}}, rates[:2]) == []


def test_alarms_are_explained_by_group_phase_and_new_tags() -> None:
    history = [
        {"all": {"tpot mean, ms": exact(20.0 + i / 10)}, "input 1024..4096": {"tpot mean, ms": exact(22.0 + i / 10)}}
        for i in range(5)
    ]
    now = {"all": {"tpot mean, ms": exact(30.0)}, "input 1024..4096": {"tpot mean, ms": exact(60.0)}}
    told = explain(deviations(now, history), {"image": "v2", "team": "a"}, [{"image": "v1", "team": "a"}] * 5)
    assert told == [
        "worst in input 1024..4096: tpot mean, ms +170.3%",
        "decode: tpot mean, ms +48.5%",
        "tag image is v2, it was v1",
    ]


def test_the_decision_table_goes_from_the_worst_row_down() -> None:
    good = measured([100.0] * 100)
    assert decide(good, Verdict.PASS).action is Action.PROMOTE
    assert decide(good, Verdict.INCONCLUSIVE).action is Action.HOLD
    assert decide(good, Verdict.INVALID).action is Action.HOLD
    assert decide(measured([100.0] * 90 + [3000.0] * 10), Verdict.PASS).action is Action.HOLD
    broken = measured([100.0] * 100, outcome=["ok"] * 94 + ["error:http_503"] * 6, http_status=[200] * 94 + [503] * 6)
    assert decide(broken, Verdict.PASS).action is Action.ROLL_BACK
    reset = measured([100.0] * 100, outcome=["ok"] * 85 + ["error:reset"] * 15)
    assert decide(reset, Verdict.FAIL, baseline_success=0.99).action is Action.ROLL_BACK
    assert decide(reset, Verdict.FAIL, baseline_success=0.90).action is Action.HOLD
    assert decide(reset, None).action is Action.ROLL_BACK
    timeouts = measured([100.0] * 1000, outcome=["ok"] * 920 + ["error:timeout"] * 80)
    assert decide(timeouts, None).action is Action.HOLD
    assert decide(measured([None] * 1000), Verdict.PASS).action is Action.HOLD
    assert decide(measured([100.0]), None).action is Action.HOLD
    assert decide(measured([100.0] * 1000), None).action is Action.PROMOTE
    dead = measured([100.0] * 20, outcome=["error:connect"] * 20, http_status=[0] * 20)
    assert decide(dead, None).action is Action.ROLL_BACK


def test_a_budget_is_spent_by_misses_and_burns_where_they_are() -> None:
    """10 of 1,000 miss where 10 may: spent exactly; all in the last thirtieth of the run, which burns 30-fold."""
    run = measured([100.0] * 990 + [900.0] * 10)
    (budget,) = budgets(run, parse_objectives({"P0": ("ttft p99 < 500ms",)}))
    assert (budget.requests, budget.misses, budget.spent) == (1000, 10, pytest.approx(1.0))
    burns = [burn for _, _, burn in budget.windows]
    assert burns[:29] == [0.0] * 29
    assert burns[29] == pytest.approx(10 / budget.windows[29][1] / 0.01)
    assert budgets(run, parse_objectives({"P0": ("ttft mean < 1s", "requests_per_s > 1")})) == []


def test_the_length_of_a_run_follows_from_its_rules() -> None:
    """299 requests without a miss show a p99, 29,956 show 99.99 % (0.9999^n < 0.05); P0 is half of 10 a second."""
    rules = parse_objectives({"P0": ("ttft p99 < 1s", "success >= 99.99%", "ttft mean < 1s")})
    p99, success, mean = needs(rules, 10.0, {"P0": 1.0, "P1": 1.0})
    assert (p99.at_best, success.at_best, mean.at_best) == (299, 29_956, 80)
    assert p99.likely is not None
    assert p99.likely > p99.at_best
    assert p99.minutes == pytest.approx(p99.likely / 5 / 60, abs=0.1)
    assert needs(rules, None, {"P0": 1.0})[0].minutes is None


def test_declared_stalls_need_stretches_of_their_length() -> None:
    """A p99 needs 299 stretches of 2.5 s, 747.5 s: 7,475 requests of 10/s; at 0.1/s, 299 requests are longer."""
    rules = parse_objectives({"all": ("ttft p99 < 1s with stalls of 2.5s",)})
    (at_ten,), (slow,), (unknown,) = (needs(rules, rate, {"P1": 1.0}) for rate in (10.0, 0.1, None))
    assert (at_ten.at_best, slow.at_best, unknown.at_best) == (7475, 299, 299)
    assert at_ten.likely is not None
    assert at_ten.minutes == pytest.approx(at_ten.likely / 10 / 60, abs=0.1)
    assert unknown.minutes == at_ten.minutes


def test_requests_that_are_alike_need_as_many_intervals_of_them() -> None:
    """A design effect of 20 over stretches of 30 s: 299 intervals are 5,980 requests, 598 s at 10/s."""
    rules = parse_objectives({"all": ("ttft p99 < 1s", "ttft p50 < 1s")})
    alike = Correlation(20.0, 10.0, 300.0)
    p99, p50 = needs(rules, 10.0, {"P1": 1.0}, {("all", rule.text): alike for _, rule in rules})
    assert (p99.intervals, p99.at_best, p99.correlation_s) == (299, 5980, 30.0)
    assert p99.minutes == pytest.approx((p99.likely or 0) / 600, abs=0.1)
    assert p50.at_best == 5 * 20
    assert p50.minutes == pytest.approx(8 * 30 / 60), "eight independent stretches are longer than its requests"


def test_a_breaker_would_have_opened_before_the_p99_was_missed() -> None:
    """Load and latency double in the last tenth: the suggested threshold lies below the scores there."""
    ttft = [100.0] * 900 + list(np.linspace(500, 4000, 100))
    found = breaker(measured(ttft), 2000.0)
    assert len(found.windows) == 30
    assert found.threshold is not None
    assert found.threshold <= max(score for _, score in found.windows)
    assert breaker(measured([100.0] * 300), 2000.0).threshold is None


def test_gpu_memory_weighs_in_a_breakers_score_where_it_was_sampled() -> None:
    """A steady load: 0.3 x 1 + 0.4 x 0, and 0.3 x the share of memory; without samples the two weigh 3 : 4."""
    run = measured([100.0] * 300)
    held = [sample(at_ns=EPOCH_NS + i * 100_000_000, memory_used_bytes=(2 + 4 * (i >= 15)) * 10**10) for i in range(30)]
    beside = Measured(run.columns, gpu=held)
    plain = [score for _, score in breaker(run, 2000.0).windows]
    weighed = [score for _, score in breaker(beside, 2000.0, 80e9).windows]
    assert plain[3] == pytest.approx(0.3 / 0.7, abs=0.05)
    assert weighed[3] == pytest.approx(0.3 + 0.3 * 0.25, abs=0.05)
    assert weighed[25] == pytest.approx(0.3 + 0.3 * 0.75, abs=0.05)
    assert [score for _, score in breaker(beside, 2000.0).windows] == plain


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_rules(name: str) -> None:
    assert parse_objectives({"preset": (name,)})


def test_presets_add_to_other_rules_and_unknown_ones_are_named() -> None:
    rules = parse_objectives({"P0": ("tpot p50 < 1s",), "preset": ("service-classes",)})
    assert [rule.text for rule in rules.by_class["P0"]] == ["tpot p50 < 1s", "success >= 99.99%", "ttft p99 < 50ms"]
    with pytest.raises(RuleError, match="no SLO preset 'x'; known are service-classes"):
        parse_objectives({"preset": ("x",)})


def test_selectors_choose_requests() -> None:
    """Half of the requests are long and slow; the rule is about the short ones."""
    run = measured([100.0, 900.0] * 400, planned_input_tokens=[100, 5000] * 400, model=["a", "b"] * 400)
    for where, share in (("input < 1000", 0.5), ("input 1000..5001", 0.5), ("input >= 5000 and model = b", 0.5)):
        mask = run.selected(parse_rule(f"ttft p99 < 1s where {where}").selectors)
        assert mask.mean() == share
    assert not run.selected(parse_rule("ttft p99 < 1s where input 1000..5000").selectors).any()
    with pytest.raises(RuleError, match="cannot read 'colour = red' after 'where'"):
        parse_rule("ttft p99 < 1s where colour = red")


def test_a_candidate_that_is_shown_to_be_slower_is_never_promoted() -> None:
    """The same tail, a median 30 % higher: 100 of 2,000 requests take 500 ms in both."""

    def run(typical_ms: float) -> Measured:
        typical = typical_ms * rng(3).uniform(0.9, 1.1, 1900)
        waits = rng(4).permutation([*typical, *[500.0] * 100])
        return measured(list(waits), e2e_ms=list(waits + 400.0))

    before = run(100.0)
    for typical_ms, expected in ((130.0, Action.ROLL_BACK), (100.0, Action.PROMOTE), (105.0, Action.HOLD)):
        after = run(typical_ms)
        differences = compare(before, after, paced=True, paired=True)
        assert decide(after, Verdict.PASS, 1.0, differences).action is expected
    assert decide(before, Verdict.PASS, 1.0, [], ["ttft p99, ms"]).action is Action.HOLD
