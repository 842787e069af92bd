"""Exports runs from a database and imports them: a whole run as JSON lines, or its records as a table.

    {"surgeproof": 1, "run": {..}}            first line: the run's row
    {"plan": {..}} {"health": {..}} {"verdict": {..}} {"gaps": {..}} {"gpu": {..}} {"record": {..}}
    {"end": {"lines": n}}                     last line: how many there are in between

Bytes travel as base64. An imported run keeps its uid, so that it cannot be imported twice.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from surgeproof.errors import UsageError
from surgeproof.records import RunState, StreamRecord
from surgeproof.storage import tables
from surgeproof.storage.queries import run_by_uid
from surgeproof.storage.store import Store, translated_errors
from surgeproof.strict_json import JsonObject

VERSION = 1
_BATCH = 1000
_PARTS = {
    "plan": tables.plans,
    "health": tables.health,
    "verdict": tables.verdicts,
    "gaps": tables.gap_histograms,
    "gpu": tables.gpu_samples,
    "record": tables.records,
}


def export_lines(engine: sa.Engine, run_id: int) -> Iterator[str]:
    """A run as JSON lines.

    Raises:
        UsageError: there is no such run.
    """
    with translated_errors("read", engine), engine.connect() as connection:
        row = connection.execute(sa.select(tables.runs).where(tables.runs.c.id == run_id)).mappings().first()
        if row is None:
            raise UsageError(f"no run {run_id}; see 'surgeproof runs list'")
        yield json.dumps({"surgeproof": VERSION, "run": {k: v for k, v in row.items() if k not in ("id", "spool")}})
        count = 0
        for name, table in _PARTS.items():
            query = sa.select(table).where(table.c.run_id == run_id).order_by(*table.primary_key.columns)
            for row_values in connection.execution_options(yield_per=_BATCH).execute(query).mappings():
                count += 1
                yield json.dumps(
                    {name: {k: _plain(v) for k, v in row_values.items() if k != "run_id" and v is not None}}
                )
        yield json.dumps({"end": {"lines": count}})


def import_lines(store: Store, lines: Iterable[str]) -> int:
    """Import a run and return its new number; all of it or nothing.

    Raises:
        UsageError: the lines are not an exported run, or the run is already in the database.
        StoreError: the database cannot be written.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    head = _object(next(numbered, (1, ""))[1], 1)
    if head.get("surgeproof") != VERSION or not isinstance(head.get("run"), dict):
        raise UsageError("this is not an exported run: its first line lacks 'surgeproof' and 'run'")
    run = head["run"]
    unknown = sorted(run.keys() - {column.name for column in tables.runs.columns} | run.keys() & {"id", "spool"})
    missing = [name for name in ("uid", "name", "started_at_ns", "scenario", "metadata") if run.get(name) is None]
    if unknown or missing:
        raise UsageError(f"the exported run has unknown or missing fields: {', '.join(unknown + missing)}")
    _check_json(run)
    if run_by_uid(store.engine, str(run["uid"])) is not None:
        raise UsageError(f"the database already contains run {run['uid']}")
    run_id = store.insert_run(run)
    try:
        _import_parts(store, run_id, numbered)
        store.set_state(run_id, str(run.get("state", RunState.FINISHED)))
    except (OverflowError, TypeError, ValueError) as exc:
        store.delete_run(run_id)
        raise UsageError(f"the export contains a value that cannot be stored: {exc}") from exc
    except BaseException:
        store.delete_run(run_id)
        raise
    return run_id


def _import_parts(store: Store, run_id: int, numbered: Iterator[tuple[int, str]]) -> None:
    rows: dict[str, list[JsonObject]] = {name: [] for name in _PARTS}
    records: list[StreamRecord] = []
    count, end = 0, None
    for number, line in numbered:
        part = _object(line, number)
        name = next(iter(part), "")
        if end is not None:
            raise UsageError(f"line {number}: there are lines after the end of the export")
        if name == "end":
            end = part["end"]
            continue
        count += 1
        if name not in _PARTS:
            raise UsageError(f"line {number}: {name!r} is not a part of a run")
        if not isinstance(part[name], dict):
            raise UsageError(f"line {number}: a {name} is not an object")
        values = {k: _binary(_PARTS[name], k, v) for k, v in part[name].items()}
        if name != "record":
            rows[name].append(values)
            continue
        if isinstance(values.get("warnings"), str):
            values["warnings"] = tuple(values["warnings"].split(","))
        try:
            records.append(msgspec.convert(values, StreamRecord, builtin_types=(bytes,)))
        except msgspec.ValidationError as exc:
            raise UsageError(f"line {number}: {exc}") from exc
        if len(records) >= _BATCH:
            store.add_records(run_id, records)
            records = []
    if not isinstance(end, dict) or end.get("lines") != count:
        raise UsageError(f"the export is incomplete: it has {count} lines, which its last line does not confirm")
    store.add_records(run_id, records)
    for name, part_rows in rows.items():
        store.insert_rows(_PARTS[name], [row | {"run_id": run_id} for row in part_rows])


def _check_json(run: JsonObject) -> None:
    """Texts that are read as JSON must be JSON, and times whole numbers."""
    if not isinstance(run["started_at_ns"], int) or abs(run["started_at_ns"]) >= 2**63:
        raise UsageError("the exported run's started_at_ns is not a time")
    for name in tables.RUN_JSON:
        try:
            json.loads(run.get(name) or "{}")
        except (TypeError, ValueError) as exc:
            raise UsageError(f"the exported run's {name} is not JSON") from exc


def record_rows(engine: sa.Engine, run_id: int) -> tuple[list[str], list[list[Any]]]:
    """A run's records as a table: names of columns, and rows; single arrival times left out."""
    columns = [column for column in tables.records.columns if column.name not in ("run_id", "arrivals")]
    query = sa.select(*columns).where(tables.records.c.run_id == run_id).order_by(tables.records.c.plan_index)
    with translated_errors("read", engine), engine.connect() as connection:
        return [column.name for column in columns], [list(row) for row in connection.execute(query)]


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _binary(table: sa.Table, name: str, value: Any) -> Any:
    column = table.columns.get(name)
    if column is not None and isinstance(column.type, sa.LargeBinary) and isinstance(value, str):
        return base64.b64decode(value)
    return value


def _object(line: str, number: int) -> JsonObject:
    try:
        result = json.loads(line)
    except ValueError as exc:
        raise UsageError(f"line {number} of the export is not JSON ({exc})") from exc
    if not isinstance(result, dict):
        raise UsageError(f"line {number} of the export is not an object")
    return result
