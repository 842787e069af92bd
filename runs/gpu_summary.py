"""What the GPUs did over a run: figures of each, and what they mean in words."""

from collections.abc import Sequence

import numpy as np

from surgeproof.gpu.coverage import coverage_lines
from surgeproof.gpu.diagnosis import diagnose, prompt_stages, values
from surgeproof.records import GpuSample
from surgeproof.results import GpuFigure, GpuSummary
from surgeproof.slo.measured import Measured
from surgeproof.stored_runs import AgentReport

_FIELDS = ("time_active_pct", "sm_pct", "tensor_pct", "dram_pct", "memory_used_bytes", "power_w", "temperature_c")


def gpu_summary(measured: Measured, samples: Sequence[GpuSample], agents: Sequence[AgentReport]) -> GpuSummary:
    """Summarise samples of GPUs beside a run.

    Args:
        measured: the run.
        samples: of all GPUs, on the run's clock.
        agents: how the collection from each went.
    """
    facts = {gpu.uuid: gpu for agent in agents for gpu in agent.gpus}
    tokens = float(np.nansum(measured.numbers["output_tokens"][measured.judged & measured.ok]))
    start, end = measured.span_s(measured.sent)
    figures: dict[str, dict[str, GpuFigure | None]] = {}
    for gpu in sorted({sample.gpu for sample in samples}):
        own = [sample for sample in samples if sample.gpu == gpu]
        figures[gpu] = {name: _figure(own, name) for name in _FIELDS}
    sent_at_ns = measured.columns.integers("sent_at_ns")[measured.sent]
    done_at_ns = measured.columns.integers("done_at_ns")[measured.sent]
    stages = prompt_stages(sent_at_ns, measured.numbers["planned_input_tokens"][measured.sent])
    missing = coverage_lines(agents, samples, int(sent_at_ns.min()), int(done_at_ns.max())) if len(sent_at_ns) else []
    diagnosis = diagnose(facts, samples, tokens, end - start, stages, (sent_at_ns, done_at_ns))
    return GpuSummary(figures, (*missing, *diagnosis))


def _figure(samples: Sequence[GpuSample], field: str) -> GpuFigure | None:
    column = values(samples, field)
    return GpuFigure(len(column), float(column.mean()), float(column.max())) if len(column) else None
