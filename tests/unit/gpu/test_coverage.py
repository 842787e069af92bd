"""Agents whose samples do not cover a run, and counter values that cannot be."""

from surgeproof.gpu.coverage import coverage_lines
from surgeproof.gpu.glitches import without_glitches
from surgeproof.records import GpuFacts, GpuSample
from surgeproof.stored_runs import AgentReport
from tests.unit.gpu.fakes import sample

S = 10**9
AGENT = AgentReport(url="http://gpu:9464", gpus=(GpuFacts(uuid="GPU-A"),))


def every_half_second(*spans: tuple[int, int]) -> list[GpuSample]:
    return [sample(at_ns=half * S // 2) for start, end in spans for half in range(2 * start, 2 * end)]


def told(*spans: tuple[int, int], agent: AgentReport = AGENT) -> list[str]:
    return coverage_lines([agent], every_half_second(*spans), 0, 60 * S)


def test_an_agent_that_answers_all_along_is_not_worth_a_line() -> None:
    assert told((0, 60)) == []
    # It is stopped a moment before the last answer, and was asked a moment after the first request.
    assert told((2, 58)) == []


def test_an_agent_that_vanished_is_told_with_the_time_since_when() -> None:
    (line,) = told((0, 21))
    assert "http://gpu:9464: no sample after 20 s, for the last 40 s of the run" in line
    (line,) = told((0, 10), (25, 60))
    assert "no sample for 16 s, from 10 s on" in line
    (line,) = told()
    assert "not one sample in the 60 s of the run" in line


def test_an_agent_without_a_gpu_is_told_with_its_reason() -> None:
    (line,) = told(agent=AgentReport(url="http://gpu:9464", reason="GPU telemetry unavailable: no driver"))
    assert "reports no GPU (GPU telemetry unavailable: no driver)" in line


def test_a_lone_hundred_per_cent_is_no_measurement() -> None:
    """As on an H200: 34 %, 100 %, 36 %; a GPU that is full is so for longer."""
    shares = [34.0, 100.0, 36.0, 95.0, 100.0, 100.0, 97.0, 30.0, 100.0]
    samples = [sample(at_ns=i, dram_pct=share) for i, share in enumerate(shares)]
    other = [sample(gpu="GPU-B", at_ns=i, dram_pct=100.0) for i in range(9)]
    mixed = [one for pair in zip(samples, other, strict=True) for one in pair]
    found = without_glitches(mixed)
    assert [s.dram_pct for s in found if s.gpu == "GPU-A"] == [34.0, None, *shares[2:]]
    assert [s.dram_pct for s in found if s.gpu == "GPU-B"] == [100.0] * 9
    assert [s.sm_pct for s in found] == [s.sm_pct for s in mixed]
