"""What is missing in the GPU samples of a run, in words: agents without GPUs, agents that vanished. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from surgeproof.records import NS_PER_S, GpuSample
from surgeproof.stored_runs import AgentReport

_SILENT_S = 5.0
"""An agent is asked twice a second, so five seconds without a sample are no accident of timing."""


def coverage_lines(
    agents: Sequence[AgentReport], samples: Sequence[GpuSample], start_ns: int, end_ns: int
) -> list[str]:
    """A sentence for each agent whose samples do not cover the run.

    Args:
        agents: how the collection from each went.
        samples: of all GPUs, on the run's clock.
        start_ns: first request sent.
        end_ns: last answer.
    """
    lines = []
    for agent in agents:
        own = {facts.uuid for facts in agent.gpus}
        if not own:
            reason = f" ({agent.reason})" if agent.reason else ""
            lines.append(f"GPU agent {agent.url} reports no GPU{reason}: nothing of its host was measured")
            continue
        at_ns = sorted(sample.at_ns for sample in samples if sample.gpu in own and start_ns <= sample.at_ns <= end_ns)
        missing = _longest_silence(at_ns, start_ns, end_ns)
        if missing is not None:
            lines.append(f"GPU agent {agent.url}: {missing}; figures of its GPUs are of the other {len(at_ns)} samples")
    return lines


def _longest_silence(at_ns: Sequence[int], start_ns: int, end_ns: int) -> str | None:
    """The longest stretch without a sample, where it is longer than chance."""
    edges = [start_ns, *at_ns, end_ns]
    longest, since = max((after - before, before) for before, after in pairwise(edges))
    if longest < _SILENT_S * NS_PER_S:
        return None
    after_s = (since - start_ns) / NS_PER_S
    if not at_ns:
        return f"not one sample in the {(end_ns - start_ns) / NS_PER_S:.0f} s of the run"
    if since == at_ns[-1]:
        return f"no sample after {after_s:.0f} s, for the last {longest / NS_PER_S:.0f} s of the run"
    return f"no sample for {longest / NS_PER_S:.0f} s, from {after_s:.0f} s on"
