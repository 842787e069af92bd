"""Writes a stored run to a file; the file suffix selects the format."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from surgeproof.errors import ConfigError, UsageError
from surgeproof.loadgen.arrivals_codec import unpack_arrivals
from surgeproof.records import RunState
from surgeproof.runs.stored import measured_run
from surgeproof.slo.vllm_result import VllmFacts, vllm_result
from surgeproof.slo.wording import when
from surgeproof.storage.exports import write_csv, write_jsonl, write_parquet
from surgeproof.storage.queries import arrivals_of, get_run
from surgeproof.storage.store import open_engine


def export_run(db_url: str, run_id: int, path: Path) -> None:
    """Write a run by the file's suffix: .jsonl whole, .csv and .parquet its records, .json as vLLM's bench does.

    Raises:
        ConfigError: the suffix is not supported, or the file cannot be written.
        UsageError: there is no such run, or it has not ended.
    """
    engine = open_engine(db_url, create=False)
    if get_run(engine, run_id).state is RunState.RUNNING:
        raise UsageError(f"run {run_id} has not ended: wait for it; if it was killed, use 'surgeproof recover'")
    writers = {".jsonl": write_jsonl, ".csv": write_csv, ".parquet": write_parquet, ".json": _write_vllm}
    if path.suffix not in writers:
        raise ConfigError(f"cannot export to {path}: the file name must end in one of {', '.join(writers)}")
    try:
        writers[path.suffix](engine, run_id, path)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _write_vllm(engine: Any, run_id: int, path: Path) -> None:
    run, measured = get_run(engine, run_id), measured_run(engine, run_id)
    load = run.scenario.load
    facts = VllmFacts(
        date=when(run.started_at_ns),
        model_id=run.model,
        request_rate=load.request_rate,
        burstiness=load.burstiness,
        max_concurrency=load.max_concurrency,
        metadata=run.metadata,
    )
    arrivals = arrivals_of(engine, run_id)
    indexes = measured.columns.integers("plan_index")[measured.judged & measured.ok]
    gaps = None
    if all(arrivals.get(int(index)) is not None for index in indexes):
        at_us = [unpack_arrivals(arrivals[int(index)]) for index in indexes]
        gaps = [[(b - a) / 1e3 for a, b in pairwise(of_request)] for of_request in at_us]
    path.write_text(json.dumps(vllm_result(measured, facts, gaps), allow_nan=False))
