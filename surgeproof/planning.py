"""From a scenario to the whole plan: reads the trace, draws what is to be drawn, cuts to the limits."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.config import LONGEST_UNASKED_S, MOST_REQUESTS, LoadConfig, Scenario
from surgeproof.errors import ConfigError
from surgeproof.loadgen import arrivals
from surgeproof.loadgen.plan import (
    CLOSED_LOOP,
    Plan,
    add_models,
    add_sessions,
    arrival_rng,
    draw_lengths,
    length_rng,
    make_plan,
    pair_lengths,
    replay_times,
    thinning_rng,
    with_blocks,
)
from surgeproof.loadgen.prompts import HuggingFaceTokenizer
from surgeproof.records import REQUEST_CLASSES, TracePoint
from surgeproof.traces.prefixes import cached_tokens, sessions_of
from surgeproof.traces.profile import Arrivals, Profile, load_profile
from surgeproof.traces.reader import Trace, read_trace
from surgeproof.traces.scaling import EFFECTS, default_mode, scale

_CLOSED_LOOP_ROWS = 4096


class Planned(msgspec.Struct, frozen=True):
    """A plan and what must be said about how it came to be."""

    plan: Plan
    notes: tuple[str, ...] = ()


def plan_scenario(scenario: Scenario) -> Planned:
    """Make the plan.

    Raises:
        ConfigError: the tokenizer cannot be read, the plan is empty, or longer than a day and not confirmed.
        TraceError: the trace cannot be read.
    """
    load = scenario.load
    if load.tokenizer is not None:
        HuggingFaceTokenizer(load.tokenizer)
    trace = None
    if load.trace is not None:
        trace = read_trace(
            Path(load.trace),
            load.trace_format,
            columns=load.trace_columns,
            skip_invalid=load.skip_invalid,
            undo_grid=not load.keep_clock_grid,
            seed=load.seed,
        )
    notes: list[str] = []
    if load.profile is not None:
        plan, notes = _profile_plan(load, load_profile(load.profile))
    elif scenario.closed_loop:
        plan = _closed_plan(load, trace)
    elif trace is not None and load.arrivals in (None, "exact") and load.request_rate is None:
        plan = _replay_plan(load, trace)
    else:
        plan = _process_plan(load, trace)
    if len(scenario.target.models) > 1:
        add_models(plan, tuple(scenario.target.models.values()), load.seed)
    if len(plan) == 0:
        raise ConfigError("the plan is empty: no request falls into the window, limit and duration asked for")
    longest = max(plan.span_s, load.duration_s or 0.0)
    if longest > LONGEST_UNASKED_S and not load.allow_long:
        raise ConfigError(
            f"the plan lasts {longest / 86400:.1f} days; cut it with --duration, --limit or --speedup, "
            "check the trace's time unit, or confirm with --allow-long"
        )
    notes += _classes_without_requests(scenario, plan)
    return Planned(plan, (*notes, *(_notes(trace) if trace else ())))


def _classes_without_requests(scenario: Scenario, plan: Plan) -> list[str]:
    """Objectives that this plan cannot decide: better known before the run than after it."""
    asked = {REQUEST_CLASSES[number] for number in np.unique(plan.rows["request_class"]).tolist()}
    if scenario.closed_loop:
        asked |= {name for name, weight in scenario.load.classes.items() if weight > 0}
    idle = [name for name, rules in scenario.slo.items() if rules and name in REQUEST_CLASSES and name not in asked]
    return [
        f"no request of this plan is of class {name}: its objectives will be INCONCLUSIVE; "
        "give the mix with --classes P0=5,P1=3,P2=1 (load.classes)"
        for name in idle
    ]


def _replay_plan(load: LoadConfig, trace: Trace) -> Plan:
    """The trace as it was recorded: window, speed-up, then limits."""
    points = trace.points
    if load.window_s is not None:
        start, end = (round(min(edge, 9e9) * 1e9) for edge in load.window_s)
        points = [point for point in points if start <= point.at_ns < end]
    points = points[: _count_limit(load)]
    times = replay_times(points, load.speedup)
    if load.duration_s is not None:
        points = points[: int(np.searchsorted(times, load.duration_s * 1e9))]
        times = times[: len(points)]
    plan = make_plan(times, pair_lengths(points), load.classes, load.seed, _classes_of(points))
    if any(point.session is not None or point.hash_ids for point in points):
        add_sessions(plan, sessions_of(points, load.block_tokens), [point.think_s for point in points])
    if load.prefixes and any(point.hash_ids for point in points):
        _check_blocks(load, points)
        cached = cached_tokens(points, load.block_tokens)
        plan = with_blocks(plan, [point.hash_ids for point in points], cached)
    return plan


def _check_blocks(load: LoadConfig, points: list[TracePoint]) -> None:
    """Hash ids name blocks of `block_tokens`: of other blocks they would promise cache hits that are none."""
    named = [(point.input_tokens, len(point.hash_ids)) for point in points if point.hash_ids]
    off = sum(abs(blocks - -(-tokens // load.block_tokens)) > 1 for tokens, blocks in named)
    if off > len(named) / 10:
        likely = round(sum(tokens for tokens, _ in named) / sum(blocks for _, blocks in named))
        raise ConfigError(
            f"load.block_tokens is {load.block_tokens}, but the trace's hash ids name blocks of about {likely} tokens: "
            "set it, or leave prefixes out (load.prefixes: false)"
        )


def _process_plan(load: LoadConfig, trace: Trace | None) -> Plan:
    """Times from an arrival process, lengths drawn from the trace or fixed."""
    rate = load.request_rate
    count = _count_limit(load)
    if rate is None or np.isinf(rate):
        assert count is not None, "an unlimited rate was checked to have a number of prompts"
        times = arrivals.at_once(count)
    elif load.arrivals == "constant":
        times = arrivals.constant(rate, duration_s=load.duration_s, count=count)
    else:
        shape = 1.0 if load.arrivals == "poisson" else load.burstiness
        times = arrivals.gamma(rate, shape, arrival_rng(load.seed), duration_s=load.duration_s, count=count)
    return make_plan(times, _lengths(load, trace, len(times)), load.classes, load.seed)


def _profile_plan(load: LoadConfig, profile: Profile) -> tuple[Plan, list[str]]:
    """Traffic like the profile's: as long as its trace, or cut; at `request_rate` by the scale mode."""
    notes = []
    kept = 1.0
    if load.request_rate is not None:
        factor = load.request_rate / _mean_rate_sent(load, profile)
        mode = load.scale or default_mode(profile, factor)
        if mode == "compress":
            factor = _compression(load, profile, load.request_rate)
        profile, kept = scale(profile, mode, factor)
        notes.append(f"profile scaled by {factor:.3g}, {mode}: {EFFECTS[mode]}")
    at_s, lengths = _profile_requests(load, profile)
    if kept < 1:
        keep = thinning_rng(load.seed).random(len(at_s)) < kept
        at_s, lengths = at_s[keep], lengths[keep]
    at_s, lengths = at_s[: _count_limit(load)], lengths[: _count_limit(load)]
    return make_plan(np.round(at_s * 1e9).astype(np.int64), lengths, load.classes, load.seed), notes


