"""The plan of a load of conversations or tasks: which of them begin when, and how their requests depend on another."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import ConfigError
from surgeproof.loadgen.plan import Plan, StepPlan, add_sessions, make_plan, with_blocks, with_contents, with_steps
from surgeproof.loadgen.request_form import misfit
from surgeproof.records import BLOCK_TOKENS, NS_PER_S, REQUEST_CLASSES, TracePoint
from surgeproof.runs.token_count import counter_of
from surgeproof.scenario import LoadConfig, Scenario
from surgeproof.seeds import Dimension, generator
from surgeproof.traces import draw
from surgeproof.traces.conversations import read_conversations
from surgeproof.traces.prefixes import cached_tokens, sessions_of
from surgeproof.traces.profile import load_profile
from surgeproof.traces.reader import Trace
from surgeproof.traces.task_files import read_tasks
from surgeproof.traces.tasks import Step, Task, earliest_s, history_tokens

Ints = npt.NDArray[np.int64]

_CLOSED_LOOP_TASKS = 4096
_MAX_LINES = 20_000_000


class _Source(NamedTuple):
    """Tasks to begin, in order and from the first again, with notes for the user."""

    tasks: Sequence[Task]
    notes: tuple[str, ...] = ()
    block_tokens: int = BLOCK_TOKENS


class TaskPlan(NamedTuple):
    """A plan of tasks; `block_tokens` are those of a block that a hash id names."""

    plan: Plan
    notes: tuple[str, ...]
    block_tokens: int


def plan_tasks(scenario: Scenario, trace: Trace | None) -> TaskPlan:
    """Make the plan.

    Raises:
        ConfigError: there are no conversations, or nothing says when they begin.
        TraceError: a file cannot be read.
    """
    load = scenario.load
    times, count = _beginnings(scenario)
    source = _source(scenario, trace, count)
    if times is None and not scenario.closed_loop:
        source, times = _as_recorded(load, source)
    number = len(times) if times is not None else count
    notes = source.notes
    if number > len(source.tasks) and (load.tasks is not None or load.dataset is not None):
        notes += (f"{len(source.tasks)} tasks for {number}: they repeat, and a prefix cache may serve what they ask",)
    plan = _plan(load, [source.tasks[i % len(source.tasks)] for i in range(number)], times, source.block_tokens)
    return TaskPlan(plan, (f"{number} tasks of {len(plan)} requests", *notes), source.block_tokens)


def _beginnings(scenario: Scenario) -> tuple[Ints | None, int]:
    """When tasks begin, ns, and how many; None for a closed loop, and for those that begin as they were recorded."""
    load = scenario.load
    if scenario.closed_loop:
        count = load.num_prompts * len(load.concurrency) if load.num_prompts else _CLOSED_LOOP_TASKS
        return None, count
    if load.profile is not None:
        times = draw.from_profile(load, load_profile(load.profile)).intended_ns
    elif load.request_rate is not None:
        times = draw.from_process(load, None).intended_ns
    else:
        return None, load.num_prompts or load.limit or _CLOSED_LOOP_TASKS
    assert times is not None, "an open loop has times"
    return times, len(times)


def _as_recorded(load: LoadConfig, source: _Source) -> tuple[_Source, Ints]:
    """Tasks at the times that were recorded, within the load's limits."""
    if any(task.at_s is None for task in source.tasks):
        raise ConfigError("the tasks have no times: give --request-rate (tasks a second) or --concurrency (users)")
    tasks = sorted(source.tasks, key=lambda task: task.at_s or 0.0)
    first_s = tasks[0].at_s or 0.0
    times_s = [((task.at_s or 0.0) - first_s) / load.speedup for task in tasks]
    kept = [i for i, at_s in enumerate(times_s) if load.duration_s is None or at_s < load.duration_s]
    kept = kept[: load.num_prompts or load.limit]
    times = np.array([round(times_s[i] * NS_PER_S) for i in kept], dtype=np.int64)
    return source._replace(tasks=[tasks[i] for i in kept]), times


