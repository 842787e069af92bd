"""Summaries and verdicts on known answers."""

from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from surgeproof.audit_results import Audit, AuditCheck
from surgeproof.records import Verdict
from surgeproof.results import Distribution, RuleVerdict
from surgeproof.slo.distributions import distribution
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge, overall
from surgeproof.slo.wording import notices
from tests.unit.gpu.fakes import sample
from tests.unit.slo.columns import EPOCH_NS, MS, measured, rng

BREACH = Audit((AuditCheck("worker_cpu_share", 0.99, 0.95, "of a core", False, "use --processes 4"),))


def verdict(rule: str, held: Any, request_class: str = "all", audit: Audit | None = None) -> RuleVerdict:
    (found,) = judge(held, parse_objectives({request_class: (rule,)}), audit or Audit())
    return found


def test_a_quantile_well_under_its_bound_passes_and_shows_its_sample() -> None:
    found = verdict("ttft p99 < 350ms", measured(list(rng().permutation([100.0 + i % 50 for i in range(1000)]))))
    assert found.verdict is Verdict.PASS
    assert (found.observed, found.n, found.attainment) == (149.0, 1000, 1.0)
    assert found.interval.high == 149.0


def test_too_few_requests_are_inconclusive_and_say_how_many_are_missing() -> None:
    """299 without a miss show a p99; 100 lack 199."""
    found = verdict("ttft p99 < 350ms", measured([100.0] * 100))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "199 more requests" in found.reason
    assert verdict("ttft p99 < 350ms", measured([100.0] * 299)).verdict is Verdict.PASS
    assert verdict("ttft p99 < 350ms", measured([100.0] * 298)).verdict is Verdict.INCONCLUSIVE


def test_a_bound_that_is_missed_for_certain_fails() -> None:
    values = list(rng().permutation([100.0] * 900 + [900.0] * 100))
    found = verdict("ttft p99 < 350ms", measured(values))
    assert found.verdict is Verdict.FAIL
    assert found.observed == 900.0
    assert found.attainment == pytest.approx(0.9)


def test_failed_requests_miss_every_latency_bound() -> None:
    """Fast answers to 95 % and errors to the rest are no p99."""
    outcome = list(rng().permutation(["ok"] * 950 + ["error:http_500"] * 50))
    found = verdict("ttft p99 < 350ms", measured([100.0] * 1000, outcome=outcome))
    assert found.verdict is Verdict.FAIL
    assert found.observed is None
    assert found.n == 1000


def test_cancelled_and_unsent_requests_decide_nothing() -> None:
    outcome = ["ok"] * 300 + ["cancelled"] * 50 + ["not_sent"] * 50
    found = verdict("success >= 99%", measured([100.0] * 400, outcome=outcome))
    assert (found.n, found.verdict) == (300, Verdict.PASS)


def test_errors_are_misses_of_attainment_and_goodput() -> None:
    """10 requests in 5 s, 2 errors, 6 of 8 answers good: attainment 0.6, goodput 1.2/s."""
    held = measured(
        [100.0] * 6 + [900.0] * 2 + [100.0] * 2,
        outcome=["ok"] * 8 + ["error:reset"] * 2,
        e2e_ms=[500.0] * 10,
        every_ms=500.0,
    )
    figures = summarise(held, {"ttft": 200.0}).total
    assert figures.duration_s == pytest.approx(5.0)
    assert figures.attainment == pytest.approx(0.6)
    assert figures.goodput_per_s == pytest.approx(1.2)


def test_all_objectives_must_hold_for_the_same_request_and_equality_passes() -> None:
    """(150,40), (150,60), (250,40), (100,50) under 200/50: two of four."""
    held = measured([150.0, 150.0, 250.0, 100.0], tpot_ms=[40.0, 60.0, 40.0, 50.0])
    assert summarise(held, {"ttft": 200.0, "tpot": 50.0}).total.attainment == 0.5


def test_a_joint_share_rule_counts_joint_misses() -> None:
    held = measured([150.0, 250.0] * 200, tpot_ms=[60.0, 40.0] * 200)
    found = verdict("ttft < 200ms and tpot < 50ms for 50%", held)
    assert (found.attainment, found.verdict) == (0.0, Verdict.FAIL)


def test_an_objective_that_cannot_be_evaluated_says_so() -> None:
    """A first-token objective against answers that were not streamed."""
    found = verdict("ttft p99 < 200ms", measured([None] * 20))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert (found.observed, found.attainment) == (None, None)
    assert "not evaluable: 20 of 20" in found.reason


