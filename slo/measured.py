"""The records of a run as columns, and the latencies that follow from them. Pure numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from surgeproof.records import Phase

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TIMES = (
    "intended_at_ns", "dispatched_at_ns", "connect_at_ns", "connected_at_ns", "sent_at_ns",
    "headers_at_ns", "first_byte_at_ns", "first_event_at_ns", "first_token_at_ns",
    "first_answer_at_ns", "last_token_at_ns", "done_at_ns",
)  # fmt: skip
NUMBERS = (
    "tpot_ns", "max_gap_ns", "input_tokens", "output_tokens", "cached_tokens", "planned_input_tokens",
    "planned_output_tokens", "http_status", "token_events", "retries", "step", "worker",
)  # fmt: skip
TEXTS = ("request_class", "phase", "outcome", "stamp_source", "finish_reason", "warnings")
COLUMNS = TIMES + NUMBERS + TEXTS
_SHED_STATUS = (429, 503)
_MISSING = np.iinfo(np.int64).min


class Measured:
    """Records as columns; missing numbers are NaN, times are seconds since the run's first one.

    Args:
        columns: values by column name of `COLUMNS`; None where missing.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.texts = {name: np.asarray(columns[name], dtype=object) for name in TEXTS}
        self.count = len(self.texts["outcome"])
        # Epoch nanoseconds do not fit a double exactly: differences are taken as integers.
        self._times_ns = {name: _integers(columns[name]) for name in TIMES}
        origin_ns = int(self._times_ns["intended_at_ns"].min()) if self.count else 0
        self.times_s = {name: _seconds(values, origin_ns) for name, values in self._times_ns.items()}
        self.numbers = {name: _floats(columns[name]) for name in NUMBERS}
        outcome = self.texts["outcome"]
        self.ok: Mask = outcome == "ok"
        self.sent: Mask = (outcome != "not_sent") & (outcome != "cancelled")
        self.main: Mask = self.texts["phase"] == Phase.MAIN
        self.judged: Mask = self.main & self.sent
        self.shed: Mask = np.isin(self.numbers["http_status"], _SHED_STATUS)

    def of_class(self, name: str) -> Mask:
        """Records of one class, or of all."""
        if name == "all":
            return np.ones(self.count, dtype=np.bool_)
        chosen: Mask = self.texts["request_class"] == name
        return chosen

    def latency_ms(self, metric: str, view: str = "response") -> Floats:
        """A latency of every record, ms; NaN where it has none.

        Args:
            metric: one of `rules.LATENCIES`.
            view: `response` counts from the intended time, `service` from the send.
        """
        if metric == "tpot":
            return self.numbers["tpot_ns"] / 1e6
        if metric == "max_gap":
            return self.numbers["max_gap_ns"] / 1e6
        end = {"ttft": "first_token_at_ns", "first_answer": "first_answer_at_ns", "e2e": "done_at_ns"}[metric]
        start = "intended_at_ns" if view == "response" else "sent_at_ns"
        ends, starts = self._times_ns[end], self._times_ns[start]
        known = (ends != _MISSING) & (starts != _MISSING)
        return np.where(known, (ends - np.where(known, starts, ends)) / 1e6, np.nan)

    def window_s(self, mask: Mask) -> tuple[float, float]:
        """The load window of some records: first planned time to the last end, seconds."""
        if not mask.any():
            return 0.0, 0.0
        ends = self.times_s["done_at_ns"][mask]
        start = float(np.nanmin(self.times_s["intended_at_ns"][mask]))
        end = float(np.nanmax(ends)) if not np.isnan(ends).all() else start
        return start, end


def _floats(values: Any) -> Floats:
    return np.array(values, dtype=np.float64)


def _integers(values: Any) -> npt.NDArray[np.int64]:
    return np.array([_MISSING if value is None else value for value in values], dtype=np.int64)


def _seconds(values: npt.NDArray[np.int64], origin_ns: int) -> Floats:
    known = values != _MISSING
    return np.where(known, (np.where(known, values, origin_ns) - origin_ns) / 1e9, np.nan)
