"""Two runs beside each other: what became worse, what differs significantly."""

import pandas as pd
import streamlit as st

from surgeproof.errors import SurgeproofError
from surgeproof.exit_codes import ExitCode
from surgeproof.records import RunState
from surgeproof.slo.wording import comparison_line, difference, mark, number, when
from surgeproof.webui import charts, data

st.title("Compare")
url = data.database_url()
ended = {run.id: run for run in data.runs_or_stop(url) if run.state is not RunState.RUNNING}
if len(ended) < 2:
    st.info("This page needs two completed runs. Start another one with `surgeproof run`.")
    st.stop()


def label(run_id: int) -> str:
    """Label of a run in the selection."""
    run = ended[run_id]
    return f"{run_id}: {run.name}, {run.model}, {when(run.started_at_ns)}, {run.verdict or 'no objectives'}"


before = st.selectbox("Before", ended, index=1, format_func=label)
after = st.selectbox("After", ended, index=0, format_func=label)
if before == after:
    st.info("Choose two runs.")
    st.stop()
try:
    comparison = data.comparison(url, before, after)
except SurgeproofError as exc:
    st.error(str(exc))
    st.stop()

for note in comparison.notes:
    st.warning(note)
(differences,) = comparison.differences
show = {ExitCode.PASS: st.success, ExitCode.FAIL: st.error}.get(comparison.exit_code, st.warning)
show(comparison_line(differences))
groups = list(dict.fromkeys(d.group for d in differences))
group = st.segmented_control("Requests", groups, default=groups[0]) or groups[0]
table = pd.DataFrame(
    {
        "figure": d.metric,
        f"run {before}": number(d.before),
        f"run {after}": number(d.after),
        "difference (bounds)": difference(d),
        "": mark(d),
    }
    for d in sorted(differences, key=lambda one: one.verdict is None)
    if d.group == group
)
st.dataframe(table, hide_index=True, width="stretch")

column = st.radio("Latency", list(charts.LATENCIES), format_func=charts.LATENCIES.__getitem__, horizontal=True)
frames = [data.latencies(url, run_id).assign(run=f"run {run_id}") for run_id in (before, after)]
st.altair_chart(charts.distribution(pd.concat(frames), column, charts.LATENCIES[column], by="run"), width="stretch")
