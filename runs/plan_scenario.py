"""From a scenario to the whole plan of a run: reads the trace or profile, draws the traffic, plans it."""

from pathlib import Path

import msgspec
import numpy as np

from surgeproof.errors import ConfigError
from surgeproof.loadgen.plan import Plan, add_models, add_sessions, make_plan, turns_after_responses, with_blocks
from surgeproof.loadgen.prompts import HuggingFaceTokenizer
from surgeproof.records import BLOCK_TOKENS, REQUEST_CLASSES
from surgeproof.runs.class_work import with_class_work
from surgeproof.runs.task_plan import plan_tasks
from surgeproof.scenario import ITEM_ENDPOINTS, MAX_UNCONFIRMED_S, RERANK_QUERY_TOKENS, LoadConfig, Scenario
from surgeproof.traces import draw
from surgeproof.traces.draw import Traffic
from surgeproof.traces.profile import load_profile
from surgeproof.traces.reader import Trace, read_trace


class Planned(msgspec.Struct, frozen=True):
    """A plan with the load as it was resolved for it.

    Attributes:
        notes: for the user, about how it was made.
        left_out: share of a profile's requests that are due in busier minutes than any that is played.
    """

    plan: Plan
    load: LoadConfig
    notes: tuple[str, ...] = ()
    left_out: float = 0.0


def plan_scenario(scenario: Scenario) -> Planned:
    """Make the plan.

    Raises:
        ConfigError: the tokenizer cannot be read, the plan is empty, or longer than a day and not confirmed.
        TraceError: the trace or profile cannot be read.
    """
    load = scenario.load
    if load.tokenizer is not None:
        HuggingFaceTokenizer(load.tokenizer)
    trace = _read_trace(load) if load.trace is not None else None
    load = _resolved(scenario, trace)
    scenario = msgspec.structs.replace(scenario, load=load)
    notes: tuple[str, ...] = ()
    left_out = 0.0
    if load.plays_tasks:
        tasks = plan_tasks(scenario, trace)
        plan, notes = tasks.plan, tasks.notes
        load = msgspec.structs.replace(load, block_tokens=scenario.load.block_tokens or tasks.block_tokens)
        scenario = msgspec.structs.replace(scenario, load=load)
    else:
        traffic = _draw(scenario, trace)
        plan, notes, left_out = _plan(load, traffic), traffic.notes, traffic.left_out
    if len(scenario.target.models) > 1:
        add_models(plan, tuple(scenario.target.models.values()), load.seed)
    plan, class_notes = with_class_work(plan, scenario)
    _ask_for_items(plan, scenario)
    if len(plan) == 0:
        raise ConfigError("the plan is empty: no request matches the given window, limit and duration")
    longest = max(plan.span_s, load.duration_s or 0.0)
    if longest > MAX_UNCONFIRMED_S and not load.allow_long:
        raise ConfigError(
            f"the plan lasts {longest / 86400:.1f} days; shorten it with --duration, --limit or --speedup, "
            "check the trace's time unit, or confirm with --allow-long"
        )
    notes = (
        *notes,
        *class_notes,
        *_classes_without_requests(scenario, plan),
        *(_notes(trace) if trace else ()),
    )
    return Planned(plan, load, notes, left_out)


def _resolved(scenario: Scenario, trace: Trace | None) -> LoadConfig:
    """The load with what the trace decides: its block size, and whether turns wait for the answer before."""
    load = scenario.load
    waits = trace is not None and trace.delayed and not scenario.closed_loop
    blocks = load.block_tokens or (trace.block_tokens if trace is not None else None)
    blocks = blocks or (None if load.tasks is not None else BLOCK_TOKENS)
    turns = load.turns or ("after_response" if waits else "at_timestamp")
    return msgspec.structs.replace(load, block_tokens=blocks, turns=turns)


def _read_trace(load: LoadConfig) -> Trace:
    assert load.trace is not None, "asked only for a load with a trace"
    return read_trace(
        Path(load.trace),
        load.trace_format,
        columns=load.trace_columns,
        skip_invalid=load.skip_invalid,
        undo_grid=not load.keep_clock_grid,
        seed=load.seed,
        unit=load.trace_unit,
    )


def _draw(scenario: Scenario, trace: Trace | None) -> Traffic:
    load = scenario.load
    if load.profile is not None:
        return draw.from_profile(load, load_profile(load.profile))
    pairs = draw.pair_lengths(trace.points) if trace is not None else None
    if scenario.closed_loop:
        return draw.closed_loop(load, pairs)
    if trace is not None and load.arrivals in (None, "exact") and load.request_rate is None:
        return draw.replay(load, trace.points)
    return draw.from_process(load, pairs)


def _plan(load: LoadConfig, traffic: Traffic) -> Plan:
    plan = make_plan(traffic.intended_ns, traffic.lengths, load.classes, load.seed, traffic.request_classes)
    if traffic.sessions is not None and traffic.think_s is not None:
        add_sessions(plan, traffic.sessions, traffic.think_s)
    if traffic.hash_ids is not None and traffic.cached_tokens is not None:
        plan = with_blocks(plan, traffic.hash_ids, traffic.cached_tokens)
    return turns_after_responses(plan) if load.turns == "after_response" else plan


def _ask_for_items(plan: Plan, scenario: Scenario) -> None:
    """Requests for vectors or scores hold several texts, each of the planned length."""
    for name in REQUEST_CLASSES:
        endpoint = scenario.endpoint_of(name)
        if endpoint not in ITEM_ENDPOINTS:
            continue
        made = plan.rows["request_class"] == REQUEST_CLASSES.index(name)
        if plan.contents is not None:
            made &= plan.contents.rows < 0
        size = scenario.load.batch_size
        query = RERANK_QUERY_TOKENS if endpoint == "rerank" else 0
        plan.rows["items"][made] = size
        plan.rows["input_tokens"][made] = (plan.rows["input_tokens"][made] + query) * size


def _classes_without_requests(scenario: Scenario, plan: Plan) -> list[str]:
    """Notes about objectives that this plan cannot decide, for the user to read before the run."""
    asked = {REQUEST_CLASSES[number] for number in np.unique(plan.rows["request_class"]).tolist()}
    if scenario.closed_loop:
        asked |= {name for name, weight in scenario.load.classes.items() if weight > 0}
    idle = [name for name, rules in scenario.slo.items() if rules and name in REQUEST_CLASSES and name not in asked]
    return [
        f"no request of this plan is of class {name}: its objectives will be INCONCLUSIVE; "
        "set the mix with --classes P0=5,P1=3,P2=1 (load.classes)"
        for name in idle
    ]


def _notes(trace: Trace) -> list[str]:
    notes = [f"trace: {count} rows left out as {reason}" for reason, count in trace.dropped.items()]
    notes += [f"trace: {example}" for example in trace.examples]
    notes += [f"trace: {trace.unit_note}"] if trace.unit_note else []
    if trace.delayed:
        notes.append(f"trace: {trace.delayed} rows have a delay in place of a time: they come after the answer before")
    if trace.out_of_order:
        notes.append(f"trace: {trace.out_of_order} rows out of order, sorted by time")
    if trace.repeated:
        notes.append(f"trace: {trace.repeated} rows repeat another one exactly; kept")
    if trace.grid_ns is not None:
        seconds = trace.grid_ns / 1e9
        what = "spread evenly over it" if trace.dequantised else "kept as they are"
        notes.append(f"trace: time stamps lie on a clock grid of {seconds:g} s; {what}")
    return notes
