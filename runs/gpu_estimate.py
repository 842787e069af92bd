"""Estimates what a GPU did, for files of measured steps and for stored runs.

A run shows the model's work: prompts, up to their first token, and a token for each
sequence in flight at every step. Where an agent's counters were stored with a run, the estimator can be fitted to them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from surgeproof.columns import RecordColumns
from surgeproof.errors import UsageError
from surgeproof.gpu.counter_fit import MIN_WINDOWS, Window, fit_to_counters, held_out_errors, scaled_work
from surgeproof.gpu.datasheets import Gpu, gpu_named
from surgeproof.gpu.diagnosis import values
from surgeproof.gpu.model_shape import ModelShape, shape_from_config
from surgeproof.gpu.run_load import Load, load_windows
from surgeproof.gpu.sm_estimate import (
    Estimate,
    Fit,
    Work,
    decode_work,
    estimate,
    estimate_steps,
    outside_fit,
    prefill_work,
    step_shape,
)
from surgeproof.runs.stored import usable_gpu_samples
from surgeproof.storage.queries import counter_fit, get_run, run_columns
from surgeproof.storage.store import Store, open_engine

_MAX_WINDOWS = 60
_COVERED = 0.9
_WORTH_IT = 0.9
"""A calibration must leave at most this share of the error without one, on windows that it has not seen."""


class EstimateRow(Estimate, frozen=True, kw_only=True):
    """An estimate of one window, step or run, with what counters measured there.

    Attributes:
        calibrated: whether a fit to counters was used; of the whole run only.
        outside_fit: why the intervals do not hold for this model or GPU; of the whole run or a step.
        sm_counted, dram_counted: by the agent's counters, per cent; None without any.
    """

    label: str
    calibrated: bool | UnsetType = UNSET
    outside_fit: str | UnsetType = UNSET
    sm_counted: float | UnsetType | None = UNSET
    dram_counted: float | UnsetType | None = UNSET


def estimate_steps_file(path: Path, gpu_name: str | None) -> list[EstimateRow]:
    """Estimate the rows of a file of measured steps, in their order.

    Raises:
        UsageError: the file cannot be read, or names no known GPU.
    """
    content = _json(path)
    rows = content.get("rows") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise UsageError(f"{path} does not contain a list of rows")
    name = gpu_name or (content.get("gpu") or {}).get("name") if isinstance(content, dict) else gpu_name
    if not name:
        raise UsageError(f"{path} names no GPU: give --gpu")
    gpu = gpu_named(name)
    results = estimate_steps(rows, gpu)
    return [
        _row(
            result,
            label=f"{row.get('model', '')} {row.get('tag', '')} batch {row.get('batch')}",
            outside_fit=outside_fit(step_shape(row), gpu) or UNSET,
        )
        for row, result in zip(rows, results, strict=True)
    ]


def _row(result: Estimate, **more: Any) -> EstimateRow:
    return EstimateRow(**msgspec.structs.asdict(result), **more)


class EstimateTarget(NamedTuple):
    """What is estimated: the GPU, how many of them, and the model."""

    gpu: Gpu
    gpus: int
    shape: ModelShape


def estimate_target(
    gpu_name: str | None, config: Path | None, weights: str | None, kv_cache: str | None, gpus: int
) -> EstimateTarget:
    """Read the model's configuration and find the GPU's data sheet.

    Raises:
        UsageError: one of them is missing or unknown.
    """
    if config is None or gpu_name is None:
        raise UsageError("an estimate of a run needs --config (the model's config.json) and --gpu")
    return EstimateTarget(gpu_named(gpu_name), gpus, shape_from_config(_json(config), weights, kv_cache))


def estimate_run(db_url: str, run_id: int, target: EstimateTarget) -> list[EstimateRow]:
    """Estimate a stored run over time; the last row is the whole run. A calibration is used where there is one.

    Raises:
        UsageError: there is no such run, or nothing in it to estimate from.
    """
    engine = open_engine(db_url, create=False)
    stored = _stored_fit(engine, target.gpu.name, get_run(engine, run_id).model)
    fit = stored or Fit()
    windows = _windows(engine, run_id, target.shape)
    rows: list[EstimateRow] = []
    total, busy_s = Work(), 0.0
    for window in windows:
        work = scaled_work(window.decode, window.prefill, fit)
        total, busy_s = total.plus(work), busy_s + window.busy_share * window.length_s
        result = estimate(work, target.gpu, window.length_s, window.busy_share, fit=fit, gpus=target.gpus)
        label = f"{sum(window.length_s for window in windows[: len(rows)]):.0f} s"
        counted = {"sm_counted": _known(window.sm_pct), "dram_counted": _known(window.dram_pct)}
        rows.append(_row(result, label=label, **counted))
    length_s = sum(window.length_s for window in windows)
    whole = estimate(total, target.gpu, length_s, busy_s / length_s, fit=fit, gpus=target.gpus)
    means = {
        "sm_counted": _mean([window.sm_pct for window in windows], windows),
        "dram_counted": _mean([window.dram_pct for window in windows], windows),
    }
    outside = outside_fit(target.shape, target.gpu) if stored is None else None
    return [*rows, _row(whole, label="whole run", calibrated=stored is not None, outside_fit=outside or UNSET, **means)]


def _stored_fit(engine: Any, gpu: str, model: str) -> Fit | None:
    """The calibration for a GPU and model, unless it is of another version's curve."""
    stored = counter_fit(engine, gpu, model)
    try:
        return msgspec.json.decode(stored, type=Fit) if stored else None
    except msgspec.ValidationError:
        return None


