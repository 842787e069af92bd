"""The one writer of a database: runs, plans, records, verdicts.

SQLite is opened in write-ahead mode, so that pages may read while a run is being written. Records
that are there already are left as they are: storing a spool twice changes nothing.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from surgeproof.columns import RecordColumns
from surgeproof.errors import ConfigError, DatabaseUnusableError, StoreError, UsageError
from surgeproof.outcomes import Outcome
from surgeproof.records import GpuSample, HealthSample, RunState, StreamRecord
from surgeproof.redaction import Redactor, secrets_of_url, shown_url
from surgeproof.results import RuleVerdict
from surgeproof.storage import tables
from surgeproof.storage.database_url import sqlite_path
from surgeproof.storage.schema import ensure_schema
from surgeproof.stored_runs import NewRun, PlanFacts, RunEnd
from surgeproof.strict_json import to_json

LOCK_TIMEOUT_S = 30.0
"""How long to wait for a SQLite file that another process is writing."""
_RECORD_COLUMNS = StreamRecord.__struct_fields__
_KEYS = (*_RECORD_COLUMNS, "run_id")
_INSERT_RECORD = f"INSERT OR IGNORE INTO records ({', '.join(_KEYS)}) VALUES ({', '.join('?' * len(_KEYS))})"  # noqa: S608
_WARNINGS = _RECORD_COLUMNS.index("warnings")


def open_engine(url: str, *, create: bool = True) -> sa.Engine:
    """Open the database and make or check its schema.

    Args:
        url: SQLAlchemy URL.
        create: make a missing file and the schema; off for commands that only read, which change nothing but an older
            schema of ours.

    Raises:
        ConfigError: there is no such database, or the URL cannot be used.
        DatabaseUnusableError: it cannot be opened, is another program's, or was written by a newer version.
    """
    path = sqlite_path(url)
    if path is not None and not create and not path.exists():
        raise ConfigError(f"no database at {path}: run a load test first, or give another database with --db")
    if url.startswith(("postgresql://", "postgres://")):
        # The extra brings psycopg 3; the bare name would ask for another driver.
        url = "postgresql+psycopg://" + url.partition("://")[2]
    try:
        if path is not None:
            # A name is the file's own: SQLAlchemy would take `%41` in it for an `A`, and cut it at a `?`.
            file_url = sa.URL.create(url.partition(":")[0], database=str(path), query=sa.make_url(url).query)
            engine = sa.create_engine(file_url, connect_args={"timeout": LOCK_TIMEOUT_S})
        else:
            # Queries are rare: a pool would keep connections of a shared server busy for nothing.
            engine = sa.create_engine(url, poolclass=sa.NullPool)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError) as exc:
        if url.startswith("postgresql") and isinstance(exc, ModuleNotFoundError):
            raise ConfigError("PostgreSQL needs: pip install 'surgeproof[postgres]'") from exc
        raise ConfigError(
            f"database URL {shown_url(url)!r} cannot be used: write sqlite:///FILE or postgresql://HOST/NAME"
        ) from exc
    if path is not None and create:
        sa.event.listen(engine, "connect", _tune_sqlite)
    try:
        with translated_errors("open", engine):
            ensure_schema(engine, create=create)
    except StoreError as exc:
        if isinstance(exc, DatabaseUnusableError):
            raise
        what = "" if path is None else _what_is_there(path)
        raise DatabaseUnusableError(f"{exc}{what}; give another database with --db, or make this one usable") from exc
    return engine


def _what_is_there(path: Path) -> str:
    """What stands in place of an SQLite file, where that says more than the driver."""
    if path.is_dir():
        return " (it is a folder)"
    return "" if os.access(path, os.R_OK) else " (it cannot be read)"


class Store:
    """Writes one run after the other.

    Args:
        url: SQLAlchemy URL.
    """

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)

    def create_run(self, run: NewRun) -> int:
        """Add a run in state `running` and return its number."""
        return self.insert_run(_row(run))

    def insert_run(self, row: Mapping[str, object]) -> int:
        """Add a run's row as it is, in state `running`, and return its number."""
        with self._writing() as connection:
            result = connection.execute(sa.insert(tables.runs).values(dict(row) | {"state": RunState.RUNNING}))
            key = result.inserted_primary_key
            assert key is not None, "the database numbers runs"
            return int(key[0])

    def save_plan(self, run_id: int, packed: bytes, facts: PlanFacts) -> None:
        """Store a plan's table, packed."""
        values = {"run_id": run_id, "packed": packed} | msgspec.structs.asdict(facts)
        with self._writing() as connection:
            connection.execute(sa.insert(tables.plans).values(values))

    def add_records(
        self,
        run_id: int,
        records: Sequence[StreamRecord],
        health: Mapping[int, Sequence[HealthSample]] | None = None,
        *,
        instead_of_unsent: bool = False,
    ) -> None:
        """Add records, as rows for people and as columns for statistics: all or none; those stored already stay.

        Args:
            run_id: their run.
            records: the records.
            health: samples by worker.
            instead_of_unsent: these requests were recorded as not sent while their worker was unreachable.
        """
        with self._writing() as connection:
            if instead_of_unsent:
                _delete_unsent(connection, run_id, [record.plan_index for record in records])
            if records:
                self._insert_records(connection, run_id, records)
            rows = [
                {"run_id": run_id, "worker": worker} | {name: getattr(sample, name) for name in _HEALTH_COLUMNS}
                for worker, samples in (health or {}).items()
                for sample in samples
            ]
            if rows:
                connection.execute(self._dialect.insert(tables.health).on_conflict_do_nothing(), rows)

    def _insert_records(self, connection: sa.Connection, run_id: int, records: Sequence[StreamRecord]) -> None:
        if self.engine.dialect.name == "sqlite":
            # SQLAlchemy would walk every value of every row; the driver takes them as they are.
            connection.exec_driver_sql(_INSERT_RECORD, [_values(run_id, record) for record in records])
        else:
            rows = [dict(zip(_KEYS, _values(run_id, record), strict=True)) for record in records]
            connection.execute(postgresql.insert(tables.records).on_conflict_do_nothing(), rows)
        packed = RecordColumns.of_records(records).packed()
        connection.execute(sa.insert(tables.record_chunks).values(run_id=run_id, packed=packed))

    def add_gpu_samples(self, run_id: int, samples: Sequence[GpuSample]) -> None:
        """Add samples of GPUs; those already stored stay."""
        if not samples:
            return
        rows = [
            {"run_id": run_id, "gpu": sample.gpu, "at_ns": sample.at_ns, "sample": _known_fields(sample)}
            for sample in samples
        ]
        with self._writing() as connection:
            connection.execute(self._dialect.insert(tables.gpu_samples).on_conflict_do_nothing(), rows)

    def save_counter_fit(self, gpu: str, model: str, fit_json: str) -> None:
        """Store the estimator's numbers for one GPU and model, in place of earlier ones."""
        table = tables.gpu_calibrations
        with self._writing() as connection:
            connection.execute(sa.delete(table).where((table.c.gpu == gpu) & (table.c.model == model)))
            connection.execute(sa.insert(table).values(gpu=gpu, model=model, fit=fit_json))

    def save_gaps(self, run_id: int, histograms: Iterable[tuple[str, int, bytes]]) -> None:
        """Store packed histograms of gaps by class and block, in place of earlier ones."""
        rows = [
            {"run_id": run_id, "request_class": name, "block": block, "packed": packed}
            for name, block, packed in histograms
        ]
        with self._writing() as connection:
            connection.execute(sa.delete(tables.gap_histograms).where(tables.gap_histograms.c.run_id == run_id))
            if rows:
                connection.execute(sa.insert(tables.gap_histograms), rows)

    def finish_run(self, run_id: int, end: RunEnd, verdicts: Sequence[RuleVerdict]) -> None:
        """Set the run's end and its verdicts, in one transaction; its spool is no longer needed."""
        rows = [_verdict_row(run_id, position, verdict) for position, verdict in enumerate(verdicts)]
        with self._writing() as connection:
            connection.execute(sa.delete(tables.verdicts).where(tables.verdicts.c.run_id == run_id))
            if rows:
                connection.execute(sa.insert(tables.verdicts), rows)
            update = sa.update(tables.runs).where(tables.runs.c.id == run_id)
            connection.execute(update.values(_row(end) | {"spool": None}))

    def set_state(self, run_id: int, state: str) -> None:
        """Set the state of an imported run."""
        with self._writing() as connection:
            connection.execute(sa.update(tables.runs).where(tables.runs.c.id == run_id).values(state=state))

    def insert_rows(self, table: sa.Table, rows: Sequence[dict[str, object]]) -> None:
        """Add rows of any table as they are; a column that a row lacks is empty."""
        if rows:
            names = {name for row in rows for name in row}
            with self._writing() as connection:
                connection.execute(sa.insert(table), [dict.fromkeys(names) | row for row in rows])

    def tag_run(self, run_id: int, tags: dict[str, str | None]) -> dict[str, str]:
        """Set a run's tags, or remove those whose value is None; returns all of them.

        Raises:
            UsageError: there is no such run.
        """
        column = tables.runs.c
        with self._writing() as connection:
            stored = connection.execute(sa.select(column.metadata).where(column.id == run_id)).scalar()
            if stored is None:
                raise UsageError(f"no run {run_id}; see 'surgeproof runs list'")
            merged = json.loads(stored) | tags
            kept = {key: value for key, value in merged.items() if value is not None}
            connection.execute(sa.update(tables.runs).where(column.id == run_id).values(metadata=to_json(kept)))
        return kept

    def delete_run(self, run_id: int) -> bool:
        """Remove a run with all that belongs to it; False when there is none."""
        with self._writing() as connection:
            gone = connection.execute(sa.delete(tables.runs).where(tables.runs.c.id == run_id)).rowcount
        return bool(gone)

    def shrink(self) -> None:
        """Give the space of deleted runs back to the file system (SQLite; PostgreSQL does so by itself)."""
        if self.engine.dialect.name == "sqlite":
            with translated_errors("shrink", self.engine), self.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM")

    def size_bytes(self) -> int:
        """Size of the database, without the space that deleted runs left."""
        with translated_errors("read", self.engine), self.engine.connect() as connection:
            if self.engine.dialect.name == "sqlite":
                pages, free, size = (
                    connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0
                    for name in ("page_count", "freelist_count", "page_size")
                )
                return int((pages - free) * size)
            result = connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar()
            return int(result or 0)

    def stored_indexes(self, run_id: int) -> set[int]:
        """Plan indexes that have a record."""
        query = sa.select(tables.records.c.plan_index).where(tables.records.c.run_id == run_id)
        with translated_errors("read", self.engine), self.engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def close(self) -> None:
        """Close the database."""
        self.engine.dispose()

    @property
    def _dialect(self) -> Any:
        return postgresql if self.engine.dialect.name == "postgresql" else sqlite

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with translated_errors("write", self.engine), self.engine.begin() as connection:
            yield connection


