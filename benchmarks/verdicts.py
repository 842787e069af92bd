"""How often the judge is wrong, by simulation through its own functions: `python -m surgeproof.benchmarks verdicts`.

Each process is judged against a bound that is exactly its truth, where a PASS is wrong, and against
one 1.5 times as large, where it is right. Seeds are fixed, so that two versions see the same samples.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from surgeproof.columns import RecordColumns
from surgeproof.records import Verdict
from surgeproof.results import Audit
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.verdict import judge
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.profile import load_profile
from surgeproof.traces.queueing import service_s, slots_for, waits_s

Floats = npt.NDArray[np.float64]
Sample = tuple[Floats, Floats]
"""When each request was due, s, and its latency, ms."""
Draw = Callable[[np.random.Generator, int], Sample]

RATE_PER_S = 10.0
SIMULATIONS = 200
_EPOCH_NS = 1_800_000_000_000_000_000
_TRUTH_SEED = 10**6
_Z99 = 2.3263478740408408
"""99 % point of the normal law."""


class Process(NamedTuple):
    """One row: how latencies come about, the rule, requests of a run, and the latency that meets it exactly."""

    label: str
    draw: Draw
    rule: str
    requests: int
    truth_ms: float
    simulations: int = SIMULATIONS


def independent(rng: np.random.Generator, count: int) -> Sample:
    """Poisson arrivals, log-normal latencies without correlation."""
    return np.cumsum(rng.exponential(1 / RATE_PER_S, count)), np.exp(5 + 0.6 * rng.normal(size=count))


def slow_level(rng: np.random.Generator, count: int) -> Sample:
    """Log-normal latencies whose level changes with a correlation of exp(-t / 30 s)."""
    gaps = rng.exponential(1 / RATE_PER_S, count)
    kept = np.exp(-gaps / 30.0)
    steps = rng.normal(size=count) * np.sqrt(1 - kept**2)
    level = np.empty(count)
    level[0] = rng.normal()
    for index in range(1, count):
        level[index] = kept[index] * level[index - 1] + steps[index]
    return np.cumsum(gaps), np.exp(5 + 0.5 * level + 0.3 * rng.normal(size=count))


def single_server(load: float, warmup: int) -> Draw:
    """M/G/1: Poisson arrivals, Gamma service of shape 2, first come first served; waits by Lindley's recursion."""

    def draw(rng: np.random.Generator, count: int) -> Sample:
        total = count + warmup
        gaps = rng.exponential(1 / RATE_PER_S, total)
        service = rng.gamma(2.0, load / RATE_PER_S / 2.0, total)
        walk = np.concatenate(([0.0], np.cumsum(service[:-1] - gaps[1:])))
        latency = walk - np.minimum.accumulate(np.minimum(walk, 0.0)) + service
        at_s = np.cumsum(gaps)[warmup:]
        return at_s - at_s[0], latency[warmup:] * 1000

    return draw


def stalls(miss_share: float, size: int = 25) -> Draw:
    """Latencies under 90 ms but for stalls that hold `size` requests for a second each."""

    def draw(rng: np.random.Generator, count: int) -> Sample:
        latency = rng.uniform(50.0, 90.0, count)
        for start in np.flatnonzero(rng.random(count) < miss_share / size):
            latency[start : start + size] = 1000.0
        return np.cumsum(rng.exponential(1 / RATE_PER_S, count)), latency

    return draw


def profile_traffic(name: str, run_s: float) -> Draw:
    """A stretch of a profile's traffic, from a random moment on, through a server with enough slots for 80 % load."""
    profile = load_profile(name)
    span_s = profile.arrivals.span_s
    reference = np.random.default_rng(_TRUTH_SEED)
    at_s = simulate(profile.arrivals, reference)
    slots = slots_for(at_s, service_s(profile.draw_lengths(at_s, reference)))

    def draw(rng: np.random.Generator, count: int) -> Sample:
        at_s = simulate(profile.arrivals, rng)
        work_s = service_s(profile.draw_lengths(at_s, rng))
        latency = (waits_s(at_s, work_s, slots) + _FIRST_TOKEN_S) * 1000
        start = rng.uniform(0.0, max(0.0, span_s - run_s)) if count else 0.0
        part = (at_s >= start) & (at_s < start + run_s) if count else np.ones(len(at_s), dtype=np.bool_)
        return at_s[part] - start, latency[part]

    return draw


