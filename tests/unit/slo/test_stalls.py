"""Stalls of a server, from records whose times are known."""

import numpy as np
import pytest

from surgeproof.audit_results import Audit
from surgeproof.records import Verdict
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.stalls import stalls_s
from surgeproof.slo.verdict import judge
from tests.unit.slo.columns import EPOCH_NS, MS, measured


def users(count: int, answers: int, freeze: tuple[float, float] | None = None, idle: bool = False) -> Measured:
    """Closed loop: first token after 20 ms, end after 100 ms, in a row; nothing comes during `freeze`, ms."""
    sent, first, done, gaps = [], [], [], []
    for user in range(count):
        at = float(user)
        for _ in range(answers):
            if idle and freeze and at < freeze[0] <= at + 100:
                at = freeze[1] + user
            times = [at + 20, at + 100]
            if freeze:
                times = [time + (freeze[1] - freeze[0]) if time > freeze[0] > at else time for time in times]
            sent.append(at)
            first.append(times[0])
            done.append(times[1])
            gaps.append(times[1] - times[0])
            at = times[1]

    def stamps(values: list[float]) -> list[int]:
        return [EPOCH_NS + round(value * MS) for value in values]

    return measured(
        [0.0] * len(sent), intended_at_ns=stamps(sent), sent_at_ns=stamps(sent), first_token_at_ns=stamps(first),
        last_token_at_ns=stamps(done), done_at_ns=stamps(done), max_gap_ns=[round(gap * MS) for gap in gaps],
        tpot_ns=[5 * MS] * len(sent),
    )  # fmt: skip


def test_a_stall_of_two_seconds_is_found_with_its_length() -> None:
    found = stalls_s(users(4, 50, (1050.0, 3050.0)))
    assert found == pytest.approx([2.0], abs=0.1)


def test_a_steady_server_and_a_pause_without_requests_are_no_stall() -> None:
    assert len(stalls_s(users(4, 50))) == 0
    assert len(stalls_s(users(4, 50, (1050.0, 3050.0), idle=True))) == 0


def test_replies_without_streams_show_no_stall() -> None:
    assert len(stalls_s(measured([None] * 10))) == 0
    assert len(stalls_s(measured([]))) == 0


def test_slow_first_tokens_are_no_stall() -> None:
    """One user whose every answer begins after a second waits a second each time."""
    count = 30
    sent = [EPOCH_NS + index * 1100 * MS for index in range(count)]
    held = measured(
        [0.0] * count, intended_at_ns=sent, sent_at_ns=sent, first_token_at_ns=[at + 1000 * MS for at in sent],
        last_token_at_ns=[at + 1090 * MS for at in sent], done_at_ns=[at + 1090 * MS for at in sent],
        max_gap_ns=[10 * MS] * count, tpot_ns=[10 * MS] * count,
    )  # fmt: skip
    assert np.size(stalls_s(held)) == 0


def test_a_stall_that_was_seen_makes_its_requests_count_as_one() -> None:
    """4 users answer 40 a second; one stall of 2 s makes 80 requests alike, and 2,000 say as much as 25."""
    steady, stalled = users(4, 500), users(4, 500, (1050.0, 3050.0))
    rules = parse_objectives({"all": ("ttft p90 < 25ms",)})
    (before,), (after,) = judge(steady, rules, Audit()), judge(stalled, rules, Audit())
    assert before.verdict is Verdict.PASS
    assert after.verdict is Verdict.INCONCLUSIVE
    assert after.attainment is not None
    assert after.attainment > 0.99


def test_a_closed_loop_is_judged_from_the_send() -> None:
    """A client that is 500 ms late to send, in a loop that has no plan: 100 ms, and open 600 ms."""
    late = [EPOCH_NS + (index * 10 + 500) * MS for index in range(400)]
    held = measured([600.0] * 400, sent_at_ns=late)
    closed = Measured(held.columns, closed_loop=True)
    assert held.latency_ms("ttft").tolist() == [600.0] * 400
    assert closed.latency_ms("ttft").tolist() == [100.0] * 400