def test_without_objectives_there_is_no_goodput() -> None:
    figures = summarise(measured([100.0])).total
    assert figures.attainment is UNSET
    assert figures.goodput_per_s is UNSET


def test_failed_requests_stay_out_of_latency_and_throughput() -> None:
    """8 answered in 1,000 ms with 100 tokens, 2 failed with partial ones, 5 s: 160 tokens/s, 20 %."""
    held = measured(
        [100.0] * 10,
        outcome=["ok"] * 8 + ["error:reset"] * 2,
        e2e_ms=[1000.0] * 8 + [10.0, 4910.0],
        every_ms=10.0,
        output_tokens=[100] * 8 + [3, 3],
    )
    figures = summarise(held).total
    assert figures.latency_ms["e2e"].mean == pytest.approx(1000.0)
    assert figures.latency_ms["e2e"].n == 8
    assert figures.output_tokens_per_s == pytest.approx(160.0)
    assert figures.success_ratio == pytest.approx(0.8)


def test_single_token_answers_have_no_time_per_token() -> None:
    figures = summarise(measured([100.0] * 3, tpot_ms=[None, 30.0, 20.0])).total.latency_ms["tpot"]
    assert (figures.mean, figures.n) == (25.0, 2)


def test_nothing_answered_gives_nulls_and_counts() -> None:
    figures = summarise(measured([None] * 3, outcome=["error:connect"] * 3)).total
    assert figures.latency_ms["ttft"] == Distribution(0, min=None, max=None)
    assert figures.outcomes == {"error:connect": 3}


def test_quantiles_are_exact_and_ordered() -> None:
    figures = distribution(np.array([575.0]))
    assert figures.p50 == figures.p99 == figures.max == 575.0
    figures = distribution(rng().exponential(size=5000))
    assert figures.p50 <= figures.p90 <= figures.p99 <= figures.max


def test_a_client_that_is_not_trustworthy_voids_latencies_but_not_success() -> None:
    held = measured([900.0] * 1000)
    found = verdict("ttft p99 < 350ms", held, audit=BREACH)
    assert found.verdict is Verdict.INVALID
    assert "--processes 4" in found.reason
    assert verdict("success >= 99%", held, audit=BREACH).verdict is Verdict.PASS
    assert overall(measured([100.0]), [found], BREACH) is Verdict.INVALID


def test_the_worst_rule_is_the_runs_verdict() -> None:
    held = measured([100.0] * 100)
    verdicts = judge(held, parse_objectives({"all": ("ttft p50 < 1s", "ttft p99 < 1s", "ttft p50 < 1ms")}), Audit())
    assert [str(v.verdict) for v in verdicts] == ["PASS", "INCONCLUSIVE", "FAIL"]
    assert overall(measured([100.0]), verdicts, Audit()) is Verdict.FAIL
    assert overall(measured([100.0]), verdicts[:2], Audit()) is Verdict.INCONCLUSIVE


def test_a_run_in_which_nothing_was_answered_fails_without_rules() -> None:
    held = measured([None] * 5, outcome=["error:connect"] * 4 + ["error:timeout"])
    assert overall(held, [], Audit()) is Verdict.FAIL
    assert notices(summarise(held)) == ["0 of 5 answered: 4 × error:connect"]
    assert overall(held, [], BREACH) is Verdict.INVALID
    assert overall(measured([100.0]), [], Audit()) is None


def test_classes_are_judged_apart() -> None:
    held = measured([100.0, 900.0] * 300, request_class=["P0", "P2"] * 300)
    assert verdict("ttft p95 < 350ms", held, "P0").verdict is Verdict.PASS
    assert verdict("ttft p95 < 350ms", held, "P2").verdict is Verdict.FAIL
    empty = verdict("ttft p95 < 350ms", held, "P1")
    assert (empty.verdict, empty.n) == (Verdict.INCONCLUSIVE, 0)


def test_warm_up_is_not_judged_but_shown() -> None:
    """The first ten answers of a compiling server."""
    held = measured([2400.0] * 10 + [600.0] * 90, phase=["warmup"] * 10 + ["main"] * 90)
    summary = summarise(held)
    assert summary.warmup == 10
    assert summary.total.latency_ms["ttft"].mean == pytest.approx(600.0)


def test_a_buffering_proxy_is_noticed_for_the_run() -> None:
    """When most answers came in one arrival, the figures say what they are."""
    held = measured([400.0] * 10, warnings=["buffered"] * 8 + [None] * 2, output_tokens=[None] * 10)
    found = notices(summarise(held))
    assert found[0].startswith("80% of the answers arrived in one read")
    assert "no usage" in found[1]
    assert notices(summarise(measured([400.0] * 10))) == []