def _mean_rate_sent(load: LoadConfig, profile: Profile) -> float:
    """The profile's mean rate over the part of it that a run of this length sends."""
    if load.duration_s is None:
        return profile.arrivals.mean_rate_per_s
    length_s = load.duration_s * load.speedup
    ends_s, counts = _cumulative(profile, length_s)
    length_s = min(length_s, float(ends_s[-1]))
    mean = float(np.interp(length_s, ends_s, counts)) / length_s if length_s > 0 else 0.0
    # A stretch without any traffic cannot be scaled to some.
    return mean if mean > 0 else profile.arrivals.mean_rate_per_s


def _compression(load: LoadConfig, profile: Profile, rate_per_s: float) -> float:
    """How much faster the profile must pass so that as long a stretch as the run sends comes at a rate."""
    overall = rate_per_s / profile.arrivals.mean_rate_per_s
    if load.duration_s is None:
        return overall
    length_s = load.duration_s * load.speedup
    wanted = rate_per_s * length_s
    ends_s, counts = _cumulative(profile, 2 * wanted / profile.arrivals.mean_rate_per_s + profile.arrivals.span_s)
    # A recording that holds too few requests ends before the run does, at its own rate made that of the run.
    factor = float(np.interp(wanted, counts, ends_s)) / length_s if wanted <= counts[-1] else overall
    return factor if factor > 0 else overall


