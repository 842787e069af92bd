"""Reads what `store` wrote, as the objects of `results` and `records`. Changes nothing."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from surgeproof.columns import RecordColumns
from surgeproof.errors import StoreError, UsageError
from surgeproof.records import GpuSample, HealthSample, Phase, RunState, Verdict
from surgeproof.results import Interval, RuleVerdict
from surgeproof.storage import tables
from surgeproof.storage.store import translated_errors
from surgeproof.stored_runs import PlanFacts, Run, RunHead

_T = TypeVar("_T", bound=RunHead)
_HEAD_COLUMNS = tuple(column for column in tables.runs.columns if column.name in RunHead.__struct_fields__)
_HEALTH_COLUMNS = tuple(tables.health.c[name] for name in HealthSample.__struct_fields__)


def list_runs(engine: sa.Engine, limit: int = 1000) -> list[RunHead]:
    """The newest runs first, without their figures."""
    query = sa.select(*_HEAD_COLUMNS).order_by(tables.runs.c.id.desc()).limit(limit)
    with translated_errors("read", engine), engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    return [_converted(row, RunHead) for row in rows]


def get_run(engine: sa.Engine, run_id: int) -> Run:
    """One run with summary, audit, plan and verdicts.

    Raises:
        UsageError: there is no such run.
        StoreError: its row cannot be read by this version.
    """
    with translated_errors("read", engine), engine.connect() as connection:
        row = connection.execute(sa.select(tables.runs).where(tables.runs.c.id == run_id)).mappings().first()
        if row is None:
            newest = connection.execute(sa.select(sa.func.max(tables.runs.c.id))).scalar()
            hint = f"the newest is {newest}" if newest else "the database has no runs"
            raise UsageError(f"no run {run_id}: {hint}; see 'surgeproof runs list'")
        plan_columns = [tables.plans.c[name] for name in PlanFacts.__struct_fields__]
        plan = connection.execute(sa.select(*plan_columns).where(tables.plans.c.run_id == run_id)).first()
        verdicts = connection.execute(
            sa.select(tables.verdicts).where(tables.verdicts.c.run_id == run_id).order_by(tables.verdicts.c.position)
        ).mappings()
        rules = tuple(_verdict(rule) for rule in verdicts)
    run = _converted({name: value for name, value in row.items() if name != "spool"}, Run)
    return msgspec.structs.replace(run, plan=PlanFacts(*plan) if plan else None, verdicts=rules)


def _converted(row: Any, kind: type[_T]) -> _T:
    """A row of `runs` as a struct.

    Raises:
        StoreError: a value is not what this version stores.
    """
    fields = {str(name): value for name, value in row.items()}
    try:
        for name in tables.RUN_JSON:
            if isinstance(fields.get(name), str):
                fields[name] = json.loads(fields[name])
        return msgspec.convert({name: value for name, value in fields.items() if value is not None}, kind, strict=False)
    except (ValueError, RecursionError) as exc:
        raise StoreError(f"run {fields.get('id')} is stored in a form that this version cannot read: {exc}") from exc


def _verdict(row: Any) -> RuleVerdict:
    own = ("run_id", "position", "interval_low", "interval_high", "verdict")
    return RuleVerdict(
        **{name: value for name, value in row.items() if name not in own},
        interval=Interval(row["interval_low"], row["interval_high"]),
        verdict=Verdict(row["verdict"]),
    )


def record_columns(engine: sa.Engine, run_id: int, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a run's records, in order of their planned time."""
    columns = [tables.records.c[name] for name in names]
    query = (
        sa.select(*columns)
        .where(tables.records.c.run_id == run_id)
        .order_by(tables.records.c.intended_at_ns, tables.records.c.plan_index)
    )
    with translated_errors("read", engine), engine.connect() as connection:
        rows = connection.execute(query).all()
    if not rows:
        return {name: [] for name in names}
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def run_columns(engine: sa.Engine, run_id: int) -> RecordColumns:
    """All records of a run as columns."""
    query = sa.select(tables.record_chunks.c.packed).where(tables.record_chunks.c.run_id == run_id)
    with translated_errors("read", engine), engine.connect() as connection:
        packed = connection.execute(query.order_by(tables.record_chunks.c.id)).scalars().all()
    return RecordColumns.joined(RecordColumns.unpacked(chunk) for chunk in packed)


def arrivals_of(engine: sa.Engine, run_id: int) -> dict[int, bytes | None]:
    """Packed arrival times by plan index; None where they were not stored."""
    record = tables.records.c
    query = sa.select(record.plan_index, record.arrivals).where(record.run_id == run_id)
    with translated_errors("read", engine), engine.connect() as connection:
        return {int(row[0]): row[1] for row in connection.execute(query)}


