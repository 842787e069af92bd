"""Draws the traffic of a run: when requests come, how long they are, what they share.

From a trace as it was recorded, from an arrival process, or from a fitted profile at any rate and
length. Equal arguments draw equal traffic. Pure; what becomes of it (classes, models, prompts) is the
plan's business.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import ConfigError
from surgeproof.records import BLOCK_TOKENS, TracePoint
from surgeproof.scenario import MAX_REQUESTS, LoadConfig
from surgeproof.seeds import Dimension, generator
from surgeproof.traces import arrivals
from surgeproof.traces.prefixes import cached_tokens, sessions_of
from surgeproof.traces.profile import Profile
from surgeproof.traces.profile_part import choose_part, left_out_share, part_notes, starting_at
from surgeproof.traces.scaling import EFFECTS, default_mode, scale

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CLOSED_LOOP_ROWS = 4096


class Traffic(NamedTuple):
    """Requests in order of time.

    Attributes:
        lengths: input and output tokens; shape (n, 2).
        intended_ns: offsets from the start, sorted; shape (n,). None for a closed loop.
        request_classes: of the requests whose trace names one.
        sessions: conversation of each request, None for a request on its own; absent without any.
        think_s: seconds since the session's answer before, None where unknown.
        hash_ids: prefix-chained blocks of each prompt; absent without any.
        cached_tokens: prompt tokens that an unlimited prefix cache would hold.
        notes: what a user should know of how the traffic was made.
        left_out: share of a profile's requests that are due in busier minutes than any that is played.
    """

    lengths: Ints
    intended_ns: Ints | None
    request_classes: Sequence[str | None] | None = None
    sessions: Sequence[int | None] | None = None
    think_s: Sequence[float | None] | None = None
    hash_ids: Sequence[tuple[int, ...]] | None = None
    cached_tokens: Sequence[int] | None = None
    notes: tuple[str, ...] = ()
    left_out: float = 0.0


def replay(load: LoadConfig, points: Sequence[TracePoint]) -> Traffic:
    """A trace as it was recorded: window, speed-up, then limits.

    Raises:
        ConfigError: `block_tokens` does not fit the trace's hash ids.
    """
    block_tokens = load.block_tokens or BLOCK_TOKENS
    if load.window_s is not None:
        start, end = (round(min(edge, 9e9) * 1e9) for edge in load.window_s)
        points = [point for point in points if start <= point.at_ns < end]
    points = points[: _count_limit(load)]
    times = replay_times(points, load.speedup)
    if load.duration_s is not None:
        points = points[: int(np.searchsorted(times, load.duration_s * 1e9))]
        times = times[: len(points)]
    classes = [point.request_class for point in points]
    traffic = Traffic(pair_lengths(points), times, classes if any(classes) else None)
    if any(point.session is not None or point.hash_ids for point in points):
        traffic = traffic._replace(
            sessions=sessions_of(points, block_tokens), think_s=[point.think_s for point in points]
        )
    if load.prefixes and any(point.hash_ids for point in points):
        _check_blocks(block_tokens, points)
        traffic = traffic._replace(
            hash_ids=[point.hash_ids for point in points], cached_tokens=cached_tokens(points, block_tokens)
        )
    return traffic


def from_process(load: LoadConfig, pairs: Ints | None) -> Traffic:
    """Times from an arrival process.

    Args:
        load: rate, burstiness and limits.
        pairs: (input, output) tokens to draw from; the load's own lengths where None.
    """
    count = _count_limit(load)
    if load.request_rate is None or np.isinf(load.request_rate):
        assert count is not None, "an unlimited rate was checked to have a number of prompts"
        times = arrivals.at_once(count)
    elif load.arrivals == "constant":
        times = arrivals.constant(load.request_rate, duration_s=load.duration_s, count=count)
    else:
        shape = 1.0 if load.arrivals == "poisson" else load.burstiness
        rng = generator(load.seed, Dimension.ARRIVALS)
        times = arrivals.gamma(load.request_rate, shape, rng, duration_s=load.duration_s, count=count)
    return Traffic(_lengths(load, pairs, len(times)), times)


def closed_loop(load: LoadConfig, pairs: Ints | None) -> Traffic:
    """What users ask for, in order; there are no planned times."""
    count = (load.num_prompts or _CLOSED_LOOP_ROWS) * max(1, len(load.concurrency))
    return Traffic(_lengths(load, pairs, count), None)


def from_profile(load: LoadConfig, profile: Profile) -> Traffic:
    """Traffic like the profile's: as long as its trace, or cut; at `request_rate` by the scale mode.

    Raises:
        ConfigError: the mode cannot give this rate, or the requests are too many.
    """
    load, profile, notes, left_out = _part_played(load, profile)
    kept = 1.0
    if load.request_rate is not None:
        factor = load.request_rate / _mean_rate_sent(load, profile)
        mode = load.scale or default_mode(profile, factor)
        if mode == "compress":
            factor = _compression(load, profile, load.request_rate)
        profile, kept = scale(profile, mode, factor)
        notes = (*notes, f"profile scaled by {factor:.3g}, {mode}: {EFFECTS[mode]}")
    at_s, lengths = _profile_requests(load, profile)
    if kept < 1:
        keep = generator(load.seed, Dimension.THINNING).random(len(at_s)) < kept
        at_s, lengths = at_s[keep], lengths[keep]
    limit = _count_limit(load)
    at_s, lengths = at_s[:limit], lengths[:limit]
    return Traffic(lengths, np.round(at_s * 1e9).astype(np.int64), notes=notes, left_out=left_out)


def _part_played(load: LoadConfig, profile: Profile) -> tuple[LoadConfig, Profile, tuple[str, ...], float]:
    """The load and the profile from the part on that the run plays, notes about it, and what it leaves out.

    Raises:
        ConfigError: the window lies beyond the profile.
    """
    model = profile.arrivals
    if load.window_s is not None:
        if load.window_s[0] >= model.span_s:
            raise ConfigError(f"load.window_s starts at {load.window_s[0]:g} s; the profile lasts {model.span_s:g} s")
        if load.duration_s is None:
            end_s = min(load.window_s[1], model.span_s)
            load = msgspec.structs.replace(load, duration_s=(end_s - load.window_s[0]) / load.speedup)
    part = choose_part(load, profile, _length_s(load, profile))
    if part is None:
        return load, profile, (), 0.0
    notes, left_out = part_notes(load, profile, part), left_out_share(load, profile, part)
    return load, starting_at(profile, part.start_s), tuple(notes), left_out


def _length_s(load: LoadConfig, profile: Profile) -> float:
    """How much of a profile's time a run plays, s; all of it where the run has no limit."""
    model = profile.arrivals
    rate = load.request_rate or model.mean_rate_per_s
    factor = rate / model.mean_rate_per_s
    compressed = (load.scale or default_mode(profile, factor)) == "compress"
    pace = load.speedup * (factor if compressed else 1.0)
    count = _count_limit(load)
    limits_s = (load.duration_s, None if count is None else count / rate)
    return min(model.span_s, *(limit_s * pace for limit_s in limits_s if limit_s is not None), model.span_s)


