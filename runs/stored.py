"""A stored run as its judges need it: what it was, and its records, gaps, arrivals and GPU samples, read once."""

from typing import Any

from msgspec import structs

from surgeproof.errors import UsageError
from surgeproof.gpu.glitches import without_glitches
from surgeproof.records import GpuSample
from surgeproof.scenario import LoadConfig
from surgeproof.slo.gaps import Gaps
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import Objectives
from surgeproof.storage.queries import arrivals_of, gap_rows, get_run, gpu_samples, run_columns
from surgeproof.stored_runs import Run


def measured_run(engine: Any, run_id: int, objectives: Objectives | None = None) -> Measured:
    """What a run measured, with the times of single arrivals where a rule of `objectives` is about them."""
    run = get_run(engine, run_id)
    return Measured(
        run_columns(engine, run_id),
        Gaps(gap_rows(engine, run_id)),
        arrivals_of(engine, run_id) if objectives and objectives.need_arrivals else None,
        usable_gpu_samples(engine, run_id),
        closed_loop=run.scenario.closed_loop,
        cap=None if run.scenario.closed_loop else run.scenario.load.max_concurrency,
        left_out=run.plan.left_out if run.plan else 0.0,
    )


def usable_gpu_samples(engine: Any, run_id: int) -> list[GpuSample]:
    """Samples of GPUs beside a run, in order of time, without impossible values."""
    return without_glitches(gpu_samples(engine, run_id))


def ended_run(engine: Any, run_id: int) -> Run:
    """A stored run that has ended.

    Raises:
        UsageError: there is no such run, or it has not ended.
    """
    run = get_run(engine, run_id)
    if run.summary is None:
        raise UsageError(f"run {run_id} has not ended: wait for it; if it was killed, use 'surgeproof recover'")
    return run


def same_load(one: Run, other: Run) -> bool:
    """Whether two runs had the same load, apart from the seed and the words of the prompts."""
    return _without_seeds(one.scenario.load) == _without_seeds(other.scenario.load)


def _without_seeds(load: LoadConfig) -> LoadConfig:
    return structs.replace(load, seed=0, repetition=(0, 1), prompt_salt=None)
