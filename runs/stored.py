"""A stored run as its judges need it: records, gaps, arrivals and GPU samples, read once."""

from typing import Any

from surgeproof.slo.gaps import Gaps
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import Objectives
from surgeproof.storage.queries import arrivals_of, gap_rows, gpu_samples, run_columns


def measured_run(
    engine: Any, run_id: int, objectives: Objectives | None = None, *, closed_loop: bool = False
) -> Measured:
    """What a run measured, with the times of single arrivals where a rule of `objectives` is about them."""
    arrivals = arrivals_of(engine, run_id) if objectives and objectives.need_arrivals else None
    gaps = Gaps(gap_rows(engine, run_id))
    return Measured(run_columns(engine, run_id), gaps, arrivals, gpu_samples(engine, run_id), closed_loop=closed_loop)
