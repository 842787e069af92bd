"""Stored runs and traces as tables on a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from surgeproof.audit_results import Audit
from surgeproof.commands.board import audit_lines, print_board, print_figures, print_gpus
from surgeproof.commands.terminal import new_console
from surgeproof.loadgen.probe import ProbeResult
from surgeproof.results import Budget, DispatchLine
from surgeproof.slo.failures import way_out
from surgeproof.slo.wording import when
from surgeproof.stored_runs import Run, RunHead
from surgeproof.traces.goodness import Goodness
from surgeproof.traces.inspection import TraceFacts


def print_runs(heads: list[RunHead]) -> None:
    """One row per run."""
    table = Table(show_edge=False)
    for name in ("run", "started (UTC)", "name", "state", "verdict", "model", "endpoint", "tags"):
        table.add_column(name, overflow="fold", no_wrap=name in ("run", "state", "verdict"))
    for run in heads:
        tags = " ".join(f"{key}={value}" for key, value in run.metadata.items())
        table.add_row(
            str(run.id), when(run.started_at_ns), run.name, run.state, run.verdict or "–", run.model, run.base_url, tags
        )
    console = new_console()
    if heads:
        console.print(table)
    else:
        console.print("No runs yet.")


def print_run(run: Run) -> None:
    """Figures, board and audit of one run."""
    console = new_console()
    console.print(
        f"Run {run.id} {run.name}: {run.state}, {run.verdict or 'no objectives'}; started "
        f"{when(run.started_at_ns)} UTC; {run.model} at {run.base_url}",
        highlight=False,
    )
    summary = run.summary
    if summary is None:
        console.print("This run has no summary: it is still running, or it was killed; see 'surgeproof recover'.")
        return
    print_figures(summary, console)
    if run.verdicts:
        print_board(run.verdicts, console)
    if summary.budgets:
        console.print(_budget_table(summary.budgets))
    for line in audit_lines(run.audit or Audit(), voided=run.voided):
        console.sentence(line)
    print_gpus(summary, console)
    if summary.dispatch:
        console.print(_dispatch_table(summary.dispatch))


_BARS = "▁▂▃▄▅▆▇█"


def _budget_table(budgets: Sequence[Budget]) -> Table:
    """How much of each error budget was spent, and when: a full-height bar is a burn rate of 10."""
    table = Table(title="Error budgets", show_edge=False, title_justify="left")
    for name in ("class", "objective", "may miss", "missed", "spent", "burn over the run"):
        table.add_column(name, justify="left" if name in ("class", "objective", "burn over the run") else "right")
    for budget in budgets:
        burns = (burn for _, _, burn in budget.windows)
        bars = "".join(" " if burn is None else _BARS[min(7, int(burn * 0.8))] for burn in burns)
        allowed = budget.requests * budget.budget
        table.add_row(
            budget.request_class, budget.rule, f"{allowed:.4g}", str(budget.misses), f"{budget.spent:.0%}", bars
        )
    return table


def _dispatch_table(lines: Sequence[DispatchLine]) -> Table:
    """The load that was sent beside the load that was planned."""
    table = Table(title="Dispatch: planned and sent", show_edge=False, title_justify="left")
    for name in ("", "planned", "achieved", "bound", ""):
        table.add_column(name, justify="right" if name in ("planned", "achieved") else "left")
    for line in lines:
        values = ["–" if value is None else f"{value:.6g}" for value in (line.planned, line.achieved)]
        result = {None: Text(""), True: Text("ok", "green"), False: Text("off", "red")}[line.passed]
        table.add_row(line.name, *values, line.bound or "", result)
    return table


def print_trace(facts: TraceFacts) -> None:
    """The result of `traces inspect`."""
    table = Table(show_header=False, show_edge=False)
    table.add_column()
    table.add_column()
    dropped = ", ".join(f"{count} {reason}" for reason, count in facts.dropped.items()) or "none"
    table.add_row("file", f"{facts.source} ({facts.format})")
    counted = ", ".join(
        f"{getattr(facts, key)} {text}"
        for key, text in (("out_of_order", "out of order"), ("repeated", "repeated"), ("blank_lines", "blank lines"))
        if getattr(facts, key)
    )
    table.add_row("rows", f"{facts.rows}, dropped: {dropped}" + (f"; {counted}" if counted else ""))
    table.add_row("span", f"{facts.span_s:g} s")
    table.add_row("mean rate", "–" if facts.mean_rate_per_s is None else f"{facts.mean_rate_per_s:.4g} /s")
    table.add_row("gap CV", "–" if facts.gap_cv is None else f"{facts.gap_cv:.3g} (Poisson: 1)")
    spread = ", ".join(
        f"{window}: {'–' if value is None else f'{value:.3g}'}" for window, value in facts.dispersion.items()
    )
    table.add_row("dispersion", f"{spread} (Poisson: 1)")
    for name in ("input_tokens", "output_tokens"):
        table.add_row(name.replace("_", " "), ", ".join(f"{k} {v}" for k, v in getattr(facts, name).items()))
    grid = facts.clock_grid_s
    undone = "spread evenly" if facts.dequantised else "kept"
    table.add_row("clock grid", "none" if grid is None else f"{grid:g} s, {undone}")
    console = new_console()
    console.print(table)
    if facts.unit_note:
        console.print(f"Note: {facts.unit_note}", style="yellow")
    for example in facts.malformed_examples:
        console.print(f"malformed {example}", highlight=False)


_RESULT_STYLES = {"pass": "green", "warn": "yellow", "fail": "red"}


def print_goodness(goodness: Goodness) -> None:
    """The table of a profile's goodness of fit."""
    table = Table(show_edge=False)
    for name in ("", "what", "trace", "model", "5-95 % of replicates", "bound"):
        table.add_column(name, justify="right" if name in ("trace", "model") else "left")
    for check in goodness.checks:
        result = Text(check.result, _RESULT_STYLES[check.result])
        band = f"{check.low:g} – {check.high:g}"
        table.add_row(result, check.name, f"{check.trace:g}", f"{check.model:g}", band, check.bound)
    console = new_console()
    console.print(table)
    rank = f"rank among {goodness.seeds} replicates: p = {goodness.p_value:g}"
    console.print(
        f"{goodness.result}: {goodness.verdict} ({rank})", style=_RESULT_STYLES[goodness.result], highlight=False
    )


