"""Reads for the command line, the pages and the judge: plain SQL in, plain data out."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from surgeproof.columns import INTEGERS, TEXTS, RecordColumns
from surgeproof.errors import UsageError
from surgeproof.records import Audit, GpuSample, Interval, RuleVerdict, Verdict
from surgeproof.storage import tables
from surgeproof.storage.store import stating

_RUN_JSON = ("scenario", "metadata", "environment", "audit", "summary")
_LIST_COLUMNS = (
    "id", "uid", "name", "state", "started_at_ns", "ended_at_ns", "base_url", "model", "endpoint",
    "verdict", "exit_code", "metadata",
)  # fmt: skip


def list_runs(engine: sa.Engine, limit: int = 1000) -> list[dict[str, Any]]:
    """The newest runs first, without their figures."""
    columns = [tables.runs.c[name] for name in _LIST_COLUMNS]
    query = sa.select(*columns).order_by(tables.runs.c.id.desc()).limit(limit)
    with stating("read", engine), engine.connect() as connection:
        return [_decoded(dict(row)) for row in connection.execute(query).mappings()]


def get_run(engine: sa.Engine, run_id: int) -> dict[str, Any]:
    """One run with summary, audit, plan and verdicts.

    Raises:
        UsageError: there is no such run.
    """
    with stating("read", engine), engine.connect() as connection:
        row = connection.execute(sa.select(tables.runs).where(tables.runs.c.id == run_id)).mappings().first()
        if row is None:
            known = connection.execute(sa.select(sa.func.max(tables.runs.c.id))).scalar()
            hint = f"the newest is {known}" if known else "the database holds none"
            raise UsageError(f"no run {run_id}: {hint}; see 'surgeproof runs list'")
        plan_columns = [c for c in tables.plans.c if c.name in ("digest", "seed", "requests")]
        plan = connection.execute(sa.select(*plan_columns).where(tables.plans.c.run_id == run_id)).mappings().first()
        found = connection.execute(
            sa.select(tables.verdicts).where(tables.verdicts.c.run_id == run_id).order_by(tables.verdicts.c.position)
        ).mappings()
        rules = [{k: v for k, v in rule.items() if k not in ("run_id", "position")} for rule in found]
    run = _decoded({k: v for k, v in row.items() if k != "spool"})
    return run | {"plan": dict(plan) if plan else None, "verdicts": rules}


def stored_verdicts(run: dict[str, Any]) -> tuple[RuleVerdict, ...]:
    """A stored run's verdicts, as the judge made them."""
    return tuple(
        RuleVerdict(
            **{k: v for k, v in row.items() if k not in ("interval_low", "interval_high", "verdict")},
            interval=Interval(row["interval_low"], row["interval_high"]),
            verdict=Verdict(row["verdict"]),
        )
        for row in run["verdicts"]
    )


def stored_audit(run: dict[str, Any]) -> Audit:
    """A stored run's audit."""
    return msgspec.convert(run["audit"] or {}, Audit)


