"""Looks back at stored runs: compares them, holds one against its history, decides, and exports.

Reads from `storage`, judges by `slo`; nothing is sent and nothing is changed.
"""

import csv
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from surgeproof.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_INVALID, EXIT_PASS, ConfigError, UsageError
from surgeproof.loadgen.stream import unpack_arrivals
from surgeproof.records import RunState, Verdict
from surgeproof.run import measured_run
from surgeproof.slo.baseline import DAY_NS, BaselineReport, choose_history, deviations, explain
from surgeproof.slo.breaker import Breaker, breaker
from surgeproof.slo.compare import Difference, Policy, compare, figures_of, group_mask, groups, lost
from surgeproof.slo.decision import Action, Decision, decide
from surgeproof.slo.measured import Measured
from surgeproof.slo.vllm_result import vllm_result
from surgeproof.slo.wording import when
from surgeproof.storage.archive import export_lines, record_rows
from surgeproof.storage.queries import arrivals_of, get_run, list_runs
from surgeproof.storage.store import open_engine

_MOST_HISTORY = 100


class Comparison(NamedTuple):
    """The first run against each of the others: differences, what to know before them, and the exit code."""

    differences: list[list[Difference]]
    notes: list[str]
    exit_code: int


def compare_runs(db_url: str, run_ids: Sequence[int], policy: Policy) -> Comparison:
    """Compare the first run with each of the others; every run is read once.

    Raises:
        UsageError: a run is missing or has not ended.
    """
    engine = open_engine(db_url, create=False)
    runs = [get_run(engine, run_id) for run_id in run_ids]
    first, *others = (_ended(engine, run_id) for run_id in run_ids)
    found = [compare(first, other, policy) for other in others]
    gone = {run["id"]: lost(first, other) for run, other in zip(runs[1:], others, strict=True)}
    return Comparison(found, _comparison_notes(runs, gone), _comparison_exit(runs, found, gone))


def _comparison_notes(runs: Sequence[dict[str, Any]], gone: dict[int, list[str]]) -> list[str]:
    """What a reader must know before the figures: runs that are no fair witnesses, loads that differ, figures lost."""
    first, *others = runs
    notes = [
        f"run {run['id']} is {run['verdict'] if run['verdict'] == Verdict.INVALID else run['state']}: "
        "its figures may be the client's, or of a part only"
        for run in runs
        if not _is_witness(run)
    ]
    notes += [
        f"runs {first['id']} and {run['id']} were asked different requests: their plans differ"
        for run in others
        if (run["plan"] or {}).get("digest") != (first["plan"] or {}).get("digest")
    ]
    notes += [
        f"run {run_id} has no {', '.join(figures)}: too little was answered or streamed to compare them"
        for run_id, figures in gone.items()
        if figures
    ]
    return notes


def _comparison_exit(
    runs: Sequence[dict[str, Any]], found: Sequence[Sequence[Difference]], gone: dict[int, list[str]]
) -> int:
    """No fair witness decides before all, then alarms do, then what is unclear."""
    differences = [difference for pair in found for difference in pair]
    if not all(map(_is_witness, runs)):
        return EXIT_INVALID
    if any(difference.alarm for difference in differences):
        return EXIT_FAIL
    unclear = any(difference.unclear for difference in differences) or any(gone.values())
    return EXIT_INCONCLUSIVE if unclear else EXIT_PASS


def _is_witness(run: dict[str, Any]) -> bool:
    return bool(run["verdict"] != Verdict.INVALID and run["state"] == RunState.FINISHED)


def baseline_report(db_url: str, run_id: int, days: float) -> BaselineReport:
    """A run against the earlier ones of its name.

    Raises:
        UsageError: the run is missing, or too few others are there to compare with.
    """
    engine = open_engine(db_url, create=False)
    run = get_run(engine, run_id)
    if not _is_witness(run):
        raise UsageError(f"run {run_id} is {run['verdict'] or run['state']}: it says nothing about the endpoint")
    named = [
        other for other in list_runs(engine, 100_000) if (other["name"], other["model"]) == (run["name"], run["model"])
    ]
    recent = [other for other in named if 0 < run["started_at_ns"] - other["started_at_ns"] <= days * DAY_NS]
    alike = [other for other in recent if _load(get_run(engine, other["id"])) == _load(run)]
    chosen, same_hour = choose_history(run, alike, days)
    chosen = chosen[:_MOST_HISTORY]
    if len(chosen) < 3:
        raise UsageError(
            f"run {run_id} has {len(chosen)} finished runs named {run['name']!r} of its model and load "
            f"in the {days:g} days before it; "
            "three are needed for a baseline"
        )
    measured = [_ended(engine, number) for number in (run_id, *chosen)]
    figures = [_figures(of, groups(measured[0])) for of in measured]
    found = deviations(figures[0], figures[1:])
    tags = explain(found, run["metadata"], [get_run(engine, number)["metadata"] for number in chosen])
    return BaselineReport(tuple(chosen), same_hour, tuple(found), tuple(tags))


