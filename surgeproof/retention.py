"""Keeps a database small: which runs go by age, which by size."""

import time

from surgeproof.slo.baseline import DAY_NS
from surgeproof.storage.queries import list_runs
from surgeproof.storage.store import Store

KEEP_TAG = "keep"


def prune_runs(store: Store, keep_days: float | None, max_bytes: int | None, *, dry_run: bool = False) -> list[int]:
    """Delete the oldest runs and return their numbers; runs in progress and those tagged `keep` stay.

    Args:
        store: the database.
        keep_days: runs that started earlier go.
        max_bytes: the oldest go until the database is smaller.
        dry_run: delete nothing; by size this says what the runs' own share of the size suggests.
    """
    oldest_first = [
        run
        for run in reversed(list_runs(store.engine, 1_000_000))
        if run["state"] != "running" and KEEP_TAG not in run["metadata"]
    ]
    gone = []
    if keep_days is not None:
        limit_ns = time.time_ns() - round(keep_days * DAY_NS)
        gone = [run["id"] for run in oldest_first if run["started_at_ns"] < limit_ns]
    rest = [run["id"] for run in oldest_first if run["id"] not in gone]
    if not dry_run:
        for run_id in gone:
            store.delete_run(run_id)
    if max_bytes is not None:
        gone += _prune_by_size(store, rest, max_bytes, dry_run=dry_run)
    if gone and not dry_run:
        store.shrink()
    return gone


def _prune_by_size(store: Store, oldest_first: list[int], max_bytes: int, *, dry_run: bool) -> list[int]:
    size = store.size_bytes()
    each = size / max(1, len(oldest_first))
    gone = []
    for run_id in oldest_first:
        if size <= max_bytes:
            break
        gone.append(run_id)
        if dry_run:
            size -= int(each)
        else:
            store.delete_run(run_id)
            size = store.size_bytes()
    return gone
