"""The database: what goes in comes out, errors are sentences, versions are checked."""

from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from surgeproof.columns import INTEGERS, MISSING, TEXTS, RecordColumns
from surgeproof.errors import ConfigError, StoreError, UsageError
from surgeproof.loadgen.plan import PLAN_DTYPE, Plan
from surgeproof.records import HealthSample, Verdict
from surgeproof.redaction import shown_url
from surgeproof.results import Interval, RuleVerdict
from surgeproof.storage import tables
from surgeproof.storage.queries import (
    get_run,
    health_samples,
    list_runs,
    packed_plan,
    record_columns,
    run_columns,
    unfinished_runs,
)
from surgeproof.storage.store import Store, open_engine
from surgeproof.stored_runs import PlanFacts
from surgeproof.strict_json import to_json
from tests.integration.storage.examples import RUN, new_run, record, run_end


def test_records_come_back_to_the_nanosecond_and_only_once(url: str) -> None:
    """Storing a spool twice changes nothing."""
    store = Store(url)
    run_id = store.create_run(RUN)
    store.add_records(run_id, [record(1), record(0, outcome="error:reset", first_token_at_ns=None)])
    store.add_records(run_id, [record(1, outcome="changed"), record(2)])
    rows = record_columns(store.engine, run_id, (*INTEGERS, *TEXTS))
    for columns in (run_columns(store.engine, run_id), RecordColumns.of(rows)):
        columns = columns.chosen(np.argsort(columns.integers("plan_index")))
        assert columns.texts("outcome").values().tolist() == ["error:reset", "ok", "ok"]
        assert columns.integers("intended_at_ns")[1] == 1_800_000_000_000_000_002
        assert columns.integers("first_token_at_ns").tolist() == [
            MISSING, 1_800_000_000_000_000_008, 1_800_000_000_000_000_009,
        ]  # fmt: skip
        assert columns.texts("warnings").values().tolist() == ["a,b"] * 3
    assert store.stored_indexes(run_id) == {0, 1, 2}
    assert record_columns(store.engine, run_id, ("warnings", "arrivals"))["warnings"][0] == "a,b"


def test_a_run_is_listed_shown_and_finished(url: str) -> None:
    store = Store(url)
    run_id = store.create_run(RUN)
    assert unfinished_runs(store.engine)[0].id == run_id
    verdict = RuleVerdict(
        request_class="P0", rule="ttft p99 < 1s", metric="ttft", unit="ms", observed=5.5, bound=1000.0, n=7,
        interval=Interval(1.0, None), verdict=Verdict.INCONCLUSIVE, reason="too few", attainment=0.5,
    )  # fmt: skip
    end = run_end(verdict=Verdict.INCONCLUSIVE, exit_code=4)
    store.finish_run(run_id, end, [verdict])
    store.finish_run(run_id, end, [verdict])
    run = get_run(store.engine, run_id)
    assert (run.state, run.exit_code, run.summary) == ("finished", 4, end.summary)
    assert run.scenario == RUN.scenario
    assert run.verdicts == (verdict,)
    assert [(head.id, head.metadata) for head in list_runs(store.engine)] == [(run_id, {"team": "a"})]


def test_a_row_of_another_form_is_a_sentence_and_costs_that_run_only(url: str) -> None:
    store = Store(url)
    first, second = store.create_run(RUN), store.create_run(new_run(uid="def"))
    with store.engine.begin() as connection:
        connection.execute(sa.update(tables.runs).where(tables.runs.c.id == first).values(scenario='{"load": 7}'))
    with pytest.raises(StoreError, match=f"run {first} is stored in a form that this version cannot read"):
        get_run(store.engine, first)
    assert get_run(store.engine, second).uid == "def"
    assert [head.id for head in list_runs(store.engine)] == [second, first]


def test_a_plan_and_health_are_kept(url: str) -> None:
    store = Store(url)
    run_id = store.create_run(RUN)
    plan = Plan(np.zeros(3, dtype=PLAN_DTYPE))
    store.save_plan(run_id, plan.pack(), PlanFacts("d", 7, len(plan), 0.25))
    store.add_records(run_id, [], {2: [HealthSample(5, 0.5, 1, 2, 3, 4, 5)]})
    held = packed_plan(store.engine, run_id)
    assert held is not None
    assert (Plan.unpack(held).rows == plan.rows).all()
    assert get_run(store.engine, run_id).plan == PlanFacts("d", 7, 3, 0.25)
    assert health_samples(store.engine, run_id)[2][0].cpu_share == 0.5


def test_a_missing_run_names_the_newest(url: str) -> None:
    store = Store(url)
    with pytest.raises(UsageError, match="has no runs"):
        get_run(store.engine, 1)
    store.create_run(RUN)
    with pytest.raises(UsageError, match="newest is 1"):
        get_run(store.engine, 5)


def test_a_database_that_is_not_there_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no database at"):
        open_engine(f"sqlite:///{tmp_path}/none.db", create=False)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "cannot be used"),
        ("oracle+nonsense://u:secret@h/d", "cannot be used"),
        ("sqlite:////no/such/folder/x.db", "cannot open database"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str, message: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=message) as caught:
        Store(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in shown_url(url)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.db").write_text("this is a text file, and long enough to be looked at as a database page" * 20)
    with pytest.raises(StoreError, match="not a database"):
        Store(f"sqlite:///{tmp_path}/t.db")


def test_two_writers_share_a_file(url: str) -> None:
    first, second = Store(url), Store(url)
    one, other = first.create_run(RUN), second.create_run(new_run(uid="def"))
    first.add_records(one, [record(i) for i in range(500)])
    second.add_records(other, [record(i) for i in range(500)])
    assert len(first.stored_indexes(other)) == 500


def test_json_is_strict() -> None:
    assert to_json({"rate": float("inf")}) == '{"rate": "inf"}'
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"x": float("nan")})


def test_a_record_that_arrives_late_takes_the_place_of_one_not_sent(url: str) -> None:
    store = Store(url)
    run_id = store.create_run(RUN)
    store.add_records(run_id, [record(0, outcome="not_sent", first_token_at_ns=None), record(1)])
    store.add_records(run_id, [record(0), record(1, outcome="not_sent")], instead_of_unsent=True)
    assert record_columns(store.engine, run_id, ("outcome",))["outcome"] == ["ok", "ok"]
    assert run_columns(store.engine, run_id).texts("outcome").counts() == {"ok": 2}


@pytest.mark.parametrize("name", ["p%41c.db", "a%20b.db", "a b.db", "ünï.db", "100%.db", "a?b.db"])
def test_a_database_file_has_the_name_that_was_given(tmp_path: Path, name: str) -> None:
    Store(f"sqlite:///{tmp_path}/{name}").close()
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {name}
    assert list_runs(open_engine(f"sqlite:///{tmp_path}/{name}", create=False)) == []