def _load(run: dict[str, Any]) -> dict[str, Any]:
    """What a run asked for, but for its seed."""
    return {key: value for key, value in run["scenario"]["load"].items() if key != "seed"}


def decision_of(db_url: str, run_id: int, baseline_id: int | None = None) -> Decision:
    """What the decision table says of a stored run, against another one where it is named."""
    engine = open_engine(db_url, create=False)
    run, measured = get_run(engine, run_id), _ended(engine, run_id)
    if run["state"] != RunState.FINISHED:
        return Decision(Action.HOLD, f"the run is {run['state']}: it has let nothing through")
    success = 1.0
    if baseline_id is not None:
        before, held = _ended(engine, baseline_id), get_run(engine, baseline_id)
        if held["state"] != RunState.FINISHED or held["verdict"] == Verdict.INVALID or not before.judged.any():
            raise UsageError(f"run {baseline_id} is no baseline: it is {held['verdict'] or held['state']}")
        success = float(before.ok[before.judged].mean())
    return decide(measured, Verdict(run["verdict"]) if run["verdict"] else None, success)


def breaker_of(db_url: str, run_id: int, p99_bound_ms: float) -> Breaker:
    """A circuit breaker's score over a stored run."""
    engine = open_engine(db_url, create=False)
    agents = get_run(engine, run_id)["environment"].get("gpu_agents") or ()
    sizes = [gpu["memory_bytes"] for agent in agents for gpu in agent["gpus"] if gpu["memory_bytes"]]
    return breaker(_ended(engine, run_id), p99_bound_ms, sum(sizes) / len(sizes) if sizes else None)


def export_run(db_url: str, run_id: int, path: Path) -> None:
    """Write a run by the file's suffix: .jsonl whole, .csv and .parquet its records, .json as vLLM's bench does.

    Raises:
        ConfigError: the suffix is another one, or the file cannot be written.
        UsageError: there is no such run.
    """
    engine = open_engine(db_url, create=False)
    if get_run(engine, run_id)["state"] == RunState.RUNNING:
        raise UsageError(f"run {run_id} has not ended: wait for it, or see 'surgeproof recover'")
    writers = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet, ".json": _write_vllm}
    if path.suffix not in writers:
        raise ConfigError(f"cannot export to {path}: end its name with {', '.join(writers)}")
    try:
        writers[path.suffix](engine, run_id, path)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _write_jsonl(engine: Any, run_id: int, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in export_lines(engine, run_id))


def _write_csv(engine: Any, run_id: int, path: Path) -> None:
    names, rows = record_rows(engine, run_id)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])


def _write_parquet(engine: Any, run_id: int, path: Path) -> None:
    try:
        import pandas as pd
    except ModuleNotFoundError as exc:
        raise ConfigError("Parquet files need: pip install 'surgeproof[ui]'") from exc
    names, rows = record_rows(engine, run_id)
    pd.DataFrame(rows, columns=names).convert_dtypes().to_parquet(path, index=False)


def _write_vllm(engine: Any, run_id: int, path: Path) -> None:
    run, measured = get_run(engine, run_id), measured_run(engine, run_id)
    load = run["scenario"]["load"]
    facts = {
        "date": when(run["started_at_ns"]),
        "model_id": run["model"],
        "request_rate": load["request_rate"],
        "burstiness": load["burstiness"],
        "max_concurrency": load["max_concurrency"],
        **run["metadata"],
    }
    kept = arrivals_of(engine, run_id)
    indexes = measured.columns.integers("plan_index")[measured.judged & measured.ok]
    gaps = None
    if all(kept.get(int(index)) is not None for index in indexes):
        steps = [unpack_arrivals(kept[int(index)]) for index in indexes]
        gaps = [[(b - a) / 1e3 for a, b in pairwise(of)] for of in steps]
    path.write_text(json.dumps(vllm_result(measured, facts, gaps), allow_nan=False))


def _ended(engine: Any, run_id: int) -> Measured:
    if get_run(engine, run_id)["summary"] is None:
        raise UsageError(f"run {run_id} has not ended: wait for it, or see 'surgeproof recover'")
    return measured_run(engine, run_id)


def _figures(measured: Measured, names: Sequence[str]) -> dict[str, dict[str, float]]:
    return {
        name: {metric: figure.value for metric, figure in figures_of(measured, group_mask(measured, name)).items()}
        for name in names
    }
