"""Charts from data frames. Pure: they read no database and touch no page."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from surgeproof.results import Budget

LATENCIES = {"ttft_ms": "TTFT, ms", "e2e_ms": "end to end, ms", "tpot_ms": "time per output token, ms"}
"""Columns of `data.latencies` and what they are called."""
_COLOURS = alt.Scale(domain=["P0", "P1", "P2"], range=["#c0392b", "#2471a3", "#7d8a97"])
_RUN_COLOURS = alt.Scale(range=["#7d8a97", "#2471a3"])
_MAX_POINTS = 5000


def over_time(frame: pd.DataFrame, column: str, title: str) -> Any:
    """A latency by planned time, one point a request; above 5,000 a seeded sample is shown."""
    shown = frame.dropna(subset=[column])
    if len(shown) > _MAX_POINTS:
        shown = shown.sample(_MAX_POINTS, random_state=0)
    return (
        alt.Chart(shown)
        .mark_circle(size=14, opacity=0.5)
        .encode(
            x=alt.X("planned_s:Q", title="planned time since the start, s"),
            y=alt.Y(f"{column}:Q", title=title),
            color=alt.Color("class:N", scale=_COLOURS, title="class"),
            tooltip=["class", "planned_s", column, "outcome"],
        )
        .properties(height=280)
    )


def distribution(frame: pd.DataFrame, column: str, title: str, by: str = "class") -> Any:
    """The share of answered requests at or below each latency, by class or by run."""
    parts = []
    for name, group in frame.dropna(subset=[column]).groupby(by):
        ordered = group[column].sort_values().reset_index(drop=True)
        share = (ordered.index + 1) / len(ordered)
        part = pd.DataFrame({by: name, column: ordered, "share": share})
        step = max(1, len(part) // 500)
        parts.append(pd.concat([part.iloc[::step], part.iloc[[-1]]]).drop_duplicates())
    data = pd.concat(parts) if parts else pd.DataFrame({by: [], column: [], "share": []})
    return (
        alt.Chart(data)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X(f"{column}:Q", title=title),
            y=alt.Y("share:Q", title="share of answered requests", axis=alt.Axis(format="%")),
            color=alt.Color(f"{by}:N", scale=_COLOURS if by == "class" else _RUN_COLOURS, title=by),
        )
        .properties(height=280)
    )


def burn(budgets: Sequence[Budget]) -> Any:
    """How fast each error budget was spent; 1 spends it exactly by the end of the run."""
    rows = [
        {"objective": f"{budget.request_class}: {budget.rule}", "start_s": start, "burn": value}
        for budget in budgets
        for start, _, value in budget.windows
        if value is not None
    ]
    lines = alt.Chart(pd.DataFrame(rows, columns=["objective", "start_s", "burn"])).mark_line(interpolate="step-after")
    return lines.encode(
        x=alt.X("start_s:Q", title="planned time since the start, s"),
        y=alt.Y("burn:Q", title="burn (1 = budget spent exactly)"),
        color=alt.Color("objective:N", title="objective"),
    ).properties(height=220)


def gpu_shares(frame: pd.DataFrame) -> Any:
    """What each GPU did over the run, one panel a GPU: NVML utilisation beside SM, tensor and DRAM use."""
    lines = alt.Chart(frame).mark_line(interpolate="step-after")
    return lines.encode(
        x=alt.X("second:Q", title="time since the start, s"),
        y=alt.Y("percent:Q", title="% of the time", scale=alt.Scale(domain=[0, 100])),
        color=alt.Color("figure:N", title="", sort=["a kernel ran", "SM busy", "tensor", "DRAM"]),
        row=alt.Row("gpu:N", title=None),
    ).properties(height=220)
