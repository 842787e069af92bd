"""The pages, driven by Streamlit's AppTest over a database with known runs."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from surgeproof import webui
from surgeproof.audit_results import Audit, AuditCheck
from surgeproof.results import GpuSummary
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge
from surgeproof.storage.store import Store
from surgeproof.webui import data
from surgeproof.webui.foreign_text import escaped
from tests.integration.storage.examples import RUN, new_run, record, run_end
from tests.unit.gpu.fakes import sample
from tests.unit.slo.columns import measured

PAGES = Path(webui.__file__).parent
APP = str(PAGES / "app.py")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    url = f"sqlite:///{tmp_path}/pages.db"
    monkeypatch.setenv("SURGEPROOF_DB", url)
    return Store(url)


def finished(store: Store, *, breach: bool = False, **changes: Any) -> int:
    held = measured([120.0] * 400)
    check = AuditCheck("send_lag_p99", 9.0, 5.0, "ms", not breach, "use --processes 4")
    audit = Audit((check,))
    verdicts = judge(held, parse_objectives({"P0": ("ttft p99 < 350ms",)}), audit)
    run_id = store.create_run(new_run(uid=f"u{breach}", **changes))
    store.add_records(run_id, [record(index) for index in range(20)])
    store.finish_run(run_id, run_end(summarise(held), verdict=verdicts[0].verdict, audit=audit), verdicts)
    return run_id


def test_without_a_database_the_page_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURGEPROOF_DB", f"sqlite:///{tmp_path}/none.db")
    page = AppTest.from_file(APP, default_timeout=60).run()
    assert not page.exception
    assert "run a load test first" in page.info[0].value


def test_the_list_shows_every_run(database: Store) -> None:
    finished(database)
    page = AppTest.from_file(APP, default_timeout=60).run()
    assert not page.exception
    table = page.dataframe[0].value
    assert list(table["run"]) == [1]
    assert list(table["verdict"]) == ["PASS"]
    assert list(table["tags"]) == ["team=a"]


def test_a_run_shows_verdict_board_and_figures(database: Store) -> None:
    finished(database)
    page = AppTest.from_file(str(PAGES / "views" / "one_run.py"), default_timeout=60).run()
    assert not page.exception
    assert page.success[0].value == "PASS"
    board = page.dataframe[0].value
    assert list(board["objective"]) == ["ttft p99 < 350ms"]
    assert list(board["observed"]) == ["120.0 ms"]
    assert list(board["n"]) == [400]
    assert page.dataframe[1].value.query("`latency, ms` == 'ttft'")["p50"].iloc[0] == 120.0
    page.radio[0].set_value("e2e_ms").run()
    assert not page.exception


def test_gpus_are_shown_in_words_and_by_the_second(database: Store) -> None:
    run_id = finished(database)
    start_ns = record(0).intended_at_ns
    samples = [sample(at_ns=start_ns + half * 500_000_000, sm_pct=float(20 + half), dram_pct=None) for half in range(4)]
    database.add_gpu_samples(run_id, samples)
    held = measured([120.0] * 400)
    gpus = GpuSummary({}, ("GPU 0: it is nearly full",))
    database.finish_run(run_id, run_end(msgspec.structs.replace(summarise(held), gpus=gpus)), ())
    page = AppTest.from_file(str(PAGES / "views" / "one_run.py"), default_timeout=60).run()
    assert not page.exception
    assert escaped("GPU 0: it is nearly full") in [text.value for text in page.markdown]
    shares = data.gpu_shares(f"{database.engine.url}", run_id)
    busy = shares[shares["figure"] == "SM busy"]
    assert list(busy["second"]) == [0, 1]
    assert list(busy["percent"]) == [20.5, 22.5]
    assert "DRAM" not in set(shares["figure"])


def test_an_untrustworthy_client_is_shown_first(database: Store) -> None:
    finished(database, breach=True)
    page = AppTest.from_file(str(PAGES / "views" / "one_run.py"), default_timeout=60).run()
    assert page.error[0].value == "INVALID"
    assert escaped("--processes 4") in page.warning[0].value


def test_a_run_without_a_summary_is_said_to_be_running(database: Store) -> None:
    database.create_run(RUN)
    page = AppTest.from_file(str(PAGES / "views" / "one_run.py"), default_timeout=60).run()
    assert not page.exception
    assert "still running" in page.info[0].value


def compared(database: Store, *ttft_ms: float) -> AppTest:
    """The page after runs of 400 requests with these first-token times."""
    for number, base in enumerate(ttft_ms):
        run_id = database.create_run(new_run(uid=f"c{number}"))
        rows = [record(index) for index in range(400)]
        for index, row in enumerate(rows):
            row.first_token_at_ns = row.intended_at_ns + int((base + index % 7) * 1e6)
        database.add_records(run_id, rows)
        database.finish_run(run_id, run_end(summarise(measured([base] * 400))), ())
    return AppTest.from_file(str(PAGES / "views" / "comparison.py"), default_timeout=60).run()


def test_two_runs_are_compared_and_what_became_worse_is_named(database: Store) -> None:
    page = compared(database, 100.0, 180.0)
    assert not page.exception
    assert "worse than accepted: all ttft p50, ms, all ttft p99, ms" in page.error[0].value
    table = page.dataframe[0].value.set_index("figure")
    row = table.loc["ttft p50, ms"]
    assert (row["run 1"], row["run 2"], row[""]) == ("103", "183", "FAIL")


def test_one_run_alone_is_not_compared(database: Store) -> None:
    page = compared(database, 100.0)
    assert not page.exception
    assert "needs two completed runs" in page.info[0].value


def test_names_of_users_and_servers_are_no_markdown(database: Store) -> None:
    """A name that would be a link, a colour and a heading; a model that would be a picture."""
    finished(database, name="[x](http://evil) :red[y] # $z$", model="![p](http://evil/p.png)")
    page = AppTest.from_file(str(PAGES / "views" / "one_run.py"), default_timeout=60).run()
    assert not page.exception
    assert page.title[0].value == r"Run 1: \[x\]\(http\://evil\) \:red\[y\] \# \$z\$"
    assert r"\!\[p\]\(http\://evil/p\.png\)" in page.caption[0].value


@pytest.mark.parametrize(
    "text", ["[a](b)", ":red[x]", "*a* _b_ `c`", "# a", "$x$", "<b>", "1. a", "a | b", "~~a~~", "http://x"]
)
def test_markdown_shows_an_escaped_text_as_it_is(text: str) -> None:
    """By CommonMark, a backslash before punctuation is the punctuation."""
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", escaped(text)) == text
    assert not re.search(r"(?<!\\)[\[\]*_`#$<|~:]", escaped(text))
