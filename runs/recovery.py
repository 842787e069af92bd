"""Stores and judges records that killed runs, or workers that lost their master, left in spools."""

import platform
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from surgeproof.clock import measure_anchor_ns
from surgeproof.errors import UsageError
from surgeproof.exit_codes import ExitCode
from surgeproof.loadgen.plan import PLAN_DTYPE, Plan
from surgeproof.loadgen.spec import PLAN_FILE, SPEC_FILE, RunSpec
from surgeproof.loadgen.spool import SUFFIX, is_being_written
from surgeproof.records import RunState
from surgeproof.results import RunResult
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.judge import complete_run
from surgeproof.runs.locust_process import SPOOLS_SUFFIX, spool_root
from surgeproof.slo.rules import parse_objectives
from surgeproof.storage.database_url import sqlite_path
from surgeproof.storage.queries import RunPlace, get_run, packed_plan, run_by_uid, unfinished_runs
from surgeproof.storage.store import Store, open_engine

_WORKER_GRACE_S = 5.0


class Recovery(NamedTuple):
    """What became of the runs that had not ended.

    Attributes:
        results: of those that were stored and judged.
        notes: why others were left alone, and what is odd about those that were not.
    """

    results: list[RunResult]
    notes: list[str]


def recover_runs(db_url: str) -> Recovery:
    """Store and judge what killed runs left in their spools; runs that are still in progress are left alone.

    Raises:
        StoreError: there is no such database, or it cannot be written.
    """
    open_engine(db_url, create=False).dispose()
    found = Recovery([], [])
    for place in unfinished_runs(open_engine(db_url)):
        run_dir = spool_folder(place, db_url)
        if run_dir is None and (host := _other_host(place, db_url)):
            found.notes.append(f"run {place.id} ran on {host}: recover it there, where its spools are")
            continue
        if run_dir is None:
            found.notes.append(
                f"run {place.id}: its spool folder {place.spool} is gone; what the database holds of it is kept"
            )
        elif _load_goes_on(run_dir):
            found.notes.append(f"run {place.id}: its load is still running; stop it, then recover")
            continue
        try:
            run = _opened(db_url, place, run_dir)
        except BlockingIOError:
            found.notes.append(f"run {place.id} is in progress")
            continue
        found.results.append(complete_run(run, RunState.INTERRUPTED, ExitCode.INVALID))
    return found


def spool_folder(place: RunPlace, db_url: str) -> Path | None:
    """Where an unfinished run's spools are: where it put them, or beside a database that was moved since."""
    candidates = [Path(place.spool)] if place.spool else []
    if (file := sqlite_path(db_url)) is not None:
        candidates.append(spool_root(file) / place.uid)
        # The database was renamed, its spools were not.
        candidates += file.parent.glob(f"*{SPOOLS_SUFFIX}/{place.uid}")
    return next((path.absolute() for path in candidates if (path / SPEC_FILE).exists()), None)


def is_over(place: RunPlace, db_url: str) -> bool:
    """Whether nothing is left of an unfinished run but its rows: no spools, no process that works on it."""
    return spool_folder(place, db_url) is None and _other_host(place, db_url) is None


def _other_host(place: RunPlace, db_url: str) -> str | None:
    """The host that a run of a shared database ran on, if it is another one: it may be running there."""
    if sqlite_path(db_url) is not None:
        return None
    host = get_run(open_engine(db_url, create=False), place.id).environment.host.name
    return host if host not in ("", platform.node()) else None


def _load_goes_on(run_dir: Path) -> bool:
    """Whether a worker still writes; one whose master was just killed has a moment to end."""
    deadline_s = time.monotonic() + _WORKER_GRACE_S
    while any(is_being_written(path) for path in run_dir.glob(f"*{SUFFIX}")):
        if time.monotonic() > deadline_s:
            return True
        time.sleep(0.1)
    return False


def _opened(db_url: str, place: RunPlace, run_dir: Path | None) -> RunInProgress:
    store = Store(db_url)
    if run_dir is None:
        stored, run_dir = get_run(store.engine, place.id), Path(tempfile.mkdtemp(prefix="surgeproof-recover-"))
        spec = RunSpec(place.uid, stored.scenario, stored.base_url, stored.model, measure_anchor_ns(), str(run_dir))
        packed = packed_plan(store.engine, place.id)
        # A command may have been killed before it stored the plan: nothing was sent then.
        plan = Plan.unpack(packed) if packed is not None else Plan(np.zeros(0, dtype=PLAN_DTYPE))
    else:
        spec = msgspec.json.decode((run_dir / SPEC_FILE).read_bytes(), type=RunSpec)
        spec = msgspec.structs.replace(spec, run_dir=str(run_dir))
        plan = Plan.load(run_dir / PLAN_FILE)
    return RunInProgress(store, place.id, spec, plan, parse_objectives(spec.scenario.slo))


def recover_spool(db_url: str, folder: Path) -> RunResult:
    """Add the batches of a worker on another host that its master did not acknowledge.

    Args:
        db_url: the database that holds the run.
        folder: a copy of the worker's spool folder; it is left as it is.

    Raises:
        UsageError: the folder has no spool, or its run is not in the database.
        StoreError: the database cannot be written.
    """
    if not (folder / SPEC_FILE).exists():
        raise UsageError(f"{folder} is not a worker's spool folder: it has no {SPEC_FILE}")
    spec = msgspec.json.decode((folder / SPEC_FILE).read_bytes(), type=RunSpec)
    place = run_by_uid(open_engine(db_url, create=False), spec.uid)
    if place is None:
        raise UsageError(f"the spool in {folder} belongs to run {spec.uid}, which is not in this database")
    spec = msgspec.structs.replace(spec, run_dir=str(folder))
    store = Store(db_url)
    packed = packed_plan(store.engine, place.id)
    assert packed is not None, "a plan is stored with its run"
    plan = Plan.unpack(packed)
    run = RunInProgress(store, place.id, spec, plan, parse_objectives(spec.scenario.slo), recovered=True)
    if place.state is RunState.FINISHED:
        return complete_run(run, RunState.FINISHED)
    return complete_run(run, RunState.INTERRUPTED, ExitCode.INVALID)
