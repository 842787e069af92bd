"""Stores and judges what killed runs, or workers that lost their master, left in their spools."""

from pathlib import Path

import msgspec

from surgeproof.errors import EXIT_INVALID, UsageError
from surgeproof.loadgen.engine import PLAN_FILE, SPEC_FILE, RunSpec
from surgeproof.loadgen.plan import Plan
from surgeproof.records import RunState
from surgeproof.run import RunInProgress, RunResult
from surgeproof.slo.rules import parse_rules
from surgeproof.storage.queries import packed_plan, run_by_uid, unfinished_runs
from surgeproof.storage.store import Store, open_engine


def recover_runs(db_url: str) -> list[RunResult]:
    """Store and judge what killed runs left in their spools; runs that are still alive are let be.

    Raises:
        StoreError: there is no such database, or it cannot be written.
    """
    open_engine(db_url, create=False).dispose()
    found = unfinished_runs(open_engine(db_url))
    results = []
    for row in found:
        run_dir = Path(row["spool"] or "")
        if not row["spool"] or not (run_dir / SPEC_FILE).exists():
            continue
        spec = msgspec.json.decode((run_dir / SPEC_FILE).read_bytes(), type=RunSpec)
        plan = Plan.load(run_dir / PLAN_FILE)
        try:
            run = RunInProgress(Store(db_url), row["id"], spec, plan, parse_rules(spec.scenario.slo))
        except BlockingIOError:
            continue
        results.append(run.complete(RunState.INTERRUPTED, EXIT_INVALID))
    return results


def recover_spool(db_url: str, folder: Path) -> RunResult:
    """Add what a worker on another host kept because its master did not acknowledge it.

    Args:
        db_url: the database that holds the run.
        folder: a copy of the worker's spool folder; it is left as it is.

    Raises:
        UsageError: the folder holds no spool, or the database not its run.
        StoreError: the database cannot be written.
    """
    if not (folder / SPEC_FILE).exists():
        raise UsageError(f"{folder} is no worker's spool: it holds no {SPEC_FILE}")
    spec = msgspec.json.decode((folder / SPEC_FILE).read_bytes(), type=RunSpec)
    row = run_by_uid(open_engine(db_url, create=False), spec.uid)
    if row is None:
        raise UsageError(f"the spool in {folder} belongs to run {spec.uid}, which this database does not hold")
    spec = msgspec.structs.replace(spec, run_dir=str(folder))
    store = Store(db_url)
    packed = packed_plan(store.engine, row["id"])
    assert packed is not None, "a plan is stored with its run"
    plan = Plan.unpack(packed)
    run = RunInProgress(store, row["id"], spec, plan, parse_rules(spec.scenario.slo), ours=False)
    if row["state"] == RunState.FINISHED:
        return run.complete(RunState.FINISHED)
    return run.complete(RunState.INTERRUPTED, EXIT_INVALID)
