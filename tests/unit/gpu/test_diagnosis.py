"""Sentences about GPUs, from samples that show just one thing each."""

from typing import Any

import numpy as np
import pytest

from surgeproof.gpu.diagnosis import diagnose, prompt_stages, slope_with_bounds
from surgeproof.records import GpuFacts, GpuSample
from tests.unit.gpu.fakes import FACTS, sample


def told(samples: list[GpuSample], facts: GpuFacts = FACTS, tokens: float = 0.0, span_s: float = 0.0) -> str:
    return "\n".join(diagnose({"GPU-A": facts}, samples, tokens, span_s))


def moments(count: int = 100, **changes: Any) -> list[GpuSample]:
    return [
        sample(at_ns=i * 10**9, **{k: v(i) if callable(v) else v for k, v in changes.items()}) for i in range(count)
    ]


def test_a_full_looking_gpu_is_told_from_a_full_one() -> None:
    assert "a kernel ran 100 % of the time, SMs were 40 % busy, its memory 30 %: it is not full" in told(moments())
    assert "nearly full" in told(moments(sm_pct=92.0))
    # Measured: a 12-billion model made no more tokens with 64 users than with 32, at SM shares of 46 and 60 %.
    assert "times the batch" not in told(moments())
    assert "full" not in told(moments(time_active_pct=10.0))
    assert "full" not in told(moments(sm_pct=None))


def test_an_engine_that_leaves_gaps_between_its_steps_is_told() -> None:
    """No kernel in 37 % of the time of a request that runs from second 0 to 50, and none at all later."""
    samples = moments(time_active_pct=lambda i: 63.0 if i < 50 else 0.0)
    spans = (np.array([0], dtype=np.int64), np.array([50 * 10**9], dtype=np.int64))
    found = "\n".join(diagnose({"GPU-A": FACTS}, samples, 0.0, 0.0, in_flight=spans))
    assert "no kernel ran in 37 % of the time in which requests were in flight" in found
    busy = moments(time_active_pct=lambda i: 98.0 if i < 50 else 0.0)
    assert "no kernel ran" not in "\n".join(diagnose({"GPU-A": FACTS}, busy, 0.0, 0.0, in_flight=spans))


def test_throttling_is_named_with_its_reason_share_and_clock() -> None:
    line = told(
        moments(throttle_bits=lambda i: 0x4 if i % 4 == 0 else 0, sm_clock_mhz=lambda i: 1200 if i % 4 == 0 else 1980)
    )
    assert "throttled by the power cap in 25% of the busy time, at 1200 MHz" in line
    assert "throttled" not in told(moments(throttle_bits=0x1))


def test_a_narrow_link_and_a_far_processor_are_named() -> None:
    facts = GpuFacts(uuid="GPU-A", pcie_generation_max=5, pcie_width_max=16, numa_node=1, cpu_numa_node=0)
    found = told(moments(pcie_generation=4, pcie_width=16), facts)
    assert "PCIe generation 4 of 5" in found
    assert "PCIe width" not in found
    assert "on NUMA node 1, its process on node 0" in found
    # An idle link rests at a lower generation.
    assert "PCIe" not in told(moments(pcie_generation=1, time_active_pct=0.0), facts)


def test_growing_memory_is_found_and_noise_is_not() -> None:
    """36 MB a second are 129.6 GB an hour."""
    rng = np.random.default_rng(0)
    growing = told(moments(700, memory_used_bytes=lambda i: 10**10 + 36_000_000 * i + int(rng.normal(0, 10**8))))
    assert "memory grows by 129" in growing or "memory grows by 130" in growing
    assert "memory grows" not in told(moments(100, memory_used_bytes=lambda i: 10**10 + 36_000_000 * i))
    assert "memory grows" not in told(moments(700, memory_used_bytes=lambda i: 10**10 + int(rng.normal(0, 10**8))))


def test_memory_is_watched_by_stages_of_one_prompt_length() -> None:
    """Short prompts for 15 minutes, long ones for 15: memory grows with the long ones only, by 36 GB an hour."""
    rng = np.random.default_rng(2)
    at_s = np.arange(0, 1800, 0.5)
    tokens = np.where(at_s < 900, rng.integers(180, 220, len(at_s)), rng.integers(7000, 9000, len(at_s)))
    stages = prompt_stages((at_s * 1e9).astype(np.int64), tokens.astype(np.float64))
    assert [(s.start_ns // 10**9, s.end_ns // 10**9) for s in stages] == [(0, 900), (900, 1800)]
    assert [s.prompt_tokens for s in stages] == [pytest.approx(200, abs=5), pytest.approx(8000, abs=200)]
    held = moments(1800, memory_used_bytes=lambda i: 10**10 + max(0, i - 900) * 10_000_000 + int(rng.normal(0, 10**7)))
    [line] = [line for line in diagnose({}, held, 0, 1800, stages) if "memory grows" in line]
    assert "memory grows by 36" in line or "memory grows by 35.9" in line
    assert line.endswith(f"at prompts of about {stages[1].prompt_tokens:,.0f} tokens")


def test_slopes_have_bounds_that_hold_the_truth() -> None:
    x = np.arange(200.0)
    found = slope_with_bounds(list(x), list(3 * x + np.random.default_rng(1).normal(0, 5, 200)))
    assert found is not None
    assert found[0] == pytest.approx(3, abs=0.05)
    assert found[1] < 3 < found[2]
    assert slope_with_bounds([1.0] * 20, [2.0] * 20) is None
    assert slope_with_bounds([1.0], [2.0]) is None


def test_tokens_and_energy_are_counted_a_gpu() -> None:
    """5,000 tokens in 50 s on one GPU at 400 W: 100 tokens/s, 4 J a token."""
    found = told(moments(), tokens=5000, span_s=50)
    assert "100.0 output tokens/s a GPU (1 GPUs)" in found
    assert "4 J per output token" in found