def replay_times(points: Sequence[TracePoint], speedup: float) -> Ints:
    """Recorded times from the first point on, divided by `speedup`, ns."""
    at = np.fromiter((point.at_ns for point in points), dtype=np.int64, count=len(points))
    if len(at) == 0:
        return at
    times: Ints = np.round((at - at[0]) / speedup).astype(np.int64)
    return times


def pair_lengths(points: Sequence[TracePoint]) -> Ints:
    """Input and output tokens of each point; shape (n, 2)."""
    flat = [(point.input_tokens, point.output_tokens) for point in points]
    return np.array(flat, dtype=np.int64).reshape(-1, 2)


def draw_lengths(pairs: Ints, count: int, seed: int) -> Ints:
    """Draw whole (input, output) pairs: their dependence is part of the workload."""
    rng = generator(seed, Dimension.LENGTHS)
    drawn: Ints = pairs[rng.integers(0, len(pairs), size=count)]
    return drawn


def _lengths(load: LoadConfig, pairs: Ints | None, count: int) -> Ints:
    if pairs is None:
        return np.tile(np.array([[load.input_len, load.output_len]], dtype=np.int64), (count, 1))
    return draw_lengths(pairs, count, load.seed)


def _count_limit(load: LoadConfig) -> int | None:
    return min((value for value in (load.limit, load.num_prompts) if value is not None), default=None)