@contextmanager
def translated_errors(action: str, engine: sa.Engine) -> Iterator[None]:
    """Turn a database error into one sentence with the database and the reason.

    Raises:
        StoreError: in place of any error of SQLAlchemy or the driver.
    """
    try:
        yield
    except SQLAlchemyError as exc:
        cause = exc.orig if isinstance(exc, DBAPIError) else exc
        url = engine.url.render_as_string(hide_password=False)
        reason = Redactor(secrets_of_url(url))(" ".join(str(cause).split()))
        raise StoreError(f"cannot {action} database {shown_url(url)}: {reason}") from exc


def _delete_unsent(connection: sa.Connection, run_id: int, indexes: Sequence[int]) -> None:
    record = tables.records.c
    for start in range(0, len(indexes), 500):
        some = record.plan_index.in_(indexes[start : start + 500])
        unsent = (record.run_id == run_id) & (record.outcome == Outcome.NOT_SENT)
        connection.execute(sa.delete(tables.records).where(unsent & some))


_HEALTH_COLUMNS = [c.name for c in tables.health.columns if c.name not in ("run_id", "worker")]


def _known_fields(sample: GpuSample) -> str:
    """JSON of the fields that a GPU reports; those of the key are columns of their own."""
    fields = msgspec.to_builtins(sample)
    return json.dumps({k: v for k, v in fields.items() if v is not None and k not in ("gpu", "at_ns")})


