"""The open loop under a manual clock: absolute times, the cap, turns, stops, failing starts, shares."""

from collections.abc import Sequence

import numpy as np
import pytest

from surgeproof.loadgen.open_loop import PREPARE_AHEAD, OpenLoop
from surgeproof.loadgen.plan import Plan, StepPlan, add_sessions, make_plan, turns_after_responses, with_steps
from surgeproof.records import RequestPlan, StreamRecord
from surgeproof.scenario import LoadConfig
from tests.fakes import ManualClock, ManualSender, ManualTimer

MS = 1_000_000
START = 1_800_000_000_000_000_000


class Driven:
    """An open loop with all its parts in the test's hands."""

    def __init__(
        self,
        plans: Sequence[RequestPlan],
        *,
        cap: int = 1000,
        broken: tuple[int, ...] = (),
        slow_ms: int = 0,
        load: LoadConfig | None = None,
    ) -> None:
        self.clock = ManualClock(START - 100 * MS)
        self.sender = ManualSender(self.clock, broken, slow_ms * MS)
        self.timer = ManualTimer(self.clock)
        self.records: list[StreamRecord] = []
        self.finished = 0
        self.loop = OpenLoop(
            [plan for plan in plans if not plan.after], load or LoadConfig(), self.sender, self.clock, worker=3,
            cap=cap, start_at_ns=START, on_record=self.records.append, on_finished=self._on_finished,
            steps=[plan for plan in plans if plan.after],
        )  # fmt: skip
        self.timer.fire = self.loop.fire
        self.loop.start(self.timer)

    def _on_finished(self) -> None:
        self.finished += 1

    def to(self, ms: float) -> None:
        self.timer.advance_to(START + round(ms * MS))

    @property
    def sent_ms(self) -> list[tuple[int, float]]:
        """Index and time of each send, ms since the start."""
        return [(index, (at - START) / MS) for index, _, at in self.sender.sent]


def plan_at(*times_ms: float) -> Plan:
    times = np.array([round(ms * MS) for ms in times_ms], dtype=np.int64)
    return make_plan(times, np.full((len(times), 2), 10), {"P1": 1.0}, seed=1)


def at(*times_ms: float) -> list[RequestPlan]:
    plan = plan_at(*times_ms)
    return [plan[index] for index in range(len(plan))]


def test_every_request_starts_at_its_absolute_time() -> None:
    driven = Driven(at(0, 7, 7, 20.5))
    driven.to(30)
    assert driven.sent_ms == [(0, 0), (1, 7), (2, 7), (3, 20.5)]
    assert [intended for _, intended, _ in driven.sender.sent] == [
        START,
        START + 7 * MS,
        START + 7 * MS,
        START + 20_500_000,
    ]


def test_a_slow_start_delays_no_later_request_beyond_itself() -> None:
    """A start takes 15 ms: what is due meanwhile leaves when it returns, and the schedule goes on at absolute times."""
    driven = Driven(at(0, 10, 100, 110), slow_ms=15)
    driven.to(200)
    assert driven.sent_ms == [(0, 0), (1, 15), (2, 100), (3, 115)]


def test_unanswered_requests_delay_nothing_below_the_cap() -> None:
    driven = Driven(at(*range(50)))
    driven.to(60)
    assert [ms for _, ms in driven.sent_ms] == list(range(50))
    assert driven.sender.in_flight == 50


def test_at_the_cap_due_requests_wait_for_an_answer_and_keep_their_planned_time() -> None:
    driven = Driven(at(0, 1, 2, 3), cap=2)
    driven.to(10)
    assert driven.sent_ms == [(0, 0), (1, 1)]
    assert driven.loop.waiting == 2
    driven.sender.answer(0)
    assert driven.sent_ms[-1] == (2, 10)
    assert driven.sender.sent[-1][1] == START + 2 * MS
    assert driven.loop.waiting == 1
    driven.sender.answer(1)
    assert driven.loop.waiting == 0


