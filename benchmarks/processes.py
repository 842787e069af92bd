"""Latencies whose percentiles are known, by which the accuracy of verdicts is measured."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from surgeproof.columns import RecordColumns
from surgeproof.scenario import LoadConfig
from surgeproof.slo.measured import Measured
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.profile import load_profile
from surgeproof.traces.profile_part import choose_part, left_out_share
from surgeproof.traces.queueing import service_s, slots_for, waits_s

Floats = npt.NDArray[np.float64]


class Sample(NamedTuple):
    """When each request was due, s, its latency, ms, and what share of busier requests the run left out."""

    at_s: Floats
    latency_ms: Floats
    left_out: float = 0.0


Draw = Callable[[np.random.Generator, int], Sample]

RATE_PER_S = 10.0
TRUTH_SEED = 10**6
_EPOCH_NS = 1_800_000_000_000_000_000
_FIRST_TOKEN_S = 0.2


def independent(rng: np.random.Generator, count: int) -> Sample:
    """Poisson arrivals, log-normal latencies without correlation."""
    return Sample(np.cumsum(rng.exponential(1 / RATE_PER_S, count)), np.exp(5 + 0.6 * rng.normal(size=count)))


def slow_level(rng: np.random.Generator, count: int) -> Sample:
    """Log-normal latencies whose level changes with a correlation of exp(-t / 30 s)."""
    gaps = rng.exponential(1 / RATE_PER_S, count)
    kept = np.exp(-gaps / 30.0)
    steps = rng.normal(size=count) * np.sqrt(1 - kept**2)
    level = np.empty(count)
    level[0] = rng.normal()
    for index in range(1, count):
        level[index] = kept[index] * level[index - 1] + steps[index]
    return Sample(np.cumsum(gaps), np.exp(5 + 0.5 * level + 0.3 * rng.normal(size=count)))


def single_server(load: float, warmup: int) -> Draw:
    """M/G/1: Poisson arrivals, Gamma service of shape 2, first come first served; waits by Lindley's recursion."""

    def draw(rng: np.random.Generator, count: int) -> Sample:
        total = count + warmup
        gaps = rng.exponential(1 / RATE_PER_S, total)
        service = rng.gamma(2.0, load / RATE_PER_S / 2.0, total)
        walk = np.concatenate(([0.0], np.cumsum(service[:-1] - gaps[1:])))
        latency = walk - np.minimum.accumulate(np.minimum(walk, 0.0)) + service
        at_s = np.cumsum(gaps)[warmup:]
        return Sample(at_s - at_s[0], latency[warmup:] * 1000)

    return draw


def stalls(miss_share: float, size: int = 25) -> Draw:
    """Latencies under 90 ms but for stalls that hold `size` requests for a second each."""

    def draw(rng: np.random.Generator, count: int) -> Sample:
        latency = rng.uniform(50.0, 90.0, count)
        for start in np.flatnonzero(rng.random(count) < miss_share / size):
            latency[start : start + size] = 1000.0
        return Sample(np.cumsum(rng.exponential(1 / RATE_PER_S, count)), latency)

    return draw


class ProfileTraffic:
    """A profile's traffic through a server with enough slots for 80 % load.

    Args:
        name: of a bundled profile.
        run_s: length of a run, which plays a part as `run --profile` does.
    """

    def __init__(self, name: str, run_s: float) -> None:
        self._profile, self._run_s = load_profile(name), run_s
        reference = np.random.default_rng(TRUTH_SEED)
        at_s = simulate(self._profile.arrivals, reference)
        self._slots = slots_for(at_s, service_s(self._profile.draw_lengths(at_s, reference)))

    def whole(self, rng: np.random.Generator) -> Sample:
        """The whole profile."""
        at_s = simulate(self._profile.arrivals, rng)
        work_s = service_s(self._profile.draw_lengths(at_s, rng))
        return Sample(at_s, (waits_s(at_s, work_s, self._slots) + _FIRST_TOKEN_S) * 1000)

    def part(self, rng: np.random.Generator, seed: int, repetition: tuple[int, int]) -> Sample:
        """The part that one of several repetitions plays."""
        at_s, latency, _ = self.whole(rng)
        load = LoadConfig(seed=seed + repetition[0], repetition=repetition)
        part = choose_part(load, self._profile, self._run_s)
        if part is None:
            return Sample(at_s, latency)
        played = (at_s >= part.start_s) & (at_s < part.start_s + part.length_s)
        return Sample(at_s[played] - part.start_s, latency[played], left_out_share(load, self._profile, part))


def measured(sample: Sample) -> Measured:
    """A sample as the records of a run."""
    at_s, latency_ms, left_out = sample
    due = (_EPOCH_NS + np.round(at_s * 1e9)).astype(np.int64)
    first = due + np.round(latency_ms * 1e6).astype(np.int64)
    count = len(due)
    columns: dict[str, Any] = {
        "plan_index": np.arange(count), "intended_at_ns": due, "sent_at_ns": due, "first_token_at_ns": first,
        "done_at_ns": first, "outcome": ["ok"] * count, "request_class": ["P0"] * count, "phase": ["main"] * count,
    }  # fmt: skip
    return Measured(RecordColumns.of(columns), left_out=left_out)
