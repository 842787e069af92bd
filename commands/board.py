"""Shows a run's result on a terminal: verdict, board, latencies, audit. Formats only; makes no judgement."""

from collections.abc import Sequence

from msgspec import UnsetType
from rich.table import Table
from rich.text import Text

from surgeproof.audit_results import Audit
from surgeproof.commands.terminal import PlainConsole, new_console
from surgeproof.records import Verdict
from surgeproof.results import RuleVerdict, RunResult, Summary
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

_COLOURS = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "INVALID": "magenta"}
_SHOWN_LATENCIES = ("ttft", "first_answer", "tpot", "max_gap", "e2e")


def print_result_of_locust(result: RunResult, *, has_json: bool) -> None:
    """Print the result of a run under a bare Locust, whose `--json` has standard output for itself.

    Without objectives Locust decides how to exit: with 1 where a request failed, else with 0.
    """
    console = new_console(stderr=has_json)
    if result.verdicts:
        print_result(result, console)
        return
    _print_measured(result, console)
    console.sentence(f"{result.title}: no objectives; Locust's own exit code counts")


def print_result(result: RunResult, console: PlainConsole | None = None) -> None:
    """Print the result of a run."""
    console = console or new_console()
    _print_measured(result, console)
    print_verdict(result, console)


def print_verdict(result: RunResult, console: PlainConsole | None = None) -> None:
    """The verdict alone."""
    verdict = str(result.verdict) if result.verdict else "no objectives"
    text = Text.assemble(
        f"{result.title}: ",
        (verdict, f"bold {_COLOURS.get(verdict, 'default')}"),
        f" (exit {result.exit_code})",
    )
    (console or new_console()).print(text)


def _print_measured(result: RunResult, console: PlainConsole) -> None:
    print_figures(result.summary, console)
    if result.verdicts:
        print_board(result.verdicts, console)
    for line in audit_lines(result.audit, voided=result.voided):
        console.sentence(line)
    print_gpus(result.summary, console)


def print_figures(summary: Summary, console: PlainConsole) -> None:
    """Latencies, counts, rates and what to know of them; by step where the load is a ladder."""
    console.print(step_table(summary) if summary.is_ladder else latency_table(summary))
    if rows := turn_rows(summary):
        console.print(_table("Turns of conversations and steps of tasks, ms", TURNS, rows))
    for line in figure_lines(summary):
        console.sentence(line)
    for line in failure_lines(summary.failures):
        console.sentence(f"Failed: {line}", "red")
    for notice in notices(summary):
        console.sentence(f"Notice: {notice}", "yellow")


def step_table(summary: Summary) -> Table:
    """Figures of every step of a ladder."""
    return _table(f"{latency_title(summary)}, ms, by step", STEPS, step_rows(summary))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_gpus(summary: Summary, console: PlainConsole) -> None:
    """Print the GPU diagnosis, if a GPU agent was used."""
    for line in summary.gpus.diagnosis if summary.gpus else ():
        console.sentence(line)


def print_board(verdicts: tuple[RuleVerdict, ...], console: PlainConsole) -> None:
    """The board, and below it why a rule did not pass."""
    console.print(board_table(verdicts))
    for verdict in verdicts:
        if verdict.verdict is not Verdict.PASS:
            console.sentence(f"{verdict.request_class} {verdict.rule}: {verdict.reason}")


def board_table(verdicts: tuple[RuleVerdict, ...]) -> Table:
    """The SLO board: class, objective, observed value, attainment, verdict."""
    table = Table(title="SLO board", title_justify="left", show_edge=False)
    for name in BOARD:
        right = name in ("observed", "n", "attained")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name == "verdict")
    for verdict in verdicts:
        *cells, word = board_row(verdict)
        table.add_row(*cells, Text(word, style=_COLOURS[word]))
    return table


def latency_table(summary: Summary) -> Table:
    """Latencies by class, in milliseconds."""
    title = f"{latency_title(summary)}, ms, answered requests"
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("class", "latency", "n", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="left" if name in ("class", "latency") else "right")
    for request_class, figures in summary.classes.items():
        for name in _SHOWN_LATENCIES:
            values = figures.latency_ms[name]
            if name == "first_answer" and values == figures.latency_ms["ttft"]:
                continue
            cells = [_ms(value) for value in (values.p50, values.p90, values.p95, values.p99, values.max)]
            table.add_row(request_class, name, str(values.n), *cells)
    return table


def audit_lines(audit: Audit, *, voided: bool) -> list[Text]:
    """The client's audit: one line when it passed, otherwise one for each breach; then what the cap held back."""
    line = cap_line(audit)
    held_back = [Text(line, style="yellow")] if line else []
    if not audit.breaches:
        lag = next((check for check in audit.checks if check.name == "send_lag_p99"), None)
        detail = f", send lag p99 {lag.observed:.2f} ms" if lag and lag.observed is not None else ""
        return [Text(f"Client audit: {len(audit.checks)} checks passed{detail}"), *held_back]
    style = "magenta" if voided else "yellow"
    return held_back + [Text(f"Client audit: {line}", style=style) for line in breach_lines(audit, voided=voided)]


def _ms(value: float | UnsetType | None) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "–"
