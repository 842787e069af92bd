"""Diagnoses a run's GPU samples in words: why it was slow, and how much headroom is left. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from surgeproof.gpu.throttle import THROTTLE_REASONS
from surgeproof.records import GpuFacts, GpuSample

Floats = npt.NDArray[np.float64]

_BUSY_PCT = 50.0
_FULL_PCT = 75.0
_GAPLESS_PCT = 85.0
"""NVML's share of time with a kernel while requests are in flight: engines with lean loops reach 93 to 99."""
_THROTTLED_SHARE = 0.05
_MIN_SAMPLES = 10
_LEAK_WATCH_NS = 300_000_000_000
_STAGE_NS = 60_000_000_000
_OTHER_LENGTH = 1.5
_T_95 = 1.96


Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Starts and ends."""


class Stage(NamedTuple):
    """A stretch of a run with prompts of about one length, on the run's clock."""

    prompt_tokens: float
    start_ns: int
    end_ns: int


def prompt_stages(at_ns: npt.NDArray[np.int64], prompt_tokens: Floats) -> list[Stage]:
    """Cut a run where its prompts change length: where a minute's median is off by half from the stage's first.

    Args:
        at_ns: when requests were due.
        prompt_tokens: of each.
    """
    results: list[Stage] = []
    if not len(at_ns):
        return results
    window = (at_ns - at_ns.min()) // _STAGE_NS
    for number in np.unique(window):
        median = float(np.median(prompt_tokens[window == number]))
        start_ns = int(at_ns.min() + number * _STAGE_NS)
        before = results[-1].prompt_tokens if results else None
        if before is not None and 1 / _OTHER_LENGTH <= (median + 1) / (before + 1) <= _OTHER_LENGTH:
            results[-1] = results[-1]._replace(end_ns=start_ns + _STAGE_NS)
        else:
            results.append(Stage(median, start_ns, start_ns + _STAGE_NS))
    return results


def values(samples: Sequence[GpuSample], field: str) -> Floats:
    """A field of all samples that have it."""
    return np.array([v for v in (getattr(sample, field) for sample in samples) if v is not None], dtype=np.float64)


def diagnose(
    facts: Mapping[str, GpuFacts],
    samples: Sequence[GpuSample],
    output_tokens: float,
    span_s: float,
    stages: Sequence[Stage] = (),
    in_flight: Spans | None = None,
) -> list[str]:
    """Sentences about each GPU and about all.

    Args:
        facts: by UUID.
        samples: of the run, on its clock.
        output_tokens: of answered requests, in all.
        span_s: length of the run.
        stages: stretches in which growing memory is looked for apart; none for the run as a whole.
        in_flight: when each request was sent and when it ended, on the run's clock.
    """
    results = []
    by_gpu: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    for number, (gpu, own) in enumerate(sorted(by_gpu.items())):
        name = f"GPU {number} ({(facts[gpu].name if gpu in facts else None) or gpu})"
        lines = [*_of_one(facts.get(gpu), own, stages), *(_host_gaps(own, in_flight) if in_flight else ())]
        results += [f"{name}: {line}" for line in lines]
    results += _of_all(by_gpu, output_tokens, span_s)
    return results


def _of_one(facts: GpuFacts | None, samples: Sequence[GpuSample], stages: Sequence[Stage]) -> list[str]:
    lines = [*_throttling(samples), *_link(facts, samples), *_numa(facts), *_room(samples)]
    if len(stages) < 2:
        return [*lines, *_leak(samples)]
    for stage in stages:
        inside = [s for s in samples if stage.start_ns <= s.at_ns < stage.end_ns]
        lines += [f"{line}, at prompts of about {stage.prompt_tokens:,.0f} tokens" for line in _leak(inside)]
    return lines


def _throttling(samples: Sequence[GpuSample]) -> list[str]:
    """Which reasons for lower clocks applied while the GPU worked, and how often."""
    busy = [s for s in samples if s.throttle_bits is not None and (s.time_active_pct or 0) >= _BUSY_PCT]
    if not busy:
        return []
    lines = []
    for bit, reason in THROTTLE_REASONS.items():
        share = sum(bool((s.throttle_bits or 0) & bit) for s in busy) / len(busy)
        if share >= _THROTTLED_SHARE:
            clock = values([s for s in busy if (s.throttle_bits or 0) & bit], "sm_clock_mhz")
            at_clock = f", at {np.median(clock):.0f} MHz" if len(clock) else ""
            lines.append(f"throttled by {reason} in {share:.0%} of the busy time{at_clock}")
    return lines


