"""One run: verdict, board, latencies, audit."""

import pandas as pd
import streamlit as st

from surgeproof.audit_results import Audit
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
    when,
)
from surgeproof.strict_json import plain
from surgeproof.webui import charts, data
from surgeproof.webui.foreign_text import escaped

url = data.database_url()
numbers = [run.id for run in data.runs_or_stop(url)]
wanted = st.session_state.get("run_id", numbers[0])
run_id = st.sidebar.selectbox("Run", numbers, index=numbers.index(wanted) if wanted in numbers else 0)
run = data.run(url, run_id)

st.title(f"Run {run.id}: {escaped(run.name)}")
st.caption(
    f"{escaped(run.model)} at {escaped(run.base_url)} · started {when(run.started_at_ns)} UTC · {run.state}"
    + (f" · seed {run.plan.seed}, plan {run.plan.digest[:12]}" if run.plan else "")
)
summary = run.summary
if summary is None:
    st.info("This run has no summary yet: it is still running, or it was killed; see `surgeproof recover`.")
    st.stop()

audit = run.audit or Audit()
verdict = run.verdict or "no objectives"
{"PASS": st.success, "FAIL": st.error, "INCONCLUSIVE": st.warning, "INVALID": st.error}.get(verdict, st.info)(verdict)
for breach in breach_lines(audit, voided=run.voided):
    st.warning(f"Client audit: {escaped(breach)}")
if line := cap_line(audit):
    st.warning(line)
for line in figure_lines(summary):
    st.write(escaped(line))
for failed in failure_lines(summary.failures):
    st.error(escaped(failed))
for notice in notices(summary):
    st.warning(escaped(notice))

if run.verdicts:
    st.subheader("SLO board")
    board = pd.DataFrame([*board_row(rule), rule.reason] for rule in run.verdicts)
    board.columns = pd.Index([*BOARD, "why"])
    board["n"] = [rule.n for rule in run.verdicts]  # a number, so that the table sorts by it
    st.dataframe(board, hide_index=True, width="stretch")

st.subheader(latency_title(summary))
if summary.is_ladder:
    st.dataframe(pd.DataFrame(step_rows(summary), columns=list(STEPS)), hide_index=True, width="stretch")
groups = (
    {f"{users} users": of_step for users, of_step in summary.steps.items()} if summary.is_ladder else summary.classes
)
rows = [
    {"class": name, "latency, ms": latency} | {key: value for key, value in plain(figures).items() if key != "mean"}
    for name, of_group in groups.items()
    for latency, figures in of_group.latency_ms.items()
]
st.dataframe(pd.DataFrame(rows).round(1), hide_index=True, width="stretch")

if turns := turn_rows(summary):
    st.subheader("Turns of conversations and steps of tasks, ms")
    st.dataframe(pd.DataFrame(turns, columns=list(TURNS)), hide_index=True, width="stretch")

frame = data.latencies(url, run_id)
column = st.radio("Latency", list(charts.LATENCIES), format_func=charts.LATENCIES.__getitem__, horizontal=True)
left, right = st.columns(2)
left.altair_chart(charts.over_time(frame, column, charts.LATENCIES[column]), width="stretch")
right.altair_chart(charts.distribution(frame, column, charts.LATENCIES[column]), width="stretch")

if summary.gpus:
    st.subheader("GPUs")
    for line in summary.gpus.diagnosis:
        st.write(escaped(line))
    shares = data.gpu_shares(url, run_id)
    if len(shares):
        st.altair_chart(charts.gpu_shares(shares), width="stretch")

with st.expander("Client audit"):
    checks = pd.DataFrame(
        {"check": c.name, "observed": c.observed, "limit": c.limit, "unit": c.unit, "passed": c.passed}
        for c in audit.checks
    )
    st.dataframe(checks, hide_index=True, width="stretch")
if summary.budgets:
    with st.expander("Error budgets and burn"):
        st.altair_chart(charts.burn(summary.budgets), width="stretch")
if summary.dispatch:
    with st.expander("Dispatch: planned and sent"):
        st.dataframe(pd.DataFrame(plain(summary.dispatch)), hide_index=True, width="stretch")
with st.expander("Environment and scenario"):
    st.json(plain({"environment": run.environment, "scenario": run.scenario, "metadata": run.metadata}))
