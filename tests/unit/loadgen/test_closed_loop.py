"""The closed loop under a manual clock: shares of steps, numbering, prompts that never repeat, stops."""

import numpy as np
import pytest

from surgeproof.loadgen.closed_loop import ClosedLoop, share_of
from surgeproof.loadgen.plan import make_plan
from surgeproof.records import StreamRecord
from surgeproof.scenario import LoadConfig
from tests.fakes import ManualClock, ManualSender

START = 1_800_000_000_000_000_000


class Driven:
    def __init__(self, load: LoadConfig, *, worker: int = 0, workers: int = 1, rows: int = 4) -> None:
        self.clock = ManualClock(START)
        self.sender = ManualSender(self.clock)
        self.records: list[StreamRecord] = []
        plan = make_plan(None, np.full((rows, 2), 10), {"P1": 1.0}, seed=1)
        self.loop = ClosedLoop(
            plan, load, self.sender, self.clock, worker=worker, workers=workers, start_at_ns=START,
            on_record=self.records.append,
        )  # fmt: skip
        self.answered = 0

    def ask(self, step: int = 1, request_class: str = "P0") -> bool:
        return self.loop.ask(request_class, step, self._on_answered)

    def _on_answered(self) -> None:
        self.answered += 1


@pytest.mark.parametrize(("count", "workers"), [(10, 1), (10, 3), (2, 5), (0, 2)])
def test_shares_add_up_and_differ_by_one_at_most(count: int, workers: int) -> None:
    shares = [share_of(count, worker, workers) for worker in range(workers)]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


def test_a_user_is_told_of_its_answer_and_only_then() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0))
    assert driven.ask()
    assert driven.answered == 0
    driven.sender.answer(0)
    assert driven.answered == 1
    assert [record.plan_index for record in driven.records] == [0]


def test_a_step_ends_with_its_share_and_the_next_one_has_its_own() -> None:
    driven = Driven(LoadConfig(concurrency=(1, 2), num_prompts=3), worker=1, workers=2)
    assert [driven.ask(step=1) for _ in range(3)] == [True, False, False], "one of three is worker 1's"
    assert not driven.loop.step_is_done(1)
    driven.sender.answer(1)
    assert driven.loop.step_is_done(1)
    assert driven.ask(step=2)
    assert driven.sender.steps == [1, 2]


def test_workers_number_their_requests_without_overlap() -> None:
    numbers = []
    for worker in range(3):
        driven = Driven(LoadConfig(concurrency=(3,), duration_s=1.0), worker=worker, workers=3)
        for _ in range(4):
            driven.ask()
        numbers += [index for index, _, _ in driven.sender.sent]
    assert sorted(numbers) == list(range(12))


def test_a_plan_that_starts_again_repeats_no_prompt() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0), rows=4)
    for _ in range(12):
        driven.ask()
    assert len({plan.prompt_seed for plan in driven.sender.plans}) == 12


def test_the_class_is_the_users_and_not_the_plans() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0))
    driven.ask(request_class="P2")
    assert [plan.request_class for plan in driven.sender.plans] == ["P2"]


def test_after_a_stop_nothing_is_sent_but_answers_are_recorded() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=1.0))
    driven.ask()
    driven.loop.stop()
    assert not driven.ask()
    driven.sender.answer(0, "cancelled")
    assert [record.outcome for record in driven.records] == ["cancelled"]


def test_requests_of_the_first_seconds_are_warm_up() -> None:
    driven = Driven(LoadConfig(concurrency=(1,), duration_s=9.0, warmup_s=2.0))
    driven.ask()
    driven.clock.time_ns += 2_500_000_000
    driven.ask()
    assert driven.sender.phases == ["warmup", "main"]


def test_every_step_of_a_ladder_warms_up_anew() -> None:
    """Two seconds of each step; the second begins 10 s after the load."""
    driven = Driven(LoadConfig(concurrency=(1, 2), duration_s=10.0, warmup_s=2.0))
    for step, wait_s in ((1, 5.0), (1, 5.0), (2, 1.0), (2, 1.5), (2, 1.0)):
        driven.ask(step)
        driven.clock.time_ns += round(wait_s * 1e9)
    assert driven.sender.phases == ["warmup", "main", "warmup", "warmup", "main"]


def test_the_first_requests_of_every_step_are_warm_up_over_all_workers() -> None:
    """Of three a step, worker 0 of 2 sends the first and the third."""
    driven = Driven(LoadConfig(concurrency=(1, 2), num_prompts=8, num_warmups=3), worker=0, workers=2)
    for step in (1, 1, 1, 2, 2, 2):
        driven.ask(step)
    assert driven.sender.phases == ["warmup", "warmup", "main"] * 2