def gpu_samples(engine: sa.Engine, run_id: int) -> list[GpuSample]:
    """Samples of GPUs beside a run, in order of time."""
    column = tables.gpu_samples.c
    query = sa.select(column.gpu, column.at_ns, column.sample).where(column.run_id == run_id).order_by(column.at_ns)
    with translated_errors("read", engine), engine.connect() as connection:
        rows = connection.execute(query).all()
    # Fields of other versions are ignored.
    return [msgspec.convert(json.loads(row[2]) | {"gpu": row[0], "at_ns": row[1]}, GpuSample) for row in rows]


def counter_fit(engine: sa.Engine, gpu: str, model: str) -> str | None:
    """JSON of the estimator's numbers for one GPU and model; None where it was not fitted to counters."""
    column = tables.gpu_calibrations.c
    query = sa.select(column.fit).where((column.gpu == gpu) & (column.model == model))
    with translated_errors("read", engine), engine.connect() as connection:
        fit: str | None = connection.execute(query).scalar()
    return fit


def first_record(engine: sa.Engine, run_id: int) -> tuple[int, int] | None:
    """Plan index and planned time of the first record; None where there is none."""
    record = tables.records.c
    query = sa.select(record.plan_index, record.intended_at_ns).where(record.run_id == run_id)
    with translated_errors("read", engine), engine.connect() as connection:
        row = connection.execute(query.order_by(record.plan_index).limit(1)).first()
    return None if row is None else (int(row[0]), int(row[1]))


def failure_counts(engine: sa.Engine, run_id: int, limit: int = 20_000) -> list[tuple[str, str, str | None, int]]:
    """Class, outcome and sentence of the main phase's failed requests with their number, the commonest first."""
    record = tables.records.c
    columns = (record.request_class, record.outcome, record.error)
    query = (
        sa.select(*columns, sa.func.count())
        .where((record.run_id == run_id) & (record.phase == Phase.MAIN) & record.outcome.startswith("error"))
        .group_by(*columns)
        .order_by(sa.func.count().desc())
        .limit(limit)
    )
    with translated_errors("read", engine), engine.connect() as connection:
        return [(row[0], row[1], row[2], int(row[3])) for row in connection.execute(query)]


def gap_rows(engine: sa.Engine, run_id: int) -> list[tuple[str, int, bytes]]:
    """Packed histograms of gaps: class, block, histogram."""
    column = tables.gap_histograms.c
    query = sa.select(column.request_class, column.block, column.packed).where(column.run_id == run_id)
    with translated_errors("read", engine), engine.connect() as connection:
        return [(row[0], row[1], row[2]) for row in connection.execute(query.order_by(column.block))]


def health_samples(engine: sa.Engine, run_id: int) -> dict[int, list[HealthSample]]:
    """Health samples by worker, in order of time."""
    query = sa.select(tables.health.c.worker, *_HEALTH_COLUMNS).where(tables.health.c.run_id == run_id)
    by_worker: dict[int, list[HealthSample]] = {}
    with translated_errors("read", engine), engine.connect() as connection:
        for worker, *values in connection.execute(query.order_by(tables.health.c.at_ns)):
            by_worker.setdefault(worker, []).append(HealthSample(*values))
    return by_worker


def packed_plan(engine: sa.Engine, run_id: int) -> bytes | None:
    """The plan as it was made and packed; None where none was stored."""
    query = sa.select(tables.plans.c.packed).where(tables.plans.c.run_id == run_id)
    with translated_errors("read", engine), engine.connect() as connection:
        packed: bytes | None = connection.execute(query).scalar()
    return packed


class RunPlace(NamedTuple):
    """Where a run is stored: its number, name and state, and the folder of its spools while it runs."""

    id: int
    uid: str
    state: RunState
    spool: str | None


def run_by_uid(engine: sa.Engine, uid: str) -> RunPlace | None:
    """A run by its global name; None where this database does not hold it."""
    result = _places(engine, tables.runs.c.uid == uid)
    return result[0] if result else None


def unfinished_runs(engine: sa.Engine) -> list[RunPlace]:
    """Runs whose state is still `running`, with their spool folders."""
    return _places(engine, tables.runs.c.state == RunState.RUNNING)


def _places(engine: sa.Engine, condition: sa.ColumnElement[bool]) -> list[RunPlace]:
    run = tables.runs.c
    query = sa.select(run.id, run.uid, run.state, run.spool).where(condition)
    with translated_errors("read", engine), engine.connect() as connection:
        return [RunPlace(row[0], row[1], RunState(row[2]), row[3]) for row in connection.execute(query)]