# -- where tasks come from ----------------------------------------------------------------------------


def _source(scenario: Scenario, trace: Trace | None, count: int) -> _Source:
    load = scenario.load
    count_tokens = counter_of(load)
    if load.tasks is not None:
        file = read_tasks(Path(load.tasks), count_tokens, skip_invalid=load.skip_invalid)
        notes = tuple(f"tasks: {number} left out as {reason}" for reason, number in file.dropped.items())
        _refuse_misfits(scenario, file.tasks)
        return _Source(file.tasks, notes, file.block_tokens)
    if load.dataset is not None:
        found = read_conversations(
            Path(load.dataset),
            count,
            shuffle_seed=load.seed if load.dataset_order == "shuffle" else None,
            count_tokens=count_tokens,
            skip_invalid=load.skip_invalid,
        )
        notes = tuple(f"dataset: {number} rows left out as {reason}" for reason, number in found.dropped.items())
        _refuse_misfits(scenario, found.tasks)
        return _Source(_thoughtful(found.tasks, load), notes)
    if trace is not None:
        return _Source(_of_trace(trace, load), (), trace.block_tokens)
    assert load.session_turns is not None, "checked with the scenario"
    made = tuple(
        Step(load.input_len, load.output_len, (turn - 1,) if turn else (), turn - 1 if turn else None)
        for turn in range(load.session_turns)
    )
    return _Source(_thoughtful([Task("made", made)] * max(1, count), load))


def _refuse_misfits(scenario: Scenario, tasks: Sequence[Task]) -> None:
    """An API may not take what a step asks.

    Raises:
        ConfigError: it does not; the message names the row.
    """
    endpoint = scenario.target.endpoint
    for task in tasks:
        for step in task.steps:
            if step.content is not None and (problem := misfit(endpoint, step.content)) is not None:
                raise ConfigError(f"{task.place} {problem}")


def _thoughtful(tasks: Sequence[Task], load: LoadConfig) -> list[Task]:
    """Tasks whose users think before each later question: for an exponential time of the given mean."""
    if not load.think_s:
        return list(tasks)
    rng = generator(load.seed, Dimension.THINKING)
    return [
        task._replace(
            steps=tuple(
                step._replace(wait_s=float(rng.exponential(load.think_s))) if step.after else step
                for step in task.steps
            )
        )
        for task in tasks
    ]


def _of_trace(trace: Trace, load: LoadConfig) -> list[Task]:
    """The conversations of a trace: each turn's own text is what its prompt has beyond the turn before.

    Raises:
        ConfigError: the trace names none.
    """
    points = trace.points[: load.limit]
    sessions = sessions_of(points, trace.block_tokens)
    by_session: dict[int, list[TracePoint]] = {}
    alone = len(points)
    for number, (point, session) in enumerate(zip(points, sessions, strict=True)):
        by_session.setdefault(alone + number if session is None else session, []).append(point)
    if len(by_session) == len(points):
        raise ConfigError("the trace names no conversations, so there are no turns to be played live")
    return [_conversation(turns) for turns in by_session.values()]


def _conversation(points: Sequence[TracePoint]) -> Task:
    steps: list[Step] = []
    whole = 0
    for turn, point in enumerate(points):
        before_ns = points[turn - 1].at_ns if turn else point.at_ns
        wait_s = point.think_s if point.think_s is not None else (point.at_ns - before_ns) / NS_PER_S
        steps.append(
            Step(
                max(1, point.input_tokens - whole),
                point.output_tokens,
                (turn - 1,) if turn else (),
                turn - 1 if turn else None,
                wait_s=wait_s if turn else 0.0,
                # What the first question shares with others is the beginning of the conversation.
                hash_ids=point.hash_ids if not turn else (),
            )
        )
        whole += steps[-1].input_tokens + point.output_tokens
    return Task(f"row {points[0].row}", tuple(steps), points[0].at_ns / NS_PER_S, points[0].request_class)


# -- the plan -----------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """One request before the plan is sorted: its task, its place in it, and its time, ns."""

    task: int
    place: int
    at_ns: int


