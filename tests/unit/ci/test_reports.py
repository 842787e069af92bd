"""Reports for pipelines: what a JUnit reader and a Markdown reader get of one judged run."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from surgeproof.audit_results import Audit, AuditCheck, ClientError, Effect
from surgeproof.ci.json_output import result_document
from surgeproof.ci.reports import as_junit, as_markdown, write_reports
from surgeproof.errors import ConfigError
from surgeproof.records import Verdict
from surgeproof.results import RunResult
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge, overall
from tests.unit.slo.columns import measured


def judged(audit: Audit | None = None) -> RunResult:
    """400 requests of 100 ms under one rule that passes, one that fails, and one that needs more of them."""
    held = measured([100.0] * 400)
    rules = parse_objectives({"P0": ("ttft p99 < 350ms", "ttft p99 < 50ms", "success >= 99.99%")})
    verdicts = tuple(judge(held, rules, Audit()))
    return RunResult(7, Verdict.FAIL, verdicts, audit or Audit(), summarise(held), 3)


def test_junit_has_a_case_for_each_objective() -> None:
    suite = ET.fromstring(as_junit(judged()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    passed, failed, unclear = suite.findall("testcase")
    assert (passed.get("classname"), passed.get("name"), len(passed)) == ("slo.P0", "ttft p99 < 350ms", 0)
    assert failed.find("failure") is not None
    error = unclear.find("error")
    assert error is not None
    assert error.get("type") == "INCONCLUSIVE"
    assert "more requests like these would decide" in (error.get("message") or "")


def test_markdown_shows_the_board_and_the_audit() -> None:
    breach = Audit((AuditCheck("send_lag_p99", 9.0, 5.0, "ms", False, "use --processes 4 | or less"),))
    text = as_markdown(judged(breach))
    assert text.startswith("## Run 7: FAIL (exit 3)\n")
    assert "| P0 | ttft p99 < 350ms | 100.0 ms |" in text
    assert "client audit, send_lag_p99: use --processes 4 \\| or less" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {8}


def test_markdown_shows_a_ladder_by_step() -> None:
    held = Measured(measured([100.0] * 400, step=[2] * 200 + [8] * 200).columns, closed_loop=True)
    text = as_markdown(RunResult(7, None, (), Audit(), summarise(held), 0))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in table[2:]] == ["2", "8"]
    assert "requests/s:" not in text, "a rate over both steps is of no load"


def test_plain_data_names_the_exit_code() -> None:
    plain = result_document(judged())
    assert (plain["run"], plain["verdict"], plain["exit_code"]) == (7, "FAIL", 3)
    assert [verdict["verdict"] for verdict in plain["verdicts"]] == ["PASS", "FAIL", "INCONCLUSIVE"]


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the report"):
        write_reports(judged(), tmp_path / "no" / "slo.xml", None)
    write_reports(judged(), tmp_path / "slo.xml", tmp_path / "slo.md")
    assert (tmp_path / "slo.md").read_text().startswith("## Run 7")


@pytest.mark.parametrize(("rule", "errors"), [("ttft p99 < 50ms", "2"), ("success >= 99%", "0")])
def test_a_breached_audit_is_an_error_where_a_verdict_depends_on_it(rule: str, errors: str) -> None:
    """A late client cannot change how many were answered: the breach is told, and the pipeline stays green."""
    held = measured([100.0] * 4000)
    late = AuditCheck("send_lag_p99", 60.0, 5.0, "ms", False, "use --processes 4", (Effect.LATE_SEND,))
    audit = Audit((late,), error=ClientError(send_ms=60.0))
    verdicts = tuple(judge(held, parse_objectives({"P0": (rule,)}), audit))
    result = RunResult(7, overall(held, list(verdicts), audit), verdicts, audit, summarise(held), 5)
    suite = ET.fromstring(as_junit(result))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", errors)
    assert "use --processes 4" in ET.tostring(suite, encoding="unicode")
    assert ("no verdict depends on it" in as_markdown(result)) is (errors == "0")


def test_intervals_of_means_are_plain_data() -> None:
    held = measured([100.0] * 4000)
    verdicts = tuple(judge(held, parse_objectives({"P0": ("ttft mean < 1s", "requests_per_s > 1")}), Audit()))
    plain = result_document(RunResult(7, Verdict.PASS, verdicts, Audit(), summarise(held), 0))
    assert len(json.loads(json.dumps(plain, allow_nan=False))["verdicts"]) == 2
