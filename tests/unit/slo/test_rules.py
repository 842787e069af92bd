"""The rule language: what it reads, what it refuses, and how it says so."""

import pytest

from surgeproof.errors import RuleError
from surgeproof.slo.rules import METRICS, Condition, parse_goodput, parse_objectives, parse_rule


@pytest.mark.parametrize(
    ("text", "metric", "bound", "quantile", "aggregate", "view"),
    [
        ("ttft p99 < 350ms", "ttft", 350, 0.99, None, "response"),
        ("service e2e p95 <= 0.8s", "e2e", 800, 0.95, None, "service"),
        ("TPOT  P50<50ms", "tpot", 50, 0.5, None, "response"),
        ("max_gap p99.9 < 500us", "max_gap", 0.5, 0.999, None, "response"),
        ("first_answer mean < 2s", "first_answer", 2000, None, "mean", "response"),
        ("success >= 99.9%", "success", 0.999, None, None, "response"),
        ("errors < 0.3%", "errors", 0.003, None, None, "response"),
        ("output_tokens_per_s >= 1200", "output_tokens_per_s", 1200, None, None, "response"),
    ],
)
def test_a_rule_is_read(
    text: str, metric: str, bound: float, quantile: float | None, aggregate: str | None, view: str
) -> None:
    rule = parse_rule(text)
    assert (rule.metric, rule.quantile, rule.aggregate) == (metric, quantile, aggregate)
    assert rule.conditions[0].bound == pytest.approx(bound)
    assert rule.conditions[0].view == view


def test_a_share_rule_holds_all_conditions_at_once() -> None:
    rule = parse_rule("ttft < 200ms and service e2e < 3s for 99%")
    assert rule.quantile == 0.99
    assert rule.conditions == (Condition("ttft", "<", 200), Condition("e2e", "<", 3000, "service"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tftt p99 < 3ms", "unknown metric 'tftt'; did you mean ttft"),
        ("bleu p99 < 3ms", "known are ttft"),
        ("ttft p99 < 350", "needs a unit"),
        ("ttft < 350ms", "ttft needs an aggregate"),
        ("ttft p100 < 3s", "not a percentile"),
        ("success p99 >= 1%", "takes no p99"),
        ("success >= 101%", "exceed 100"),
        ("success >= 99", "percentage"),
        ("output_tokens_per_s >= 5ms", "without a unit"),
        ("service success >= 99%", "no service view"),
        ("ttft p99 = 3ms", "cannot be read"),
        ("", "cannot be read"),
        ("ttft < 3ms for 100%", "between 0 % and 100 %"),
        ("success >= 99% for 99%", "needs a latency of single requests"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_with_a_way_out(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse_rule(text)


def test_an_unknown_metric_lists_all_known_ones() -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule("nonsense < 3")
    assert all(metric in str(caught.value) for metric in METRICS)


def test_equality_is_as_it_is_written() -> None:
    assert parse_rule("ttft p50 <= 5ms").conditions[0].met_by(5.0)
    assert not parse_rule("ttft p50 < 5ms").conditions[0].met_by(5.0)


def test_goodput_takes_vllms_names() -> None:
    assert parse_goodput(["ttft:500", "tpot:50", "e2el:3000"]) == {"ttft": 500, "tpot": 50, "last_token": 3000}
    for pair in ("itl:5", "ttft", "ttft:x", "ttft:-1", "ttft:inf"):
        with pytest.raises(RuleError, match="goodput"):
            parse_goodput([pair])


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("ttft p99 > 500ms", "use an upper bound"),
        ("ttft > 5ms for 99%", "use an upper bound"),
        ("errors < 1", "write a percentage"),
        ("errors < 0%", "a share cannot be below 0 %"),
        ("fluidity 500ms/0ms >= 90%", "a deadline of 0"),
        ("gpu_power mean < 400W where model = a", "takes no 'where'"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: str, told: str) -> None:
    with pytest.raises(RuleError, match=told):
        parse_rule(rule)


def test_gaps_and_times_per_token_ask_for_no_better_schedule() -> None:
    """Late sending cannot make them longer: the send-lag limit follows latencies from the planned time alone."""
    slo = {"P0": ("tpot p50 < 50ms", "max_gap p95 < 30ms", "ttft p99 < 2s"), "P1": ("e2e p90 < 5s",)}
    assert parse_objectives(slo).tightest_ms == 2000.0
    assert parse_objectives({"all": ("tpot p50 < 50ms",)}).tightest_ms is None
