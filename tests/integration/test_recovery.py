"""Runs that were killed before there was anything to recover."""

from pathlib import Path

from surgeproof.records import RunState, Verdict
from surgeproof.runs.recovery import recover_runs
from surgeproof.storage.queries import get_run
from surgeproof.storage.store import Store
from tests.integration.storage.examples import new_run


def test_a_run_without_plan_or_spool_is_ended_as_invalid(tmp_path: Path) -> None:
    """Its command was killed between the run's row and its plan."""
    url = f"sqlite:///{tmp_path}/t.db"
    store = Store(url)
    run_id = store.create_run(new_run(spool=str(tmp_path / "gone")))
    found = recover_runs(url)
    assert [result.run_id for result in found.results] == [run_id]
    assert "its spool folder" in found.notes[0]
    run = get_run(store.engine, run_id)
    assert (run.state, run.verdict) == (RunState.INTERRUPTED, Verdict.INVALID)