def _values(run_id: int, record: StreamRecord) -> tuple[Any, ...]:
    """One row, in order of `_KEYS`."""
    values = msgspec.structs.astuple(record)
    warnings = ",".join(record.warnings) if record.warnings else None
    # Joined, not unpacked into one: this runs for every record.
    return values[:_WARNINGS] + (warnings,) + values[_WARNINGS + 1 :] + (run_id,)  # noqa: RUF005


def _row(struct: NewRun | RunEnd) -> dict[str, object]:
    """A struct's fields as columns of `runs`."""
    fields = msgspec.structs.asdict(struct)
    return {name: to_json(value) if name in tables.RUN_JSON else value for name, value in fields.items()}


def _verdict_row(run_id: int, position: int, verdict: RuleVerdict) -> dict[str, object]:
    return {
        "run_id": run_id,
        "position": position,
        "request_class": verdict.request_class,
        "rule": verdict.rule,
        "metric": verdict.metric,
        "unit": verdict.unit,
        "observed": verdict.observed,
        "bound": verdict.bound,
        "n": verdict.n,
        "attainment": verdict.attainment,
        "interval_low": verdict.interval.low,
        "interval_high": verdict.interval.high,
        "verdict": str(verdict.verdict),
        "reason": verdict.reason,
    }


def _tune_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    for attempt in range(3):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            # A read-only file keeps its mode; a file in use by another starter is tried again.
            time.sleep(0.05 * attempt)
    connection.execute("PRAGMA synchronous=NORMAL")
    # 32 MB of log before it is moved into the file: the default of 4 MB moves most pages several times.
    connection.execute("PRAGMA wal_autocheckpoint=8000")
    connection.execute("PRAGMA foreign_keys=ON")
