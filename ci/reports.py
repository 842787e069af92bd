"""A run's result as files that pipelines read: JUnit XML and Markdown. Formats only; makes no judgement."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from surgeproof.errors import ConfigError
from surgeproof.records import Verdict
from surgeproof.results import RunResult
from surgeproof.slo.failures import failure_lines
from surgeproof.slo.wording import (
    BOARD,
    STEPS,
    TURNS,
    board_row,
    breach_lines,
    cap_line,
    figure_lines,
    latency_title,
    notices,
    step_rows,
    turn_rows,
)


def write_reports(result: RunResult, junit: Path | None, markdown: Path | None) -> None:
    """Write the reports that were asked for.

    Raises:
        ConfigError: a file cannot be written.
    """
    for path, text in ((junit, as_junit), (markdown, as_markdown)):
        if path is None:
            continue
        try:
            path.write_text(text(result), "utf-8")
        except OSError as exc:
            raise ConfigError(f"cannot write the report {path}: {exc.strerror}") from exc


def as_junit(result: RunResult) -> str:
    """One test case per objective: a miss is a failure; no verdict, or a breached audit, is an error."""
    cases = [
        (f"slo.{v.request_class}", v.rule, _junit_kind(v.verdict), str(v.verdict), v.reason) for v in result.verdicts
    ]
    # A breach that changed no verdict is told, and must not stop a pipeline.
    kind = "error" if result.voided else "system-out"
    cases += [("audit", check.name, kind, "INVALID", check.remedy) for check in result.audit.breaches]
    kinds = [kind for _, _, kind, _, _ in cases]
    suite = ET.Element(
        "testsuite",
        name=f"Surgeproof {result.title[0].lower()}{result.title[1:]}",
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
    )
    for of, name, kind, word, reason in cases:
        case = ET.SubElement(suite, "testcase", classname=of, name=_legal(name))
        if kind == "system-out":
            ET.SubElement(case, kind).text = _legal(reason)
        elif kind:
            ET.SubElement(case, kind, type=word, message=_legal(reason))
    told = [*figure_lines(result.summary), *failure_lines(result.summary.failures), *notices(result.summary)]
    ET.SubElement(suite, "system-out").text = _legal("\n".join(told))
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'


def _junit_kind(verdict: Verdict) -> str:
    return {Verdict.PASS: "", Verdict.FAIL: "failure"}.get(verdict, "error")


def _legal(text: str) -> str:
    """Remove control characters that XML cannot represent."""
    return "".join(char for char in text if char.isprintable() or char in "\t\n")


def as_markdown(result: RunResult) -> str:
    """The board as a table, and below it why a rule did not pass and what the client's audit says."""
    lines = [
        f"## {result.title}: {result.verdict or 'no objectives'} (exit {result.exit_code})",
        "",
        *(f"{line}\n" for line in figure_lines(result.summary)),
        f"{latency_title(result.summary)}.",
        "",
    ]
    if result.summary.is_ladder:
        lines += _table(STEPS, step_rows(result.summary))
    if turns := turn_rows(result.summary):
        lines += _table(TURNS, turns)
    if result.verdicts:
        lines += _table(BOARD, [board_row(verdict) for verdict in result.verdicts])
        lines += [
            f"- {v.request_class} {_cell(v.rule)}: {_cell(v.reason)}"
            for v in result.verdicts
            if v.verdict is not Verdict.PASS
        ]
    lines += [f"- client audit, {_cell(line)}" for line in breach_lines(result.audit, voided=result.voided)]
    lines += [f"- failed: {_cell(line)}" for line in failure_lines(result.summary.failures)]
    lines += [f"- {_cell(line)}" for line in (cap_line(result.audit), *notices(result.summary)) if line]
    return "\n".join(lines).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
