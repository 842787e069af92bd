"""Estimates of what a GPU did, for files of measured steps and for stored runs.

A run tells what was asked of the model: prompts when their first token came, and a token for each
sequence in flight at every step. Where an agent's counters were stored with a run, they calibrate.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from surgeproof.columns import RecordColumns
from surgeproof.errors import UsageError
from surgeproof.gpu.datasheets import gpu_named
from surgeproof.gpu.model_shape import ModelShape, shape_from_config
from surgeproof.gpu.run_load import Load, load_windows
from surgeproof.gpu.sm_estimate import Work, decode_work, estimate, estimate_steps, prefill_work
from surgeproof.storage.queries import run_columns
from surgeproof.storage.store import open_engine

_MOST_WINDOWS = 60


def estimate_steps_file(path: Path, gpu_name: str | None) -> list[dict[str, Any]]:
    """Estimate the rows of a file of measured steps, in their order.

    Raises:
        UsageError: the file cannot be read, or names no GPU that is known.
    """
    found = _json(path)
    rows = found.get("rows") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        raise UsageError(f"{path} holds no list of rows")
    named = gpu_name or (found.get("gpu") or {}).get("name") if isinstance(found, dict) else gpu_name
    if not named:
        raise UsageError(f"{path} names no GPU: say which with --gpu")
    labels = [f"{row.get('model', '')} {row.get('tag', '')} batch {row.get('batch')}" for row in rows]
    estimates = estimate_steps(rows, gpu_named(named))
    return [{"label": label} | msgspec.to_builtins(found) for label, found in zip(labels, estimates, strict=True)]


def estimate_run(
    db_url: str,
    run_id: int,
    gpu_name: str | None,
    config: Path | None,
    weights: str | None,
    kv_cache: str | None,
    gpus: int,
) -> list[dict[str, Any]]:
    """Estimate a stored run over time; the last row is the whole run.

    Raises:
        UsageError: there is no such run, or GPU or model are not known.
    """
    columns = run_columns(open_engine(db_url, create=False), run_id)
    if config is None or gpu_name is None:
        raise UsageError("an estimate of a run needs --config (the model's config.json) and --gpu")
    shape = shape_from_config(_json(config), weights, kv_cache)
    gpu = gpu_named(gpu_name)
    windows = load_windows(columns, _window_s(columns))
    if not windows:
        raise UsageError(f"run {run_id} has no answered request to estimate from")
    rows, total, busy_s = [], Work(), 0.0
    for window in windows:
        work = _work(shape, window)
        total, busy_s = total.plus(work), busy_s + window.busy_share * window.length_s
        found = estimate(work, gpu, window.length_s, window.busy_share, gpus=gpus)
        rows.append({"label": f"{window.start_s:.0f} s"} | msgspec.to_builtins(found))
    length_s = sum(window.length_s for window in windows)
    whole = estimate(total, gpu, length_s, busy_s / length_s, gpus=gpus)
    return [*rows, {"label": "whole run"} | msgspec.to_builtins(whole)]


def _work(shape: ModelShape, load: Load) -> Work:
    work = decode_work(shape, load.batch, load.context).times(load.steps)
    if load.prompts:
        work = work.plus(prefill_work(shape, load.prompt_tokens / load.prompts).times(load.prompts))
    return work


def _window_s(columns: RecordColumns) -> float:
    known = columns.integers("done_at_ns")[columns.has("done_at_ns")]
    if len(known) == 0:
        return 1.0
    span_s = float(known.max() - columns.integers("intended_at_ns").min()) / 1e9
    return max(1.0, float(np.ceil(span_s / _MOST_WINDOWS)))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read {path}: {exc}") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc
