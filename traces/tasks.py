"""Tasks: requests that wait for one another. Conversations are tasks in a line, agents' are graphs. Pure.

What a step asks is its own text, in place of or behind the conversation that it goes on with. A step names only steps
before it, so that a task has no circle.
"""

from collections.abc import Sequence
from typing import NamedTuple

from surgeproof.strict_json import JsonObject


class Step(NamedTuple):
    """One request of a task.

    Attributes:
        input_tokens: of its own text; the conversation that it goes on with comes on top.
        output_tokens: of its answer.
        after: places of the steps whose answers it waits for; none for a step that begins the task.
        continues: place of the step whose conversation it goes on with, as that was really answered.
        with_answers: whether the other answers that it waits for are told before its own text.
        wait_s: how long a user thinks, or a tool works, once all of these have come.
        content: what it asks, as a part of a body; None for made text.
        hash_ids: prefix-chained blocks of made text.
    """

    input_tokens: int
    output_tokens: int
    after: tuple[int, ...] = ()
    continues: int | None = None
    with_answers: bool = False
    wait_s: float = 0.0
    content: JsonObject | None = None
    hash_ids: tuple[int, ...] = ()


class Task(NamedTuple):
    """A conversation, or what an agent does for one goal.

    Attributes:
        place: file and row.
        steps: at least one; each after those that it names.
        at_s: when it began, where that was recorded.
        request_class: where the row names one.
    """

    place: str
    steps: tuple[Step, ...]
    at_s: float | None = None
    request_class: str | None = None


class Call(NamedTuple):
    """A recorded request of a task: when it began and, later, ended, s."""

    start_s: float
    end_s: float


def graph_of(calls: Sequence[Call]) -> list[tuple[tuple[int, ...], float]]:
    """What each recorded call waited for, and how long it began after the last of these, s.

    A call waits for those that had ended when it began, but for those that another one of these had waited for itself.
    So calls that overlap are parallel, and one that begins when several have ended joins them.

    Args:
        calls: in order of their beginning.
    """
    waits: list[tuple[tuple[int, ...], float]] = []
    for number, call in enumerate(calls):
        ended = [place for place in range(number) if calls[place].end_s <= call.start_s]
        # What had ended when the last of these began, that one has waited for.
        last_start_s = max((calls[place].start_s for place in ended), default=0.0)
        direct = tuple(place for place in ended if calls[place].end_s > last_start_s)
        wait_s = call.start_s - max((calls[place].end_s for place in direct), default=call.start_s)
        waits.append((direct, wait_s))
    return waits


def earliest_s(steps: Sequence[Step]) -> list[float]:
    """The earliest that each step can leave after its task's beginning, s: answers cost no time here."""
    times: list[float] = []
    for step in steps:
        times.append(max((times[place] for place in step.after), default=0.0) + step.wait_s)
    return times


def history_tokens(steps: Sequence[Step], default_output: int) -> list[int]:
    """Tokens that each step tells before its own text: its conversation, and other answers.

    Args:
        steps: of one task.
        default_output: length of an answer whose step names none; every answer is taken to be as long as planned.
    """
    whole: list[int] = []
    history: list[int] = []
    for step in steps:
        before = whole[step.continues] if step.continues is not None else 0
        others = [place for place in step.after if step.with_answers and place != step.continues]
        before += sum(steps[place].output_tokens or default_output for place in others)
        history.append(before)
        whole.append(before + step.input_tokens + (step.output_tokens or default_output))
    return history