def _link(facts: GpuFacts | None, samples: Sequence[GpuSample]) -> list[str]:
    """A PCIe link that stays below its best while the GPU works (idle links slow down by design)."""
    if facts is None:
        return []
    busy = [s for s in samples if (s.time_active_pct or 0) >= _BUSY_PCT]
    lines = []
    for now, most, name in (
        ("pcie_generation", facts.pcie_generation_max, "generation"),
        ("pcie_width", facts.pcie_width_max, "width"),
    ):
        seen = values(busy, now)
        if most is not None and len(seen) and seen.max() < most:
            lines.append(f"PCIe {name} {seen.max():.0f} of {most}")
    return lines


def _numa(facts: GpuFacts | None) -> list[str]:
    if facts is None or facts.numa_node is None or facts.cpu_numa_node is None:
        return []
    if facts.numa_node == facts.cpu_numa_node:
        return []
    return [f"on NUMA node {facts.numa_node}, its process on node {facts.cpu_numa_node}"]


def _host_gaps(samples: Sequence[GpuSample], in_flight: Spans) -> list[str]:
    """Time without a kernel although requests were in flight: the engine's own work between steps."""
    at_ns = np.array([sample.at_ns for sample in samples], dtype=np.int64)
    begun, ended = (np.searchsorted(np.sort(times), at_ns, side="right") for times in in_flight)
    loaded = [sample for sample, waiting in zip(samples, begun > ended, strict=True) if waiting]
    active = values(loaded, "time_active_pct")
    if len(active) < _MIN_SAMPLES or active.mean() >= _GAPLESS_PCT:
        return []
    gaps = f"no kernel ran in {100 - active.mean():.0f} % of the time in which requests were in flight"
    return [f"{gaps}: the engine's host side (scheduling, sampling, tokenizer) is the limit, not the GPU"]


def _room(samples: Sequence[GpuSample]) -> list[str]:
    """NVML utilisation beside SM utilisation: whether a GPU that never rests is full."""
    active, busy = values(samples, "time_active_pct"), values(samples, "sm_pct")
    if len(active) < _MIN_SAMPLES or len(busy) < _MIN_SAMPLES:
        return []
    dram = values(samples, "dram_pct")
    fullest = max(float(busy.mean()), float(dram.mean()) if len(dram) else 0.0)
    if fullest <= 0 or active.mean() < _BUSY_PCT:
        return []
    usage = f"a kernel ran {active.mean():.0f} % of the time, SMs were {busy.mean():.0f} % busy"
    memory = f", its memory {dram.mean():.0f} %" if len(dram) else ""
    # How much more it carries cannot be told from shares: throughput saturates at 50 to 75 % of them (docs/gpu.md).
    return [f"{usage}{memory}: {'it is nearly full' if fullest >= _FULL_PCT else 'it is not full'}"]


def _leak(samples: Sequence[GpuSample]) -> list[str]:
    """A significant upward slope of used memory, over the second half of the samples."""
    points = [(s.at_ns, s.memory_used_bytes) for s in samples if s.memory_used_bytes is not None]
    points = points[len(points) // 2 :]
    # Caches and pools grow for minutes after a start or a change of load; a leak goes on.
    if not points or points[-1][0] - points[0][0] < _LEAK_WATCH_NS:
        return []
    slope = slope_with_bounds([at / 1e9 for at, _ in points], [float(used) for _, used in points])
    if slope is None or slope[1] <= 0 or slope[0] * 3600 < 50e6:
        return []
    per_hour = [value * 3600 / 1e9 for value in slope]
    return [f"memory grows by {per_hour[0]:.2f} GB an hour ({per_hour[1]:.2f} to {per_hour[2]:.2f})"]


def slope_with_bounds(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float] | None:
    """Least-squares slope with 95 % bounds; None under ten points or without any spread."""
    if len(x) < _MIN_SAMPLES:
        return None
    xs, ys = np.array(x) - np.mean(x), np.array(y)
    power = float((xs**2).sum())
    if power == 0:
        return None
    slope = float((xs * ys).sum() / power)
    rest = ys - ys.mean() - slope * xs
    # Neighbouring samples are alike: blocks of a tenth of them count as one.
    blocks = np.array([part.mean() for part in np.array_split(rest, 10)])
    error = float(np.sqrt((blocks**2).sum() / 8 / power * len(rest) / 10))
    return slope, slope - _T_95 * error, slope + _T_95 * error


def _of_all(by_gpu: Mapping[str, Sequence[GpuSample]], output_tokens: float, span_s: float) -> list[str]:
    if not by_gpu or output_tokens <= 0 or span_s <= 0:
        return []
    lines = [f"{output_tokens / span_s / len(by_gpu):,.1f} output tokens/s a GPU ({len(by_gpu)} GPUs)"]
    power = [values(own, "power_w") for own in by_gpu.values()]
    if all(len(own) for own in power):
        joule = sum(float(own.mean()) for own in power) * span_s / output_tokens
        lines.append(f"{joule:.3g} J per output token")
    return lines