_PROBE_PHASES = (
    ("dns_ms", "name resolved in"),
    ("tcp_ms", "TCP connected in"),
    ("tls_ms", "TLS handshake in"),
    ("write_ms", "request written in"),
    ("headers_ms", "response head"),
    ("first_byte_ms", "first body byte"),
    ("first_event_ms", "first event"),
    ("first_token_ms", "first token"),
    ("first_answer_ms", "first visible text"),
    ("last_token_ms", "last token"),
    ("done_ms", "end of response"),
)


def print_probe(result: ProbeResult) -> None:
    """One request as a timeline."""
    console = new_console()
    status = f", HTTP {result.http_status}" if result.http_status else ""
    console.print(f"{result.outcome}{status}", style="green" if result.outcome == "ok" else "red")
    if result.error:
        console.print(result.error, highlight=False)
    if result.outcome != "ok" and (remedy := way_out(result.outcome, result.error or "")):
        console.print(f"What may help: {remedy}", style="yellow", highlight=False)
    table = Table(show_header=False, show_edge=False)
    table.add_column(justify="right")
    table.add_column()
    for name, text in _PROBE_PHASES:
        value = getattr(result.phases, name)
        if value is not None:
            table.add_row(f"{value:.2f} ms", text)
    console.print(table)
    tokens = result.output_tokens
    parts = [f"{'?' if tokens is None else tokens} output tokens in {result.token_events} events"]
    if result.items is not None:
        parts = [f"{result.items} items"]
    if result.tpot_ms is not None:
        parts.append(f"{result.tpot_ms:.2f} ms per token")
    if result.input_tokens is not None:
        parts.append(f"{result.input_tokens} prompt tokens ({result.cached_tokens or 0} cached)")
    parts.append(f"finish reason: {result.finish_reason}")
    parts.append(f"time stamps: {result.stamp_source}")
    console.print("; ".join(parts), highlight=False)
    if lengths := result.lengths:
        console.print(
            f"prompt lengths: {1 / lengths.words_per_token:.2f} tokens a word and {lengths.template_tokens} besides "
            f"(--words-per-token {lengths.words_per_token:.3f} --template-tokens {lengths.template_tokens})",
            highlight=False,
        )
    if result.warnings:
        console.print(f"warnings: {', '.join(result.warnings)}", style="yellow")
    for name in ("reasoning_text", "content_text"):
        if getattr(result, name):
            console.print(f"{name.removesuffix('_text')}: {getattr(result, name)[:500]!r}", highlight=False)
