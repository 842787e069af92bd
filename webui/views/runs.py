"""The list of stored runs."""

import pandas as pd
import streamlit as st

from surgeproof.slo.wording import when
from surgeproof.webui import data

st.title("Runs")
heads = data.runs_or_stop(data.database_url())
table = pd.DataFrame(
    {
        "run": run.id,
        "started (UTC)": when(run.started_at_ns),
        "name": run.name,
        "state": run.state,
        "verdict": run.verdict or "–",
        "model": run.model,
        "endpoint": run.base_url,
        "tags": " ".join(f"{key}={value}" for key, value in run.metadata.items()),
    }
    for run in heads
)
chosen = st.dataframe(
    table, hide_index=True, width="stretch", on_select="rerun", selection_mode="single-row", key="runs"
)
rows = chosen["selection"]["rows"]
if rows:
    st.session_state["run_id"] = int(table.iloc[rows[0]]["run"])
    st.switch_page("views/one_run.py")
st.caption("Select a row to open the run.")