def _check_blocks(block_tokens: int, points: Sequence[TracePoint]) -> None:
    """Hash ids name blocks of `block_tokens`: another block size would promise cache hits that do not occur."""
    named = [(point.input_tokens, len(point.hash_ids)) for point in points if point.hash_ids]
    off = sum(abs(blocks - -(-tokens // block_tokens)) > 1 for tokens, blocks in named)
    if off > len(named) / 10:
        likely = round(sum(tokens for tokens, _ in named) / sum(blocks for _, blocks in named))
        raise ConfigError(
            f"load.block_tokens is {block_tokens}, but the trace's hash ids name blocks of about {likely} tokens: "
            "set load.block_tokens to that, or turn prefixes off (load.prefixes: false)"
        )


def _mean_rate_sent(load: LoadConfig, profile: Profile) -> float:
    """The profile's mean rate over the part of it that a run of this length sends."""
    if load.duration_s is None:
        return profile.arrivals.mean_rate_per_s
    length_s = load.duration_s * load.speedup
    ends_s, counts = _cumulative(profile, length_s)
    length_s = min(length_s, float(ends_s[-1]))
    mean = float(np.interp(length_s, ends_s, counts)) / length_s if length_s > 0 else 0.0
    # A stretch without traffic cannot be scaled up.
    return mean if mean > 0 else profile.arrivals.mean_rate_per_s


def _compression(load: LoadConfig, profile: Profile, rate_per_s: float) -> float:
    """The speed-up at which a stretch of the profile as long as the run has the given rate."""
    overall = rate_per_s / profile.arrivals.mean_rate_per_s
    if load.duration_s is None:
        return overall
    length_s = load.duration_s * load.speedup
    wanted = rate_per_s * length_s
    ends_s, counts = _cumulative(profile, 2 * wanted / profile.arrivals.mean_rate_per_s + profile.arrivals.span_s)
    # A recording with too few requests ends before the run does: its overall rate is scaled to the run's.
    factor = float(np.interp(wanted, counts, ends_s)) / length_s if wanted <= counts[-1] else overall
    return factor if factor > 0 else overall


def _cumulative(profile: Profile, until_s: float) -> tuple[Floats, Floats]:
    """Times, and how many requests of the profile are expected up to each; a model repeats, a recording does not."""
    if profile.recording is not None:
        at_s, _ = profile.recorded()
        return np.concatenate(([0.0], at_s)), np.arange(len(at_s) + 1, dtype=np.float64)
    window_s = profile.arrivals.coarse_window_s
    windows = max(1, int(np.ceil(until_s / window_s)))
    rates = np.resize(np.array(profile.arrivals.rates_per_s), windows)
    ends_s: Floats = np.arange(windows + 1, dtype=np.float64) * window_s
    return ends_s, np.concatenate((np.zeros(1), np.cumsum(rates * window_s)))


def _profile_requests(load: LoadConfig, profile: Profile) -> tuple[Floats, Ints]:
    """Times and lengths: the recording's own, or drawn from the model, repeated where the run is longer."""
    model = profile.arrivals
    if profile.kind == "exact":
        at_s, lengths = profile.recorded()
        at_s = at_s / load.speedup
        within = at_s < (load.duration_s or np.inf)
        return at_s[within], lengths[within]
    if load.duration_s is not None:
        needed = max(1, int(np.ceil(load.duration_s * load.speedup / model.coarse_window_s)))
        _refuse_too_many(needed)
        model = msgspec.structs.replace(
            model, rates_per_s=tuple(np.resize(np.array(model.rates_per_s), needed).tolist())
        )
    _refuse_too_many(sum(model.rates_per_s) * model.coarse_window_s)
    until_s = load.duration_s * load.speedup if load.duration_s is not None else None
    rng = generator(load.seed, Dimension.ARRIVALS)
    at_s = arrivals.simulate(model, rng, conserve_count=load.conserve_count, until_s=until_s)
    lengths = profile.draw_lengths(at_s % profile.arrivals.span_s, generator(load.seed, Dimension.LENGTHS))
    at_s = at_s / load.speedup
    within = at_s < (load.duration_s or np.inf)
    return at_s[within], lengths[within]


def _refuse_too_many(count: float) -> None:
    if count > MAX_REQUESTS:
        raise ConfigError(
            f"the profile gives {count:.3g} requests or windows at this rate, speedup and duration; "
            f"a run can plan at most {MAX_REQUESTS:,}"
        )