@pytest.mark.parametrize(("bound", "expected"), [("20ms", "PASS"), ("5ms", "INCONCLUSIVE"), ("2ms", "FAIL")])
def test_a_time_per_token_through_a_buffer_passes_only_with_the_earliest_first_token(bound: str, expected: str) -> None:
    """32 tokens, the first read after 122 ms and the last after 190: 2.2 ms a token, or 6.1 from the request on."""
    held = measured(
        [122.0] * 2000,
        tpot_ms=[68.0 / 31] * 2000,
        last_token_at_ns=[EPOCH_NS + round(index * 10 * MS) + 190 * MS for index in range(2000)],
        output_tokens=[32] * 2000,
        warnings=["buffered_in_parts"] * 2000,
    )
    found = verdict(f"tpot p50 < {bound}", held)
    assert found.verdict == expected
    assert ("proxy_buffering off" in found.reason) is (expected == "INCONCLUSIVE")
    assert notices(summarise(held))[0].startswith("100% of the answers arrived in a few reads")


def test_a_throughput_rule_uses_the_load_window() -> None:
    """100 tokens every 10 ms is 10,000 a second."""
    held = measured([5.0] * 1000, e2e_ms=[10.0] * 1000)
    found = verdict("output_tokens_per_s >= 9000", held)
    assert found.observed == pytest.approx(10_000, rel=0.01)
    assert found.verdict is Verdict.PASS
    assert verdict("output_tokens_per_s >= 11000", held).verdict is Verdict.FAIL


def test_response_counts_from_the_plan_and_service_from_the_send() -> None:
    """10 requests a second into one slot of 500 ms: 500 + 400 i ms, mean 1,900, and 500 each."""
    sent = [1_800_000_000_000_000_000 + i * 500_000_000 for i in range(8)]
    held = measured([None] * 8, every_ms=100.0, e2e_ms=[500.0 + 400.0 * i for i in range(8)], sent_at_ns=sent)
    figures = summarise(held).total
    assert figures.latency_ms["e2e"].mean == pytest.approx(1900.0)
    assert figures.latency_ms["e2e"].max == pytest.approx(3300.0)
    assert figures.service_latency_ms["e2e"].mean == pytest.approx(500.0)


def test_a_fail_stands_only_if_the_client_cannot_explain_it() -> None:
    """First tokens after 110 ms against 100: read with later ones, they may have come after 90, or after 105."""
    ttft: list[float | None] = [110.0] * 400
    first = [EPOCH_NS + i * 10 * MS + 110 * MS for i in range(400)]
    for early_ms, expected in ((0, Verdict.FAIL), (5, Verdict.FAIL), (20, Verdict.INCONCLUSIVE)):
        held = measured(ttft, first_token_not_before_at_ns=[at - early_ms * MS for at in first])
        for rule in ("ttft p99 < 100ms", "ttft max < 100ms", "ttft < 100ms for 99%"):
            found = verdict(rule, held)
            assert found.verdict is expected, (rule, early_ms)
            assert ("the client's own delay" in found.reason) is (expected is Verdict.INCONCLUSIVE)
    found = verdict("ttft p99 < 100ms", measured(ttft, first_token_not_before_at_ns=[at - 20 * MS for at in first]))
    assert (found.interval.low, found.observed, found.interval.high) == (90.0, 110.0, 110.0)


def test_what_the_client_sent_late_is_not_the_servers() -> None:
    """30 ms late, answered 100 ms after the send: 130 ms from the plan, of which the server made 100."""
    sent = [EPOCH_NS + i * 10 * MS + 30 * MS for i in range(400)]
    held = measured([130.0] * 400, sent_at_ns=sent)
    assert verdict("ttft p99 < 120ms", held).verdict is Verdict.INCONCLUSIVE
    assert verdict("ttft p99 < 90ms", held).verdict is Verdict.FAIL
    assert verdict("ttft p99 < 150ms", held).verdict is Verdict.PASS


def test_a_wait_for_the_cap_is_the_servers() -> None:
    """One place and answers of 100 ms every 50 ms: the queue before the cap counts in full."""
    count = 100
    sent = [EPOCH_NS + i * 100 * MS for i in range(count)]
    latency: list[float | None] = [50.0 * i + 100.0 for i in range(count)]
    columns = measured(latency, e2e_ms=latency, every_ms=50.0, sent_at_ns=sent, worker=[0] * count).columns
    least, most = Measured(columns, cap=1).latency_ends_ms("e2e")
    assert least == pytest.approx(most)


