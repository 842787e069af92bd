"""Comparisons, baselines and sample-size needs as terminal tables."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from surgeproof.commands.terminal import new_console
from surgeproof.records import Verdict
from surgeproof.runs.gpu_estimate import EstimateRow
from surgeproof.slo.baseline import BaselineReport, change_text
from surgeproof.slo.compare import Difference
from surgeproof.slo.sample_size import Need
from surgeproof.slo.wording import comparison_line, difference, mark, number


def print_comparison(before: int, after: int, differences: Sequence[Difference]) -> None:
    """Every figure of two runs: first those that decide, with their margins, then exploration."""
    table = Table(title=f"Run {before} and run {after}", title_justify="left", show_edge=False)
    for name in ("group", "figure", f"run {before}", f"run {after}", "difference (bounds)", ""):
        table.add_column(name, justify="right" if name.startswith("run ") else "left")
    for d in sorted(differences, key=lambda one: one.verdict is None):
        colour = "red" if d.alarm else "green" if d.verdict is Verdict.PASS else "yellow"
        shown = Text(mark(d), style=colour)
        table.add_row(d.group, d.metric, number(d.before), number(d.after), difference(d), shown)
    console = new_console()
    console.print(table)
    console.print(comparison_line(differences), highlight=False)


def print_baseline(report: BaselineReport) -> None:
    """Figures that deviate from earlier runs, and likely causes."""
    console = new_console()
    numbers = ", ".join(map(str, report.runs))
    console.print(f"Against {len(report.runs)} earlier runs, of {report.slot}: {numbers}", highlight=False)
    table = Table(show_edge=False)
    for name in ("group", "figure", "this run", "median", "spread", "change", ""):
        table.add_column(name, justify="left" if name in ("group", "figure", "") else "right")
    for d in report.deviations:
        mark = Text("alarm" if d.alarm else "", style="red")
        table.add_row(d.group, d.metric, number(d.value), number(d.median), number(d.spread), change_text(d), mark)
    console.print(table)
    for sentence in report.explanations:
        console.print(sentence, highlight=False)
    if not any(d.alarm for d in report.deviations):
        console.print("No figure deviates from the earlier runs.")


def print_needs(needs: Sequence[Need]) -> None:
    """Requests and minutes that each rule needs."""
    table = Table(show_edge=False)
    columns = (
        "class", "objective", "intervals", "requests without a miss", "with half the budget used", "alike for, s",
        "minutes",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name in ("class", "objective") else "right")
    for need in needs:
        alike = "–" if need.correlation_s is None else f"{need.correlation_s:g}"
        likely = "–" if need.likely is None else str(need.likely)
        minutes = "–" if need.minutes is None else f"{need.minutes:g}"
        table.add_row(need.request_class, need.rule, str(need.intervals), str(need.at_best), likely, alike, minutes)
    new_console().print(table)


def print_estimates(rows: Sequence[EstimateRow]) -> None:
    """Busy shares with 90 % intervals, and the limiting resource."""
    table = Table(title="Estimated, % of the time (90 % interval)", title_justify="left", show_edge=False)
    counted = any(isinstance(row.sm_counted, float) for row in rows)
    for name in ("", "SM busy", "DRAM", "tensor", "limit", *(("SM counted", "DRAM counted") if counted else ())):
        table.add_column(name, justify="left" if name in ("", "limit") else "right")
    for row in rows:
        shares = [
            f"{share:.1f} ({low:.0f}–{high:.0f})"
            for share, low, high in (
                (row.sm_pct, row.sm_low, row.sm_high),
                (row.dram_pct, row.dram_low, row.dram_high),
                (row.tensor_pct, row.tensor_low, row.tensor_high),
            )
        ]
        values = (row.sm_counted, row.dram_counted) if counted else ()
        cells = [f"{value:.1f}" if isinstance(value, float) else "–" for value in values]
        table.add_row(row.label, *shares, row.limit, *cells)
    console = new_console()
    console.print(table)
    for reason in dict.fromkeys(row.outside_fit for row in rows if isinstance(row.outside_fit, str)):
        console.print(f"Uncalibrated: {reason}; the intervals do not hold there", style="yellow", highlight=False)
    if rows and rows[-1].calibrated is False:
        console.print(
            "The work of an ideal engine: one that pads, copies or computes twice is busier than this "
            "(--calibrate, on a run with --gpu-agent, finds by how much)", highlight=False,
        )  # fmt: skip