def _cumulative(profile: Profile, until_s: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Times, and how many requests of the profile are expected up to each; a model is repeated, a recording is not."""
    if profile.recording is not None:
        at_s, _ = profile.recorded()
        return np.concatenate(([0.0], at_s)), np.arange(len(at_s) + 1, dtype=np.float64)
    window_s = profile.arrivals.coarse_window_s
    windows = max(1, int(np.ceil(until_s / window_s)))
    rates = np.resize(np.array(profile.arrivals.rates_per_s), windows)
    ends_s: npt.NDArray[np.float64] = np.arange(windows + 1, dtype=np.float64) * window_s
    return ends_s, np.concatenate((np.zeros(1), np.cumsum(rates * window_s)))


def _profile_requests(load: LoadConfig, profile: Profile) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Times and lengths: the recording's own, or drawn from the model, repeated where the run is longer."""
    arrivals = profile.arrivals
    if profile.kind == "exact":
        at_s, lengths = profile.recorded()
        at_s = at_s / load.speedup
        within = at_s < (load.duration_s or np.inf)
        return at_s[within], lengths[within]
    if load.duration_s is not None:
        needed = max(1, int(np.ceil(load.duration_s * load.speedup / arrivals.coarse_window_s)))
        _refuse_too_many(needed)
        arrivals = msgspec.structs.replace(
            arrivals, rates_per_s=tuple(np.resize(np.array(arrivals.rates_per_s), needed).tolist())
        )
    _refuse_too_many(sum(arrivals.rates_per_s) * arrivals.coarse_window_s)
    until_s = load.duration_s * load.speedup if load.duration_s is not None else None
    at_s = simulate_pgar(arrivals, arrival_rng(load.seed), conserve_count=load.conserve_count, until_s=until_s)
    lengths = profile.draw_lengths(at_s % profile.arrivals.span_s, length_rng(load.seed))
    at_s = at_s / load.speedup
    within = at_s < (load.duration_s or np.inf)
    return at_s[within], lengths[within]


def _refuse_too_many(count: float) -> None:
    if count > MOST_REQUESTS:
        raise ConfigError(
            f"the profile comes to {count:.3g} requests or windows at this rate, speedup and duration; "
            f"{MOST_REQUESTS:,} is the most that one run plans"
        )


def _closed_plan(load: LoadConfig, trace: Trace | None) -> Plan:
    """What users ask for, in order; there are no planned times."""
    count = (load.num_prompts or _CLOSED_LOOP_ROWS) * max(1, len(load.concurrency))
    times = np.full(count, CLOSED_LOOP, dtype=np.int64)
    return make_plan(times, _lengths(load, trace, count), load.classes, load.seed)


def _lengths(load: LoadConfig, trace: Trace | None, count: int) -> npt.NDArray[np.int64]:
    if trace is None:
        return np.tile(np.array([[load.input_len, load.output_len]], dtype=np.int64), (count, 1))
    return draw_lengths(pair_lengths(trace.points), count, load.seed)


def _count_limit(load: LoadConfig) -> int | None:
    return min((value for value in (load.limit, load.num_prompts) if value is not None), default=None)


def _classes_of(points: list[TracePoint]) -> list[str | None] | None:
    classes = [point.request_class for point in points]
    return classes if any(classes) else None


def _notes(trace: Trace) -> list[str]:
    notes = [f"trace: {count} rows left out as {reason}" for reason, count in trace.dropped.items()]
    notes += [f"trace: {example}" for example in trace.examples]
    if trace.out_of_order:
        notes.append(f"trace: {trace.out_of_order} rows out of order, sorted by time")
    if trace.repeated:
        notes.append(f"trace: {trace.repeated} rows repeat another one exactly; kept")
    if trace.grid_ns is not None:
        seconds = trace.grid_ns / 1e9
        what = "spread evenly over it" if trace.dequantised else "kept as they are"
        notes.append(f"trace: time stamps lie on a clock grid of {seconds:g} s; {what}")
    return notes


def simulate_pgar(
    model: Arrivals, rng: np.random.Generator, *, conserve_count: bool = True, until_s: float | None = None
) -> npt.NDArray[np.float64]:
    """Arrival times of a fitted model, seconds."""
    fitted = model.modulator
    times = arrivals.pgar(
        np.array(model.rates_per_s),
        model.coarse_window_s,
        model.fine_window_s,
        rng,
        modulator=arrivals.Modulator(fitted.a, fitted.rho) if fitted else None,
        shape=model.gap_shape,
        gap_quantiles=np.array(model.gap_quantiles) if model.gap_quantiles else None,
        conserve_count=conserve_count,
        until_s=until_s,
    )
    seconds: npt.NDArray[np.float64] = times / 1e9
    return seconds