def record_columns(engine: sa.Engine, run_id: int, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a run's records, in order of their planned time."""
    columns = [tables.records.c[name] for name in names]
    query = (
        sa.select(*columns)
        .where(tables.records.c.run_id == run_id)
        .order_by(tables.records.c.intended_at_ns, tables.records.c.plan_index)
    )
    with stating("read", engine), engine.connect() as connection:
        rows = connection.execute(query).all()
    if not rows:
        return {name: [] for name in names}
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def run_columns(engine: sa.Engine, run_id: int) -> RecordColumns:
    """All records of a run as columns."""
    query = sa.select(tables.record_chunks.c.packed).where(tables.record_chunks.c.run_id == run_id)
    with stating("read", engine), engine.connect() as connection:
        packed = connection.execute(query.order_by(tables.record_chunks.c.id)).scalars().all()
    if packed:
        return RecordColumns.joined(RecordColumns.unpacked(chunk) for chunk in packed)
    # Runs of the first schema have rows only.
    return RecordColumns.of(record_columns(engine, run_id, (*INTEGERS, *TEXTS)))


def arrivals_of(engine: sa.Engine, run_id: int) -> dict[int, bytes | None]:
    """Packed arrival times by plan index; None where they were not kept."""
    held = tables.records.c
    query = sa.select(held.plan_index, held.arrivals).where(held.run_id == run_id)
    with stating("read", engine), engine.connect() as connection:
        return {int(row[0]): row[1] for row in connection.execute(query)}


def gpu_samples(engine: sa.Engine, run_id: int) -> list[GpuSample]:
    """Samples of GPUs beside a run, in order of time."""
    held = tables.gpu_samples.c
    query = sa.select(held.gpu, held.at_ns, held.sample).where(held.run_id == run_id).order_by(held.at_ns)
    with stating("read", engine), engine.connect() as connection:
        rows = connection.execute(query).all()
    # Fields of other versions are left aside.
    return [msgspec.convert(json.loads(row[2]) | {"gpu": row[0], "at_ns": row[1]}, GpuSample) for row in rows]


def gpu_calibration(engine: sa.Engine, gpu: str, model: str) -> str | None:
    """JSON of the estimator's numbers for one GPU and model; None where it was not calibrated."""
    held = tables.gpu_calibrations.c
    query = sa.select(held.fit).where((held.gpu == gpu) & (held.model == model))
    with stating("read", engine), engine.connect() as connection:
        found: str | None = connection.execute(query).scalar()
    return found


def first_record(engine: sa.Engine, run_id: int) -> tuple[int, int] | None:
    """Plan index and planned time of the first record; None where there is none."""
    held = tables.records.c
    query = sa.select(held.plan_index, held.intended_at_ns).where(held.run_id == run_id).order_by(held.plan_index)
    with stating("read", engine), engine.connect() as connection:
        row = connection.execute(query.limit(1)).first()
    return None if row is None else (int(row[0]), int(row[1]))


def gap_rows(engine: sa.Engine, run_id: int) -> list[tuple[str, int, bytes]]:
    """Packed histograms of gaps: class, block, histogram."""
    held = tables.gap_histograms.c
    query = sa.select(held.request_class, held.block, held.packed).where(held.run_id == run_id)
    with stating("read", engine), engine.connect() as connection:
        return [(row[0], row[1], row[2]) for row in connection.execute(query.order_by(held.block))]


def health_rows(engine: sa.Engine, run_id: int) -> list[dict[str, Any]]:
    """Health samples of all workers, in order of time."""
    query = sa.select(tables.health).where(tables.health.c.run_id == run_id).order_by(tables.health.c.at_ns)
    with stating("read", engine), engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def packed_plan(engine: sa.Engine, run_id: int) -> bytes | None:
    """The plan as it was made and packed; None where none was kept."""
    query = sa.select(tables.plans.c.packed).where(tables.plans.c.run_id == run_id)
    with stating("read", engine), engine.connect() as connection:
        packed: bytes | None = connection.execute(query).scalar()
    return packed


def run_by_uid(engine: sa.Engine, uid: str) -> dict[str, Any] | None:
    """Number and state of a run by its global name; None where this database does not hold it."""
    query = sa.select(tables.runs.c.id, tables.runs.c.state).where(tables.runs.c.uid == uid)
    with stating("read", engine), engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    return dict(row) if row else None


def unfinished_runs(engine: sa.Engine) -> list[dict[str, Any]]:
    """Runs that still stand as running, with their spool folders."""
    query = sa.select(tables.runs.c.id, tables.runs.c.uid, tables.runs.c.spool).where(tables.runs.c.state == "running")
    with stating("read", engine), engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    for name in _RUN_JSON:
        if isinstance(row.get(name), str):
            row[name] = json.loads(row[name])
    return row
