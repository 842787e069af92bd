"""Stored runs and traces as tables on a terminal."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from surgeproof.ci.board import audit_lines, board_table, counts_line, latency_table
from surgeproof.records import Audit, Interval, RuleVerdict, Verdict


def print_runs(found: list[dict[str, Any]]) -> None:
    """One line a run."""
    table = Table(show_edge=False)
    for name in ("run", "started (UTC)", "name", "state", "verdict", "model", "endpoint", "tags"):
        table.add_column(name)
    for run in found:
        tags = " ".join(f"{key}={value}" for key, value in run["metadata"].items())
        table.add_row(
            str(run["id"]), when(run["started_at_ns"]), run["name"], run["state"], run["verdict"] or "–",
            run["model"], run["base_url"], tags,
        )  # fmt: skip
    console = Console()
    if found:
        console.print(table)
    else:
        console.print("No runs yet.")


def print_run(run: dict[str, Any]) -> None:
    """Figures, board and audit of one run."""
    console = Console()
    console.print(
        f"Run {run['id']} {run['name']}: {run['state']}, {run['verdict'] or 'no objectives'}; started "
        f"{when(run['started_at_ns'])} UTC; {run['model']} at {run['base_url']}",
        highlight=False,
    )
    if run["summary"] is None:
        console.print("It has not been summarised: it is still running, or was cut off; see 'surgeproof recover'.")
        return
    console.print(latency_table(run["summary"]))
    console.print(counts_line(run["summary"]))
    if run["verdicts"]:
        console.print(board_table(stored_verdicts(run)))
    for line in audit_lines(stored_audit(run)):
        console.print(line)


def stored_verdicts(run: dict[str, Any]) -> tuple[RuleVerdict, ...]:
    """A stored run's verdicts, as the judge made them."""
    return tuple(
        RuleVerdict(
            **{k: v for k, v in row.items() if k not in ("interval_low", "interval_high", "verdict")},
            interval=Interval(row["interval_low"], row["interval_high"]),
            verdict=Verdict(row["verdict"]),
        )
        for row in run["verdicts"]
    )


def stored_audit(run: dict[str, Any]) -> Audit:
    """A stored run's audit."""
    return msgspec.convert(run["audit"] or {}, Audit)


def print_trace(facts: dict[str, Any]) -> None:
    """What `traces inspect` found."""
    table = Table(show_header=False, show_edge=False)
    table.add_column()
    table.add_column()
    dropped = ", ".join(f"{count} {reason}" for reason, count in facts["dropped"].items()) or "none"
    table.add_row("file", f"{facts['source']} ({facts['format']})")
    table.add_row("rows", f"{facts['rows']}, dropped: {dropped}, out of order: {facts['out_of_order']}")
    table.add_row("span", f"{facts['span_s']:g} s")
    table.add_row("mean rate", "–" if facts["mean_rate_per_s"] is None else f"{facts['mean_rate_per_s']:.4g} /s")
    table.add_row("gap CV", "–" if facts["gap_cv"] is None else f"{facts['gap_cv']:.3g} (Poisson: 1)")
    spread = ", ".join(
        f"{window}: {'–' if value is None else f'{value:.3g}'}" for window, value in facts["dispersion"].items()
    )
    table.add_row("dispersion", f"{spread} (Poisson: 1)")
    for name in ("input_tokens", "output_tokens"):
        table.add_row(name.replace("_", " "), ", ".join(f"{k} {v}" for k, v in facts[name].items()))
    grid = facts["clock_grid_s"]
    undone = "spread evenly" if facts["dequantised"] else "kept"
    table.add_row("clock grid", "none" if grid is None else f"{grid:g} s, {undone}")
    console = Console()
    console.print(table)
    for example in facts["malformed_examples"]:
        console.print(f"malformed {example}", highlight=False)


def when(at_ns: int | None) -> str:
    """A time in UTC, to the second."""
    return "–" if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
