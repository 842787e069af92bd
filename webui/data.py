"""The pages' only way to the database, and their only cache. Figures come as `storage` stored them."""

import os
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from surgeproof.errors import SurgeproofError
from surgeproof.records import NS_PER_S
from surgeproof.runs.review import Comparison, compare_runs
from surgeproof.runs.stored import usable_gpu_samples
from surgeproof.slo.compare import Policy
from surgeproof.slo.measured import Measured
from surgeproof.storage.database_url import DEFAULT_DATABASE_URL
from surgeproof.storage.queries import get_run, list_runs, run_columns
from surgeproof.storage.store import open_engine
from surgeproof.stored_runs import Run, RunHead


def database_url() -> str:
    """The database that `surgeproof ui` was started with."""
    return os.environ.get("SURGEPROOF_DB", DEFAULT_DATABASE_URL)


@st.cache_resource
def engine(url: str) -> Any:
    """One engine a database."""
    return open_engine(url, create=False)


@st.cache_data(ttl=2)
def runs(url: str) -> list[RunHead]:
    """All runs, the newest first."""
    return list_runs(engine(url))


def runs_or_stop(url: str) -> list[RunHead]:
    """The runs, or a page that ends here with what to do."""
    try:
        heads: list[RunHead] = runs(url)
    except SurgeproofError as exc:
        st.info(str(exc))
        st.stop()
    if not heads:
        st.info("No runs yet. Start one with `surgeproof run`.")
        st.stop()
    return heads


@st.cache_data(ttl=2)
def run(url: str, run_id: int) -> Run:
    """One run."""
    return get_run(engine(url), run_id)


@st.cache_data(ttl=10)
def latencies(url: str, run_id: int) -> pd.DataFrame:
    """One row a judged request: class, planned time in seconds, latencies in ms, outcome."""
    measured = Measured(run_columns(engine(url), run_id))
    frame = pd.DataFrame(
        {
            "class": measured.texts["request_class"].values(),
            "planned_s": measured.times_s["intended_at_ns"],
            "ttft_ms": measured.latency_ms("ttft"),
            "e2e_ms": measured.latency_ms("e2e"),
            "tpot_ms": measured.latency_ms("tpot"),
            "outcome": measured.texts["outcome"].values(),
        }
    )
    judged: pd.DataFrame = frame[np.asarray(measured.judged)]
    return judged


@st.cache_data(ttl=10)
def comparison(url: str, before: int, after: int) -> Comparison:
    """Two runs against each other.

    Raises:
        UsageError: a run has not ended.
    """
    return compare_runs(url, (before, after), Policy())


@st.cache_data(ttl=10)
def gpu_shares(url: str, run_id: int) -> pd.DataFrame:
    """One row a GPU, second and figure: means in per cent, seconds since the first planned request."""
    samples = usable_gpu_samples(engine(url), run_id)
    columns = run_columns(engine(url), run_id)
    if not samples or not len(columns):
        return pd.DataFrame(columns=["gpu", "second", "figure", "percent"])
    origin = int(columns.integers("intended_at_ns").min())
    frame = pd.DataFrame(
        {
            "gpu": sample.gpu,
            "second": (sample.at_ns - origin) // NS_PER_S,
            "a kernel ran": sample.time_active_pct,
            "SM busy": sample.sm_pct,
            "tensor": sample.tensor_pct,
            "DRAM": sample.dram_pct,
        }
        for sample in samples
    )
    long = frame.melt(["gpu", "second"], var_name="figure", value_name="percent").dropna()
    return long.groupby(["gpu", "second", "figure"])[["percent"]].mean().reset_index()