def test_gaps_that_a_merged_read_may_have_made_decide_nothing() -> None:
    """A gap of 60 ms was seen; of it 20 ms are certain."""
    held = measured([50.0] * 400, max_gap_ns=[60 * MS] * 400, max_gap_least_ns=[20 * MS] * 400)
    assert verdict("max_gap p95 < 30ms", held).verdict is Verdict.INCONCLUSIVE
    assert verdict("max_gap p95 < 10ms", held).verdict is Verdict.FAIL
    assert verdict("max_gap p95 < 70ms", held).verdict is Verdict.PASS


def test_an_answer_has_two_ends() -> None:
    """The last token after 900 ms, [DONE] after 1,000; a reply that was not streamed has one end."""
    last = [EPOCH_NS + i * 10 * MS + 900 * MS for i in range(10)]
    streamed = summarise(measured([100.0] * 10, e2e_ms=[1000.0] * 10, last_token_at_ns=last)).total
    assert (streamed.latency_ms["last_token"].p50, streamed.latency_ms["e2e"].p50) == (900.0, 1000.0)
    whole = summarise(measured([None] * 10, e2e_ms=[1000.0] * 10)).total
    assert whole.latency_ms["last_token"].p50 == 1000.0


def test_one_missed_condition_is_enough_where_the_other_is_unknown() -> None:
    """300 of 1,000 answers wait ten seconds for their one token, which has no time per token."""
    tokens = [1] * 300 + [100] * 700
    held = measured(
        [10_000.0] * 300 + [100.0] * 700, tpot_ms=[None] * 300 + [20.0] * 700, output_tokens=tokens, every_ms=100.0
    )
    found = verdict("ttft < 200ms and tpot < 50ms for 99%", held)
    assert (found.verdict, found.attainment, found.n) == (Verdict.FAIL, 0.7, 1000)
    assert summarise(held, {"ttft": 200.0, "tpot": 50.0}).total.attainment == 0.7


def test_answers_whose_first_token_was_not_seen_can_turn_a_verdict() -> None:
    """300 within the bound say nothing of 700 that were not streamed; three unseen ones of 10,000 change nothing."""
    found = verdict("ttft p99 < 200ms", measured([100.0] * 300 + [None] * 700))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "700 responses have no ttft; the verdict could change" in found.reason
    assert verdict("ttft p99 < 200ms", measured([100.0] * 10_000 + [None] * 3)).verdict is Verdict.PASS
    assert verdict("ttft mean < 200ms", measured([100.0] * 300 + [None] * 700)).verdict is Verdict.INCONCLUSIVE


def test_a_sum_of_tokens_with_usage_missing_is_a_least_amount() -> None:
    """10,000 tokens a second of which half are told: enough for 4,000, no verdict on 9,000."""
    held = measured([5.0] * 1000, e2e_ms=[10.0] * 1000, output_tokens=[100, None] * 500)
    assert verdict("output_tokens_per_s >= 4000", held).verdict is Verdict.PASS
    missing = verdict("output_tokens_per_s >= 9000", held)
    assert (missing.verdict, missing.observed) == (Verdict.INCONCLUSIVE, None)
    assert "500 of 1000 responses have no token count" in missing.reason


def test_a_run_in_which_all_failed_fails() -> None:
    dead = measured([None] * 20, outcome=["error:connect"] * 20)
    for rule in ("requests_per_s >= 150", "ttft max < 1s", "ttft mean < 1s"):
        assert verdict(rule, dead).verdict is Verdict.FAIL, rule
    one = measured([5.0] * 999 + [None], outcome=["ok"] * 999 + ["error:reset"])
    assert verdict("ttft min < 100ms", one).verdict is Verdict.PASS
    assert verdict("ttft max < 100ms", one).verdict is Verdict.FAIL


def test_a_hundred_per_cent_asks_that_nothing_failed() -> None:
    assert verdict("success >= 100%", measured([5.0] * 50)).verdict is Verdict.PASS
    failed = measured([5.0] * 50, outcome=["ok"] * 49 + ["error:reset"])
    assert verdict("success >= 100%", failed).verdict is Verdict.FAIL
    assert verdict("errors <= 0%", failed).verdict is Verdict.FAIL


def gpu_run(percent: float, samples: int, seconds: float = 60.0) -> Measured:
    """A run of a minute with samples of one GPU spread over some seconds of it."""
    columns = measured([5.0] * 600, every_ms=100.0).columns
    held = [
        sample(
            at_ns=EPOCH_NS + round(i / samples * seconds * 1e9), time_active_pct=percent, memory_used_bytes=12 * 10**9
        )
        for i in range(samples)
    ]
    return Measured(columns, gpu=held)


