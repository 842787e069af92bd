"""Keeps a database small: deletes the oldest runs by age, by size, or both."""

import time

from surgeproof.records import NS_PER_DAY, RunState
from surgeproof.storage.queries import list_runs
from surgeproof.storage.store import Store

KEEP_TAG = "keep"


def prune_runs(store: Store, keep_days: float | None, max_bytes: int | None, *, dry_run: bool = False) -> list[int]:
    """Delete the oldest runs and return their numbers; runs in progress and those tagged `keep` stay.

    Args:
        store: the database.
        keep_days: runs that started earlier are deleted.
        max_bytes: the oldest are deleted until the database is smaller.
        dry_run: delete nothing; by size this estimates, taking all runs for equally large.
    """
    oldest_first = [
        run
        for run in reversed(list_runs(store.engine, 1_000_000))
        if run.state is not RunState.RUNNING and KEEP_TAG not in run.metadata
    ]
    deleted = []
    if keep_days is not None:
        limit_ns = time.time_ns() - round(keep_days * NS_PER_DAY)
        deleted = [run.id for run in oldest_first if run.started_at_ns < limit_ns]
    rest = [run.id for run in oldest_first if run.id not in deleted]
    if not dry_run:
        for run_id in deleted:
            store.delete_run(run_id)
    if max_bytes is not None:
        deleted += _prune_by_size(store, rest, max_bytes, dry_run=dry_run)
    if deleted and not dry_run:
        store.shrink()
    return deleted


def _prune_by_size(store: Store, oldest_first: list[int], max_bytes: int, *, dry_run: bool) -> list[int]:
    size = store.size_bytes()
    each = size / max(1, len(oldest_first))
    deleted = []
    for run_id in oldest_first:
        if size <= max_bytes:
            break
        deleted.append(run_id)
        if dry_run:
            size -= int(each)
        else:
            store.delete_run(run_id)
            size = store.size_bytes()
    return deleted
