"""What a breach of the client's audit voids, and what stands whatever the client did."""

import pytest

from surgeproof.audit_results import Audit, AuditCheck, ClientError, Effect
from surgeproof.records import Verdict
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.verdict import judge, overall
from tests.unit.slo.columns import EPOCH_NS, MS, measured

PASS, FAIL, INCONCLUSIVE, INVALID = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.INVALID


def audit(*effects: Effect, **error_ms: float) -> Audit:
    check = AuditCheck("check", 9.0, 5.0, "ms", False, "stop other programs", effects)
    return Audit((check,), error=ClientError(**error_ms))


def verdicts(rules: tuple[str, ...], held: Audit, ttft_ms: float = 100.0) -> list[Verdict]:
    # 100 tokens 20 ms apart.
    last = [EPOCH_NS + round((index * 10.0 + ttft_ms + 99 * 20.0) * MS) for index in range(2000)]
    run = measured([ttft_ms] * 2000, tpot_ms=[20.0] * 2000, last_token_at_ns=last)
    return [one.verdict for one in judge(run, parse_objectives({"all": rules}), held)]


@pytest.mark.parametrize(
    ("bound_ms", "expected"),
    [(150, PASS), (120, INVALID), (95, INVALID), (80, INVALID), (50, FAIL)],
)
def test_late_sending_voids_what_lies_within_its_measured_size(bound_ms: int, expected: Verdict) -> None:
    """All took 100 ms, off by up to 30 either way, as late requests leave others more of the server, or less."""
    assert verdicts((f"ttft p99 < {bound_ms}ms",), audit(Effect.LATE_SEND, send_ms=30.0)) == [expected]
    assert verdicts((f"ttft mean < {bound_ms}ms",), audit(Effect.LATE_SEND, send_ms=30.0)) == [expected]


def test_late_sending_hardly_touches_times_per_token_and_no_rates_and_shares() -> None:
    """30 ms over 99 tokens are 0.3 ms a token."""
    rules = ("tpot p99 < 20.4ms", "tpot p99 < 19.6ms", "tpot p99 < 20.2ms", "requests_per_s > 50", "success >= 99%")
    assert verdicts(rules, audit(Effect.LATE_SEND, send_ms=30.0)) == [PASS, FAIL, INVALID, PASS, PASS]


def test_late_reading_is_taken_off_every_latency() -> None:
    rules = ("ttft p99 < 95ms", "ttft p99 < 50ms", "ttft p99 < 150ms", "success >= 99%")
    assert verdicts(rules, audit(Effect.LATE_READ, read_ms=30.0)) == [INVALID, FAIL, PASS, PASS]


def test_a_clock_may_be_off_either_way() -> None:
    rules = ("ttft p99 < 120ms", "ttft p99 < 150ms", "ttft p99 < 80ms", "ttft p99 < 50ms")
    assert verdicts(rules, audit(Effect.CLOCK, clock_ms=30.0)) == [INVALID, PASS, INVALID, FAIL]


def test_a_lighter_load_leaves_what_was_missed_and_a_heavier_one_what_was_met() -> None:
    rules = ("ttft p99 < 150ms", "ttft p99 < 50ms", "requests_per_s > 50", "requests_per_s > 500", "success >= 99%")
    assert verdicts(rules, audit(Effect.LESS_LOAD)) == [INVALID, FAIL, PASS, INVALID, PASS]
    assert verdicts(rules, audit(Effect.MORE_LOAD)) == [PASS, INVALID, INVALID, FAIL, PASS]


def test_missing_records_void_everything_that_is_counted_from_them() -> None:
    rules = ("ttft p99 < 50ms", "requests_per_s > 500", "success >= 99%")
    assert verdicts(rules, audit(Effect.RECORDS)) == [INVALID] * 3


def test_a_run_that_more_requests_would_decide_is_inconclusive_whatever_the_client_did() -> None:
    """Fifty requests cannot show a p99, on time or not."""
    run = measured([100.0] * 50)
    (found,) = judge(run, parse_objectives({"all": ("ttft p99 < 350ms",)}), audit(Effect.LATE_SEND, send_ms=30.0))
    assert found.verdict is INCONCLUSIVE


def test_a_fail_that_stands_comes_before_what_is_void() -> None:
    run = measured([100.0] * 2000)
    held = audit(Effect.LATE_SEND, send_ms=30.0)
    found = judge(run, parse_objectives({"all": ("ttft p99 < 95ms", "ttft p99 < 50ms")}), held)
    assert [one.verdict for one in found] == [INVALID, FAIL]
    assert overall(run, found, held) is FAIL
    assert overall(run, found[:1], held) is INVALID
    assert overall(run, [], held) is INVALID


def test_a_run_that_the_server_refused_fails_although_its_client_was_late() -> None:
    refused = measured([None] * 100, outcome=["error:http_429"] * 100)
    assert overall(refused, [], audit(Effect.LATE_SEND, send_ms=30.0)) is FAIL
    assert overall(refused, [], audit(Effect.RECORDS)) is INVALID