def test_a_start_that_raises_becomes_a_record_and_moves_no_other() -> None:
    driven = Driven(at(0, 5, 10), broken=(1,))
    driven.to(20)
    assert driven.sent_ms == [(0, 0), (2, 10)]
    (failed,) = driven.records
    assert (failed.plan_index, failed.outcome, failed.worker) == (1, "error:client_resource", 3)
    assert "no socket" in (failed.error or "")


def test_all_starts_raising_still_finishes_with_a_record_each() -> None:
    driven = Driven(at(0, 5, 10), broken=(0, 1, 2))
    driven.to(20)
    assert [record.plan_index for record in driven.records] == [0, 1, 2]
    assert driven.finished == 1


def test_the_share_is_reported_done_once_after_its_last_answer() -> None:
    driven = Driven(at(0, 1))
    driven.to(5)
    driven.sender.answer(1)
    assert driven.finished == 0
    driven.sender.answer(0, "error:timeout")
    assert driven.finished == 1


def test_an_empty_share_is_done_at_once() -> None:
    assert Driven([]).finished == 1


def test_more_requests_than_are_prepared_ahead_all_leave_on_time() -> None:
    """Nobody prepares meanwhile: what is not ready is made when it is due."""
    count = 3 * PREPARE_AHEAD
    driven = Driven(at(*range(count)))
    driven.to(count)
    assert driven.sent_ms == [(index, index) for index in range(count)]


def test_preparing_keeps_a_bounded_number_ready() -> None:
    driven = Driven(at(*range(100, 100 + 2 * PREPARE_AHEAD)))
    assert not driven.loop.prepare()
    driven.to(100)
    assert driven.loop.prepare()
    assert not driven.loop.prepare()


def test_after_a_stop_nothing_leaves_and_what_was_not_sent_is_recorded() -> None:
    driven = Driven(at(0, 10, 20, *range(30, 200)))
    driven.to(12)
    driven.loop.stop()
    driven.to(500)
    assert driven.sent_ms == [(0, 0), (1, 10)]
    driven.sender.answer(0)
    driven.loop.close("the run was interrupted")
    unsent = [record for record in driven.records if record.outcome == "not_sent"]
    assert [record.plan_index for record in unsent] == list(range(2, 173))
    assert {record.error for record in unsent} == {"the run was interrupted"}
    assert unsent[0].intended_at_ns == START + 20 * MS
    assert {record.worker for record in unsent} == {3}


def test_a_shed_answer_is_an_answer_and_moves_no_schedule() -> None:
    driven = Driven(at(0, 10, 20))
    driven.to(5)
    driven.sender.answer(0, "error:http_429")
    driven.to(30)
    assert driven.sent_ms == [(0, 0), (1, 10), (2, 20)]


def test_cancelled_requests_make_room_and_end_the_share() -> None:
    driven = Driven(at(0, 1, 2), cap=1)
    driven.to(5)
    for index in range(3):
        driven.sender.answer(index, "cancelled")
    assert [index for index, _ in driven.sent_ms] == [0, 1, 2]
    assert driven.finished == 1


def with_turns(think_s: Sequence[float | None]) -> list[RequestPlan]:
    """One session with turns planned at 0, 10 and 20 ms, and a request on its own at 15 ms."""
    plan = plan_at(0, 10, 15, 20)
    add_sessions(plan, [0, 0, None, 0], think_s)
    plan = turns_after_responses(plan)
    return [plan[index] for index in range(4)]


def test_turns_after_the_response_wait_for_it_and_for_the_think_time() -> None:
    driven = Driven(with_turns([None, 0.005, None, 0.001]))
    driven.to(100)
    assert driven.sent_ms == [(0, 0), (2, 15)]
    driven.sender.answer(0)
    driven.to(104)
    assert len(driven.sender.sent) == 2
    driven.to(110)
    assert driven.sent_ms[-1] == (1, 105)
    driven.sender.answer(1)
    driven.to(120)
    assert driven.sent_ms[-1] == (3, 111)
    assert driven.sender.sent[-1][1] == START + 111 * MS, "due when its user had thought"


