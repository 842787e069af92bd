"""Rates of a load in steady state: what arrives from the end of the warm-up to the end of the load. Pure.

The wait for the last answers is left out, in which nothing is sent any more (Law, Simulation Modeling
and Analysis, chapter 9). What counts is when something arrived, not when its request was sent: a
request is counted when its answer ends, output tokens evenly from the first to the last, prompt tokens
at the first token.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from surgeproof.results import Interval
from surgeproof.slo.intervals import Floats
from surgeproof.slo.means import ratio_interval
from surgeproof.slo.measured import Mask, Measured
from surgeproof.slo.rules import PER_GPU, WHEN, Selector

_BLOCKS = 16
_LONGEST_FILL = 0.25
"""At most this share of a load is left out where no warm-up was asked for."""


class LoadWindow(msgspec.Struct, frozen=True):
    """The time over which rates are taken, seconds since the run's first planned time.

    Attributes:
        start_s: end of the warm-up; without one, the time that 95 % of answers take after the first plan.
        end_s: the last planned time.
        warmed_up: whether a warm-up was asked for.
        whole: whether the load was over before half of the answers came, or was a few requests: then the window
            is the whole time from the first planned one to the last answer.
    """

    start_s: float
    end_s: float
    warmed_up: bool
    whole: bool

    @property
    def length_s(self) -> float:
        """Its length, s."""
        return self.end_s - self.start_s

    @property
    def wording(self) -> str:
        """Which time it is, for a reader."""
        if self.whole:
            return f"over {self.length_s:.4g} s, to the last answer: the load was too short for a steady state"
        start = "the end of the warm-up" if self.warmed_up else "the first answers on (there was no warm-up)"
        return f"over {self.length_s:.4g} s, from {start} to the end of the load"


def load_window(measured: Measured, selectors: Sequence[Selector] = ()) -> LoadWindow | None:
    """The window of the main phase; of another phase or of one step where selectors name it. None without requests."""
    when = measured.selected(one for one in selectors if one.column in WHEN)
    named = any(one.column == "phase" for one in selectors)
    load = when & (measured.sent if named else measured.judged)
    if not load.any():
        return None
    planned_s, done_s = measured.times_s["intended_at_ns"], measured.times_s["done_at_ns"]
    start, end = float(planned_s[load].min()), float(planned_s[load].max())
    took_s = (done_s - planned_s)[load & measured.ok]
    took_s = took_s[~np.isnan(took_s)]
    if load.sum() < _BLOCKS or end - start <= (float(np.median(took_s)) if len(took_s) else 0.0):
        ends = done_s[load]
        last = float(np.nanmax(ends)) if not np.isnan(ends).all() else end
        return LoadWindow(start, last, warmed_up=False, whole=True) if last > start else None
    warmed_up = not named and bool((_same_steps(measured, load) & measured.sent & ~measured.main).any())
    if not warmed_up and len(took_s):
        start += min(float(np.quantile(took_s, 0.95)), _LONGEST_FILL * (end - start))
    return LoadWindow(start, end, warmed_up, whole=False)


def _same_steps(measured: Measured, load: Mask) -> Mask:
    steps = measured.numbers["step"]
    return np.isin(steps, np.unique(steps[load])) | np.isnan(steps)


def counted(measured: Measured, request_class: str, selectors: Sequence[Selector]) -> Mask:
    """Answered requests whose arrivals count: in a window it does not matter which phase or step sent them."""
    what = [one for one in selectors if one.column not in WHEN]
    return measured.of_class(request_class) & measured.selected(what) & measured.ok


class Arrived(msgspec.Struct, frozen=True):
    """Amounts that arrived in each of 16 equal parts of a window; NaN amounts count as nothing.

    Attributes:
        parts: shape (16,).
        window: the whole.
        count: requests of which something arrived.
    """

    parts: Floats
    window: LoadWindow
    count: int

    @property
    def per_s(self) -> float:
        """Mean rate."""
        return float(self.parts.sum()) / self.window.length_s

    @property
    def interval(self) -> Interval:
        """Its bounds; None ends for too few requests."""
        if self.count < _BLOCKS:
            return Interval(None, None)
        return ratio_interval(self.parts, np.full(_BLOCKS, self.window.length_s / _BLOCKS))


def arrived(measured: Measured, what: str, of: Mask, window: LoadWindow) -> Arrived:
    """How much of something arrived in a window.

    Args:
        measured: the run.
        what: `requests`, `input_tokens` or `output_tokens`.
        of: the requests that count.
        window: when.
    """
    starts, ends = _arrival_span(measured, what)
    amounts = np.ones(measured.count) if what == "requests" else np.nan_to_num(measured.numbers[what])
    inside = of & (ends > window.start_s) & (starts <= window.end_s)
    starts, ends, amounts = starts[inside], ends[inside], amounts[inside]
    edges = np.linspace(window.start_s, window.end_s, _BLOCKS + 1)
    lengths = np.where(ends > starts, ends - starts, 1.0)
    until = [
        float((amounts * np.where(ends > starts, np.clip((edge - starts) / lengths, 0.0, 1.0), ends <= edge)).sum())
        for edge in edges
    ]
    return Arrived(np.diff(until), window, int(inside.sum()))


def _arrival_span(measured: Measured, what: str) -> tuple[Floats, Floats]:
    """When each request's amount began and ended to arrive; the end of the answer where nothing else is known."""
    done = measured.times_s["done_at_ns"]
    first, last = measured.times_s["first_token_at_ns"], measured.times_s["last_token_at_ns"]
    if what == "requests":
        return done, done
    first = np.where(np.isnan(first), done, first)
    if what == "input_tokens":
        return first, first
    return first, np.where(np.isnan(last), np.fmax(first, done), last)


def in_flight(measured: Measured, of: Mask, window: LoadWindow) -> float:
    """Mean number of requests on the wire over a window."""
    starts, ends = measured.times_s["sent_at_ns"][of], measured.times_s["done_at_ns"][of]
    ends = np.where(np.isnan(ends), window.end_s, ends)
    overlap = np.minimum(ends, window.end_s) - np.maximum(starts, window.start_s)
    return float(np.nansum(np.maximum(overlap, 0.0))) / window.length_s


def begun_per_s(measured: Measured, time: str, of: Mask, window: LoadWindow) -> float:
    """Requests a second whose `time` (a column of times) lies in a window."""
    at_s = measured.times_s[time][of]
    return float(((at_s >= window.start_s) & (at_s < window.end_s)).sum()) / window.length_s


def amount_of(metric: str) -> str:
    """What a rate's metric counts: `output_tokens_per_s_per_gpu` counts `output_tokens`."""
    return metric.removesuffix(PER_GPU).removesuffix("_per_s")