def _plan(load: LoadConfig, tasks: Sequence[Task], times: Ints | None, block_tokens: int) -> Plan:
    if sum(len(task.steps) for task in tasks) > _MAX_LINES:
        raise ConfigError(f"the tasks have more than {_MAX_LINES:,} requests: fewer tasks (--num-prompts)")
    begins = np.zeros(len(tasks), dtype=np.int64) if times is None else times
    lines = [
        _Line(number, place, int(begin) + round(at_s / load.speedup * NS_PER_S))
        for number, (task, begin) in enumerate(zip(tasks, begins.tolist(), strict=True))
        for place, at_s in enumerate(earliest_s(task.steps))
    ]
    firsts = [0, *accumulate(len(task.steps) for task in tasks)]
    # The order of equal times keeps a step behind those that it waits for.
    order = np.argsort(np.array([line.at_ns for line in lines], dtype=np.int64), kind="stable")
    index = np.empty(len(lines), dtype=np.int64)
    index[order] = np.arange(len(lines))
    chosen = [lines[row] for row in order.tolist()]
    steps = [tasks[line.task].steps[line.place] for line in chosen]
    histories = [history_tokens(task.steps, load.output_len) for task in tasks]
    history = np.array([histories[line.task][line.place] for line in chosen], dtype=np.int64)
    own = np.array([step.input_tokens for step in steps], dtype=np.int64)
    outputs = np.array([step.output_tokens or load.output_len for step in steps], dtype=np.int64)
    classes = _classes(load, tasks)
    plan = make_plan(
        None if times is None else np.array([line.at_ns for line in chosen], dtype=np.int64),
        np.stack((own + history, outputs), axis=1),
        load.classes,
        load.seed,
        [classes[line.task] for line in chosen],
    )
    add_sessions(
        plan,
        [line.task for line in chosen],
        [step.wait_s / load.speedup if step.after else None for step in steps],
    )
    plan.rows["turn"] = [line.place for line in chosen]
    plan.rows["cached_tokens"] = history

    def index_of(line: _Line, place: int) -> int:
        return int(index[firsts[line.task] + place])

    plan = with_steps(
        plan,
        [
            StepPlan(
                tuple(index_of(line, place) for place in step.after),
                -1 if step.continues is None else index_of(line, step.continues),
                needs_answers=bool(step.after),
                with_answers=step.with_answers,
            )
            for line, step in zip(chosen, steps, strict=True)
        ],
    )
    return _with_prompts(plan, steps, history, block_tokens)


def _classes(load: LoadConfig, tasks: Sequence[Task]) -> list[str]:
    """The class of each task: its own, else drawn; all its requests are of it."""
    drawn = make_plan(None, np.ones((len(tasks), 2), dtype=np.int64), load.classes, load.seed)
    return [
        task.request_class or REQUEST_CLASSES[number]
        for task, number in zip(tasks, drawn.rows["request_class"].tolist(), strict=True)
    ]


def _with_prompts(plan: Plan, steps: Sequence[Step], history: Ints, block_tokens: int) -> Plan:
    """The plan with what its requests ask, and what their prompts share."""
    if any(step.hash_ids for step in steps):
        points = [TracePoint(0, step.input_tokens, 1, 0, step.hash_ids) for step in steps]
        shared = np.array(cached_tokens(points, block_tokens), dtype=np.int64)
        plan = with_blocks(plan, [step.hash_ids for step in steps], np.where(history > 0, history, shared).tolist())
    if all(step.content is None for step in steps):
        return plan
    rows = np.full(len(plan), -1, dtype=np.int64)
    numbers: dict[int, int] = {}
    contents: list[bytes] = []
    for place, step in enumerate(steps):
        if step.content is not None:
            # Tasks that repeat share their texts.
            key = id(step.content)
            if key not in numbers:
                numbers[key] = len(contents)
                contents.append(msgspec.json.encode(step.content))
            rows[place] = numbers[key]
    return with_contents(plan, contents, rows)
