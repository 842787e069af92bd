"""Users who do whole tasks, under a manual clock: order, numbering, ladders, stops, failures."""

import numpy as np

from surgeproof.loadgen.plan import Plan, StepPlan, add_sessions, make_plan, with_steps
from surgeproof.loadgen.task_users import TaskUsers
from surgeproof.records import StreamRecord
from surgeproof.scenario import LoadConfig
from tests.fakes import ManualClock, ManualSender, ManualTimer

MS = 1_000_000
START = 1_800_000_000_000_000_000


def two_turns(tasks: int) -> Plan:
    """Tasks of a question, 10 ms of thought, and another question."""
    plan = make_plan(None, np.full((2 * tasks, 2), 10), {"P1": 1.0}, seed=1)
    add_sessions(plan, [row // 2 for row in range(2 * tasks)], [row % 2 * 0.01 for row in range(2 * tasks)])
    return with_steps(
        plan, [StepPlan((row - 1,), row - 1, needs_answers=True) if row % 2 else StepPlan() for row in range(2 * tasks)]
    )


class Driven:
    def __init__(self, load: LoadConfig, tasks: int = 2, worker: int = 0, workers: int = 1) -> None:
        self.clock = ManualClock(START)
        self.sender = ManualSender(self.clock)
        self.timer = ManualTimer(self.clock)
        self.records: list[StreamRecord] = []
        self.ended = 0
        self.users = TaskUsers(
            two_turns(tasks), load, self.sender, self.clock, worker=worker, workers=workers, start_at_ns=START,
            on_record=self.records.append,
        )  # fmt: skip
        self.timer.fire = self.users.fire
        self.users.start(self.timer)

    def ask(self, step: int = 1) -> bool:
        return self.users.ask("P0", step, self._on_end)

    def _on_end(self) -> None:
        self.ended += 1

    def to(self, ms: float) -> None:
        self.timer.advance_to(START + round(ms * MS))

    @property
    def sent(self) -> list[tuple[int, float]]:
        return [(index, (at - START) / MS) for index, _, at in self.sender.sent]


def test_a_user_does_a_task_step_by_step_and_is_told_of_its_end() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0))
    assert driven.ask()
    driven.to(5)
    driven.sender.answer(0)
    driven.to(14)
    assert driven.sent == [(0, 0)]
    driven.to(20)
    assert driven.sent == [(0, 0), (1, 15)]
    assert driven.ended == 0
    driven.sender.answer(1)
    assert driven.ended == 1
    assert {plan.request_class for plan in driven.sender.plans} == {"P0"}


def test_tasks_repeat_with_numbers_and_prompts_of_their_own() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0), tasks=1)
    for _ in range(3):
        driven.ask()
    assert [plan.index for plan in driven.sender.plans] == [0, 2, 4]
    assert [plan.session for plan in driven.sender.plans] == [0, 1, 2]
    assert len({plan.prompt_seed for plan in driven.sender.plans}) == 3


def test_workers_do_different_tasks() -> None:
    numbers = []
    for worker in range(3):
        driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0), tasks=2, worker=worker, workers=3)
        for _ in range(4):
            driven.ask()
        numbers += [plan.index for plan in driven.sender.plans]
    assert len(set(numbers)) == 12


def test_a_failed_step_ends_the_task_and_its_user_goes_on() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0))
    driven.ask()
    driven.sender.answer(0, "error:http_500")
    assert driven.ended == 1
    assert [(one.plan_index, one.outcome) for one in driven.records] == [(0, "error:http_500"), (1, "skipped")]
    assert driven.records[1].error == "not sent: step 0 of its task ended as error:http_500"
    assert driven.ask()


def test_a_step_of_a_ladder_is_done_with_its_last_task() -> None:
    driven = Driven(LoadConfig(concurrency=(1, 2), num_prompts=1))
    assert [driven.ask(), driven.ask()] == [True, False]
    driven.sender.answer(0)
    assert not driven.users.step_is_done(1)
    driven.to(20)
    driven.sender.answer(1)
    assert driven.users.step_is_done(1)
    assert driven.ask(step=2)
    assert driven.sender.steps == [1, 1, 2]


def test_after_a_stop_tasks_that_have_begun_go_on_until_they_are_closed() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0))
    driven.ask()
    driven.ask()
    driven.users.stop()
    assert not driven.ask()
    driven.sender.answer(0)
    driven.to(20)
    assert driven.sent[-1] == (1, 10)
    driven.sender.answer(1)
    assert driven.users.busy
    driven.sender.answer(2)
    driven.users.close("the load ended before its planned end")
    assert [(one.plan_index, one.outcome) for one in driven.records][-1] == (3, "skipped")
    assert not driven.users.busy
    assert driven.ended == 2
