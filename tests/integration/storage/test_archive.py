"""Runs tagged, thrown away, taken out and in again."""

import csv
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from surgeproof.errors import UsageError
from surgeproof.loadgen.plan import PLAN_DTYPE, Plan
from surgeproof.records import HealthSample, Verdict
from surgeproof.results import Interval, RuleVerdict
from surgeproof.storage.archive import export_lines, import_lines, record_rows
from surgeproof.storage.exports import write_csv
from surgeproof.storage.queries import gap_rows, get_run, health_samples, list_runs, packed_plan, run_columns
from surgeproof.storage.retention import prune_runs
from surgeproof.storage.store import Store
from surgeproof.stored_runs import PlanFacts
from tests.integration.storage.examples import new_run, record, run_end

VERDICT = RuleVerdict(
    request_class="P0", rule="ttft p99 < 1s", metric="ttft", unit="ms", observed=5.5, bound=1000.0, n=7,
    interval=Interval(1.0, None), verdict=Verdict.PASS, reason="shown", attainment=1.0,
)  # fmt: skip


def filled(url: str, uid: str = "abc", started_at_ns: int = 1_800_000_000_000_000_000, records: int = 30) -> Store:
    store = Store(url)
    run_id = store.create_run(new_run(uid=uid, started_at_ns=started_at_ns))
    plan = Plan(np.zeros(3, dtype=PLAN_DTYPE))
    store.save_plan(run_id, plan.pack(), PlanFacts("d", 7, len(plan), 0.25))
    store.add_records(run_id, [record(i, warnings=("a",) if i % 2 else ()) for i in range(records)])
    store.add_records(run_id, [], {0: [HealthSample(5, 0.5, 1, 2, 3, 4, 5)]})
    store.save_gaps(run_id, [("P0", 0, b"\x01\x02")])
    rate = msgspec.structs.replace(VERDICT, rule="requests_per_s > 1", metric="requests_per_s", attainment=None)
    store.finish_run(run_id, run_end(), [VERDICT, rate])
    return store


def test_a_run_that_was_exported_is_imported_as_it_was(url: str, tmp_path: Path) -> None:
    store = filled(url)
    lines = list(export_lines(store.engine, 1))
    other = Store(f"sqlite:///{tmp_path}/other.db")
    run_id = import_lines(other, lines)
    before, after = get_run(store.engine, 1), get_run(other.engine, run_id)
    assert after == msgspec.structs.replace(before, id=run_id)
    assert record_rows(other.engine, run_id) == record_rows(store.engine, 1)
    for name in ("plan_index", "first_token_at_ns", "output_tokens"):
        assert (run_columns(other.engine, run_id).integers(name) == run_columns(store.engine, 1).integers(name)).all()
    assert health_samples(other.engine, run_id) == health_samples(store.engine, 1)
    assert gap_rows(other.engine, run_id) == gap_rows(store.engine, 1)
    assert packed_plan(other.engine, run_id) == packed_plan(store.engine, 1)
    with pytest.raises(UsageError, match="already contains run abc"):
        import_lines(other, lines)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda lines: ["{}"], "first line lacks"),
        (lambda lines: [*lines[:3], "{"], "line 4 of the export is not JSON"),
        (lambda lines: [*lines[:-1], json.dumps({"colour": {}}), lines[-1]], "'colour' is not a part of a run"),
        (lambda lines: [*lines[:-1], json.dumps({"record": {"plan_index": "x"}}), lines[-1]], "line 37"),
        (lambda lines: lines[:-1], "incomplete: it has 35 lines"),
        (lambda lines: [*lines[:10], *lines[11:]], "incomplete: it has 34 lines"),
        (lambda lines: [*lines, lines[-2]], "line 38: there are lines after the end of the export"),
    ],
)
def test_a_spoilt_export_leaves_nothing_behind(spoil: object, problem: str, url: str, tmp_path: Path) -> None:
    lines = list(export_lines(filled(url).engine, 1))
    other = Store(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(UsageError, match=problem):
        import_lines(other, spoil(lines))  # type: ignore[operator]
    assert list_runs(other.engine) == []


def test_tags_are_set_replaced_and_removed(url: str) -> None:
    store = filled(url)
    assert store.tag_run(1, {"team": None, "image": "v2"}) == {"image": "v2"}
    assert get_run(store.engine, 1).metadata == {"image": "v2"}
    with pytest.raises(UsageError, match="no run 9"):
        store.tag_run(9, {"a": "b"})


def test_a_deleted_run_takes_everything_along(url: str) -> None:
    store = filled(url)
    assert store.delete_run(1)
    assert not store.delete_run(1)
    store.shrink()
    assert len(run_columns(store.engine, 1)) == 0
    assert health_samples(store.engine, 1) == {}
    assert packed_plan(store.engine, 1) is None


def test_old_runs_go_by_age_and_tagged_ones_stay(url: str) -> None:
    import time

    now = time.time_ns()
    for days in (40, 20, 5):
        filled(url, uid=f"{days}", started_at_ns=now - days * 86_400 * 10**9)
    store = Store(url)
    store.tag_run(1, {"keep": "yes"})
    assert prune_runs(store, 10, None, dry_run=True) == [2]
    assert prune_runs(store, 10, None) == [2]
    assert [head.id for head in list_runs(store.engine)] == [3, 1]


def test_the_oldest_go_until_the_file_is_small_enough(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    for number in range(4):
        filled(url, uid=f"{number}", records=3000)
    store = Store(url)
    each = store.size_bytes() / 4
    gone = prune_runs(store, None, round(2.5 * each))
    assert gone == [1, 2]
    assert (tmp_path / "t.db").stat().st_size < 3 * each


def test_texts_of_servers_are_no_formulas_in_a_spreadsheet(tmp_path: Path) -> None:
    """CSV: `=cmd|' /C calc'!A0` as an error is quoted; numbers below 0 stay numbers."""
    store = Store(f"sqlite:///{tmp_path}/t.db")
    run_id = store.create_run(new_run())
    errors = ["=cmd|' /C calc'!A0", "+1", "@SUM(A1)", "plain"]
    store.add_records(run_id, [record(i, outcome="error:http_500", error=text) for i, text in enumerate(errors)])
    write_csv(store.engine, run_id, tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(newline="") as file:
        found = [row["error"] for row in csv.DictReader(file)]
    assert found == ["'=cmd|' /C calc'!A0", "'+1", "'@SUM(A1)", "plain"]