def _mean(values: Sequence[float], windows: Sequence[Window]) -> float | UnsetType:
    """The mean over time, where the counters cover nearly all of it."""
    shares, lengths = np.array(values), np.array([window.length_s for window in windows])
    known = ~np.isnan(shares)
    if lengths[known].sum() < _COVERED * lengths.sum():
        return UNSET
    return round(float(np.average(shares[known], weights=lengths[known])), 2)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 2)


def fit_estimator(db_url: str, run_ids: Sequence[int], target: EstimateTarget) -> Fit:
    """Fit the estimator to the counters of runs that had an agent, and store the fit for their GPU and model.

    Raises:
        UsageError: a run has no counters, they are too few, or the fit would be no better than none.
    """
    store = Store(db_url)
    models = {get_run(store.engine, run_id).model for run_id in run_ids}
    if len(models) != 1:
        raise UsageError("all runs must be of one model, not of several: " + ", ".join(sorted(models)))
    windows = [
        window
        for run_id in run_ids
        for window in _windows(store.engine, run_id, target.shape)
        if not (np.isnan(window.sm_pct) or np.isnan(window.dram_pct))
    ]
    if len(windows) < MIN_WINDOWS:
        raise UsageError("these runs have too few windows with SM and DRAM counters: repeat with --gpu-agent, longer")
    before, after = held_out_errors(windows, target.gpu, gpus=target.gpus)
    if after > _WORTH_IT * before:
        raise UsageError(
            f"a calibration is not worth it: on windows that it was not fitted to it is {after:.1f} points off on "
            f"average, the estimate without one {before:.1f}; nothing was stored"
        )
    fit = fit_to_counters(windows, target.gpu, gpus=target.gpus)
    store.save_counter_fit(target.gpu.name, models.pop(), msgspec.json.encode(fit).decode())
    return fit


def _windows(engine: Any, run_id: int, shape: ModelShape) -> list[Window]:
    """The model's work in each window, and the measured counters; NaN without counters."""
    columns = run_columns(engine, run_id)
    loads = load_windows(columns, _window_s(columns))
    if not loads:
        raise UsageError(f"run {run_id} has no answered request to estimate from")
    origin = int(columns.integers("intended_at_ns").min())
    samples = usable_gpu_samples(engine, run_id)
    at_s = np.array([(sample.at_ns - origin) / 1e9 for sample in samples])
    usual_s = float(np.median(np.diff(np.unique(at_s)))) if len(at_s) > 2 else 0.0
    results = []
    for load in loads:
        inside = np.flatnonzero((at_s > load.start_s) & (at_s <= load.start_s + load.length_s))
        counted = [values([samples[i] for i in inside], field) for field in ("sm_pct", "dram_pct")]
        # A sample is about the time since the one before it: too few of them are about a part of the window only.
        covered = len(np.unique(at_s[inside])) * usual_s >= _COVERED * load.length_s
        sm, dram = (float(column.mean()) if covered and len(column) else float("nan") for column in counted)
        results.append(Window(*_work(shape, load), load.length_s, load.busy_share, sm, dram))
    return results


def _work(shape: ModelShape, load: Load) -> tuple[Work, Work]:
    """Decode steps and prompts of a window."""
    decode = decode_work(shape, load.batch, load.context).times(load.steps)
    if not load.prompts:
        return decode, Work()
    return decode, prefill_work(shape, load.prompt_tokens / load.prompts).times(load.prompts)


def _window_s(columns: RecordColumns) -> float:
    known = columns.integers("done_at_ns")[columns.has("done_at_ns")]
    if len(known) == 0:
        return 1.0
    span_s = float(known.max() - columns.integers("intended_at_ns").min()) / 1e9
    return max(1.0, float(np.ceil(span_s / _MAX_WINDOWS)))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read {path}: {exc}") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc
