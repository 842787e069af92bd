"""The gate: judges a stored run again; the exit code allows or blocks a release."""

from collections.abc import Mapping, Sequence

from surgeproof.results import RunResult


def gate(db_url: str, run_ids: Sequence[int], slo: Mapping[str, tuple[str, ...]] | None) -> RunResult:
    """Judge a stored run, or several repetitions together, by their own objectives, or by others.

    Raises:
        UsageError: there is no such run, it has not ended, or there is nothing to judge it by.
        StoreError: there is no such database.
    """
    # Imported here: reports alone must not load the database.
    from surgeproof.runs.judge import judge_stored

    return judge_stored(db_url, run_ids, slo)