def test_a_turn_without_a_think_time_leaves_at_its_own_time_but_not_before_the_answer() -> None:
    driven = Driven(with_turns([None, None, None, None]))
    driven.to(2)
    driven.sender.answer(0)
    driven.to(30)
    assert driven.sent_ms == [(0, 0), (1, 10), (2, 15)]
    driven.sender.answer(1)
    driven.to(31)
    assert driven.sent_ms[-1] == (3, 30)


def test_a_failed_answer_does_not_end_its_session() -> None:
    driven = Driven(with_turns([None, 0.0, None, 0.0]))
    driven.to(1)
    driven.sender.answer(0, "error:reset")
    driven.to(2)
    assert driven.sent_ms == [(0, 0), (1, 1)]


def test_unsent_turns_are_recorded_at_the_end() -> None:
    driven = Driven(with_turns([None, 0.0, None, 0.0]))
    driven.to(20)
    driven.loop.close("the load ended before its time")
    assert [record.plan_index for record in driven.records] == [1, 3]


def task(*steps: StepPlan) -> list[RequestPlan]:
    """One task whose steps are planned at 0."""
    plan = plan_at(*[0] * len(steps))
    add_sessions(plan, [0] * len(steps), [0.0] * len(steps))
    plan = with_steps(plan, steps)
    return [plan[index] for index in range(len(plan))]


def test_a_task_branches_and_joins_in_order() -> None:
    needs = {"needs_answers": True}
    driven = Driven(task(StepPlan(), StepPlan((0,), **needs), StepPlan((0,), **needs), StepPlan((1, 2), **needs)))
    driven.to(5)
    driven.sender.answer(0)
    driven.to(6)
    assert driven.sent_ms == [(0, 0), (1, 5), (2, 5)]
    driven.sender.answer(2)
    driven.to(9)
    driven.sender.answer(1)
    driven.to(10)
    assert driven.sent_ms[-1] == (3, 9)
    driven.sender.answer(3)
    assert driven.finished == 1


def test_a_failed_step_skips_what_needs_it_and_the_share_still_ends() -> None:
    driven = Driven(task(StepPlan(), StepPlan((0,), needs_answers=True), StepPlan((1,), needs_answers=True)))
    driven.to(1)
    driven.sender.answer(0, "error:reset")
    assert [(record.plan_index, record.outcome) for record in driven.records] == [
        (0, "error:reset"), (1, "skipped"), (2, "skipped"),
    ]  # fmt: skip
    assert driven.sender.forgotten == [1, 2]
    assert driven.finished == 1


def test_a_user_who_stopped_reading_goes_on_with_the_conversation() -> None:
    driven = Driven(task(StepPlan(), StepPlan((0,), needs_answers=True)))
    driven.to(1)
    driven.sender.answer(0, "stopped")
    driven.to(2)
    assert [index for index, _ in driven.sent_ms] == [0, 1]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_shares_of_all_workers_are_the_one_schedule(workers: int) -> None:
    """Each request is in exactly one share, at its own time; turns of a session stay together."""
    plan = plan_at(*range(40))
    add_sessions(plan, [index % 5 if index % 3 == 0 else None for index in range(40)], [None] * 40)
    sent: list[tuple[int, float]] = []
    by_session: dict[int, set[int]] = {}
    for worker in range(workers):
        driven = Driven(list(plan.share(worker, workers)))
        driven.to(50)
        sent += driven.sent_ms
        for planned in driven.sender.plans:
            if planned.session is not None:
                by_session.setdefault(planned.session, set()).add(worker)
    assert sorted(sent) == [(index, index) for index in range(40)]
    assert all(len(owners) == 1 for owners in by_session.values())


def test_the_first_requests_and_seconds_are_warm_up() -> None:
    driven = Driven(at(0, 400, 1500, 2500), load=LoadConfig(warmup_s=1.0, num_warmups=3))
    driven.to(3000)
    assert driven.sender.phases == ["warmup", "warmup", "warmup", "main"]
