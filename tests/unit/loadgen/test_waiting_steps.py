"""Steps that wait for answers: joins, waits, times of their own, and what a failure skips."""

import random

from surgeproof.loadgen.waiting_steps import WaitingSteps
from surgeproof.records import RequestPlan

START = 1_000_000


def step(index: int, *after: int, wait_ns: int | None = 0, at_ns: int = 0, needs: bool = True) -> RequestPlan:
    return RequestPlan(index, at_ns, "P1", 1, 1, 0, session=0, think_ns=wait_ns, after=after, needs_answers=needs)


def waiting(*steps: RequestPlan) -> WaitingSteps:
    result = WaitingSteps(START)
    for one in steps:
        result.add(one)
    return result


def test_a_join_waits_for_the_last_of_its_branches() -> None:
    steps = waiting(step(3, 1, 2, wait_ns=50))
    assert steps.answered(1, 900, ok=True).due == []
    ((plan, at_ns),) = steps.answered(2, 700, ok=True).due
    # The later of the two answers counts, whichever is told last.
    assert (plan.index, at_ns) == (3, 950)
    assert len(steps) == 0


def test_a_step_without_a_known_wait_has_a_time_of_its_own_but_not_before_its_answers() -> None:
    assert waiting(step(1, 0, wait_ns=None, at_ns=500)).answered(0, 10, ok=True).due[0][1] == START + 500
    late = START + 800
    assert waiting(step(1, 0, wait_ns=None, at_ns=500)).answered(0, late, ok=True).due[0][1] == late


def test_a_failure_skips_all_that_needs_it_and_nothing_else() -> None:
    """0 branches to 1 and 2; 3 follows 1, 4 joins 2 and 3; 5 is another task's."""
    steps = waiting(step(1, 0), step(2, 0), step(3, 1), step(4, 2, 3), step(5, 9))
    steps.answered(0, 10, ok=True)
    freed = steps.answered(1, 20, ok=False)
    assert {plan.index for plan in freed.skipped} == {3, 4}
    assert freed.due == []
    assert [plan.index for plan in steps] == [5]
    # What comes later for a step that was skipped changes nothing.
    assert steps.answered(2, 30, ok=True) == ([], [])


def test_a_turn_that_needs_no_answer_follows_a_failure() -> None:
    ((plan, _),) = waiting(step(1, 0, needs=False)).answered(0, 5, ok=False).due
    assert plan.index == 1


def test_in_ten_thousand_random_graphs_nothing_leaves_before_what_it_waits_for() -> None:
    """Answers take random times; each step is due at exactly the last answer it waits for, plus its wait."""
    rng = random.Random(5)
    for _ in range(10_000):
        count = rng.randrange(2, 12)
        after = [tuple(sorted(rng.sample(range(n), rng.randrange(0, min(n, 3) + 1)))) for n in range(count)]
        waits = [rng.randrange(0, 100) for _ in range(count)]
        steps = waiting(*(step(n, *after[n], wait_ns=waits[n]) for n in range(count) if after[n]))
        done: dict[int, int] = {}
        due = [(0, n) for n in range(count) if not after[n]]
        sent: dict[int, int] = {}
        while due:
            due.sort()
            at_ns, number = due.pop(0)
            sent[number] = at_ns
            done[number] = at_ns + rng.randrange(1, 1000)
            due += [(when, plan.index) for plan, when in steps.answered(number, done[number], ok=True).due]
        assert len(sent) == count
        for number in range(count):
            if after[number]:
                assert sent[number] == max(done[one] for one in after[number]) + waits[number]