def test_samples_of_a_gpu_must_cover_the_run_and_be_enough() -> None:
    assert verdict("gpu_time_active max <= 85%", gpu_run(70.0, 600)).verdict is Verdict.PASS
    assert verdict("gpu_time_active max <= 85%", gpu_run(70.0, 600, seconds=30.0)).verdict is Verdict.INCONCLUSIVE
    assert verdict("gpu_time_active max <= 85%", gpu_run(90.0, 2)).verdict is Verdict.FAIL
    assert verdict("gpu_time_active p99 <= 85%", gpu_run(70.0, 200)).verdict is Verdict.INCONCLUSIVE
    found = verdict("gpu_time_active p99 <= 85%", gpu_run(70.0, 400))
    assert (found.verdict, found.observed, found.unit) == (Verdict.PASS, pytest.approx(0.7), "%")


def test_figures_by_gpu_and_by_request_in_flight() -> None:
    """10 requests a second of half a second are 5 in flight: 12 GB are 2.4 GB each; one GPU makes 1,000 tokens/s."""
    run = gpu_run(70.0, 600)
    found = verdict("gpu_memory_per_request mean <= 2.5GB", run)
    assert (found.verdict, found.observed) == (Verdict.PASS, pytest.approx(2.4, rel=0.01))
    assert verdict("output_tokens_per_s_per_gpu >= 900", run).observed == pytest.approx(1000, rel=0.02)
    assert verdict("output_tokens_per_s_per_gpu >= 900", measured([5.0] * 600)).verdict is Verdict.INCONCLUSIVE


def test_conditions_whose_figures_nobody_has_do_not_stop_the_judge() -> None:
    """Answers of one token have no time per token, answers that were not streamed no first token."""
    single = measured([10_000.0] * 1000, output_tokens=[1] * 1000, token_events=[1] * 1000)
    assert verdict("tpot < 50ms and ttft < 200ms for 99%", single).verdict is Verdict.FAIL
    whole = measured([None] * 1000, e2e_ms=[900.0] * 1000, token_events=[0] * 1000)
    assert verdict("ttft < 200ms and e2e < 500ms for 99%", whole).verdict is Verdict.FAIL


def test_one_failure_among_unseen_answers_is_no_verdict() -> None:
    held = measured([None] * 1000, outcome=["error:reset"] + ["ok"] * 999)
    assert verdict("ttft p99 < 1s", held).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("metric", ["tpot", "first_answer", "max_gap"])
def test_answers_that_were_not_streamed_are_unseen_in_every_latency(metric: str) -> None:
    seen, unseen = 300, 700
    held = measured(
        [100.0] * seen + [None] * unseen,
        tpot_ms=[20.0] * seen + [None] * unseen,
        max_gap_ns=[20_000_000] * seen + [None] * unseen,
        token_events=[50] * seen + [0] * unseen,
    )
    assert verdict(f"{metric} p99 < 200ms", held).verdict is Verdict.INCONCLUSIVE


def test_gaps_inside_one_read_are_unseen() -> None:
    held = measured([100.0] * 1000, max_gap_ns=[0] * 1000, token_events=[50] * 1000)
    assert verdict("max_gap p99 < 50ms", held).verdict is Verdict.INCONCLUSIVE


def test_what_was_not_seen_lowers_a_minimum_and_moves_a_mean() -> None:
    held = measured([100.0] * 300 + [None] * 100)
    assert verdict("ttft min < 200ms", held).verdict is Verdict.PASS
    assert verdict("ttft min < 50ms", held).verdict is Verdict.INCONCLUSIVE
    failed = measured([100.0] * 300 + [None] * 100, outcome=["ok"] * 399 + ["error:reset"])
    assert verdict("ttft min < 50ms", failed).verdict is Verdict.INCONCLUSIVE
    assert verdict("ttft mean < 50ms", held).verdict is Verdict.INCONCLUSIVE
    assert verdict("ttft max < 50ms", held).verdict is Verdict.FAIL


def test_every_gpu_must_be_covered() -> None:
    columns = measured([5.0] * 600, every_ms=100.0).columns
    whole = [sample("A", EPOCH_NS + k * 100_000_000, power_w=300.0) for k in range(600)]
    part = [sample("B", EPOCH_NS + k * 100_000_000, power_w=300.0) for k in range(50)]
    assert verdict("gpu_power mean < 400W", Measured(columns, gpu=whole)).verdict is Verdict.PASS
    assert verdict("gpu_power mean < 400W", Measured(columns, gpu=[*whole, *part])).verdict is Verdict.INCONCLUSIVE
