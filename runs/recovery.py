"""Stores and judges records that killed runs, or workers that lost their master, left in spools."""

from pathlib import Path

import msgspec

from surgeproof.errors import UsageError
from surgeproof.exit_codes import ExitCode
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.spec import PLAN_FILE, SPEC_FILE, RunSpec
from surgeproof.records import RunState
from surgeproof.results import RunResult
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.judge import complete_run
from surgeproof.slo.rules import parse_objectives
from surgeproof.storage.queries import packed_plan, run_by_uid, unfinished_runs
from surgeproof.storage.store import Store, open_engine


def recover_runs(db_url: str) -> list[RunResult]:
    """Store and judge what killed runs left in their spools; runs that are still in progress are left alone.

    Raises:
        StoreError: there is no such database, or it cannot be written.
    """
    open_engine(db_url, create=False).dispose()
    results = []
    for place in unfinished_runs(open_engine(db_url)):
        run_dir = Path(place.spool or "")
        if not place.spool or not (run_dir / SPEC_FILE).exists():
            continue
        spec = msgspec.json.decode((run_dir / SPEC_FILE).read_bytes(), type=RunSpec)
        plan = Plan.load(run_dir / PLAN_FILE)
        try:
            run = RunInProgress(Store(db_url), place.id, spec, plan, parse_objectives(spec.scenario.slo))
        except BlockingIOError:
            continue
        results.append(complete_run(run, RunState.INTERRUPTED, ExitCode.INVALID))
    return results


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