_FIRST_TOKEN_S = 0.2


def processes() -> list[Process]:
    """All rows, in the order of the document; building them draws the truths."""
    rows = [
        Process(f"independent, n = {count}", independent, "p99", count, math.exp(5 + 0.6 * _Z99))
        for count in (300, 1000, 3000)
    ]
    for load, counts, warmup in ((0.8, (1000, 6000, 10_000), 20_000), (0.95, (6000, 10_000), 60_000)):
        draw = single_server(load, warmup)
        truth = _quantile_of(draw, 4_000_000, 0.95)
        rows += [Process(f"M/G/1 load {load}, n = {count}", draw, "p95", count, truth) for count in counts]
    truth = math.exp(5 + math.sqrt(0.34) * _Z99)
    rows += [
        Process(f"correlation time 30 s, n = {count}", slow_level, "p99", count, truth)
        for count in (1000, 6000, 10_000)
    ]
    rows += [
        Process("twice the misses in stalls of 2.5 s, n = 1000", stalls(0.02), "p99", 1000, 100.0),
        Process("the same, stalls declared", stalls(0.02), "p99 with stalls of 2.5s", 1000, 100.0),
        Process("the same, n = 10000", stalls(0.002), "p99.9", 10_000, 100.0),
        Process("the same, n = 10000, stalls declared", stalls(0.002), "p99.9 with stalls of 2.5s", 10_000, 100.0),
    ]
    for name, run_s, quantile in (("azure-conv", 600.0, 0.95), ("mooncake-conv", 3600.0, 0.99)):
        draw = profile_traffic(name, run_s)
        truth = _pooled_quantile(draw, 40, quantile)
        label = f"{name}, {run_s / 60:.0f} minutes"
        rows.append(Process(label, draw, f"p{quantile * 100:.0f}", 1, truth, SIMULATIONS // 2))
    return rows


def _quantile_of(draw: Draw, count: int, q: float) -> float:
    return float(np.quantile(draw(np.random.default_rng(_TRUTH_SEED), count)[1], q))


def _pooled_quantile(draw: Draw, repeats: int, q: float) -> float:
    whole = [draw(np.random.default_rng(_TRUTH_SEED + seed), 0)[1] for seed in range(repeats)]
    return float(np.quantile(np.concatenate(whole), q))


def measured(sample: Sample) -> Measured:
    """A sample as the records of a run."""
    at_s, latency_ms = sample
    due = (_EPOCH_NS + np.round(at_s * 1e9)).astype(np.int64)
    first = due + np.round(latency_ms * 1e6).astype(np.int64)
    count = len(due)
    columns: dict[str, Any] = {
        "plan_index": np.arange(count), "intended_at_ns": due, "sent_at_ns": due, "first_token_at_ns": first,
        "done_at_ns": first, "outcome": ["ok"] * count, "request_class": ["P0"] * count, "phase": ["main"] * count,
    }  # fmt: skip
    return Measured(RecordColumns.of(columns))


def verdict_shares(process: Process, factor: float) -> dict[Verdict, float]:
    """Share of simulated runs with each verdict, at a bound of `factor` times the truth."""
    quantile, _, suffix = process.rule.partition(" ")
    rule = f"ttft {quantile} < {process.truth_ms * factor:.6f}ms {suffix}"
    objectives = parse_objectives({"all": (rule,)})
    counts = dict.fromkeys(Verdict, 0)
    for seed in range(process.simulations):
        held = measured(process.draw(np.random.default_rng(seed), process.requests))
        counts[judge(held, objectives, Audit())[0].verdict] += 1
    return {verdict: count / process.simulations for verdict, count in counts.items()}


def main() -> None:
    """Print the table as Markdown."""
    print("| latencies | rule | PASS at the truth | PASS at 1.5 times | FAIL at 1.5 times |\n|---|---|---|---|---|")
    for process in processes():
        at, beyond = verdict_shares(process, 1.0), verdict_shares(process, 1.5)
        figures = (at[Verdict.PASS], beyond[Verdict.PASS], beyond[Verdict.FAIL])
        print(
            f"| {process.label} | {process.rule} |", " | ".join(f"{figure:.2f}" for figure in figures), "|", flush=True
        )
