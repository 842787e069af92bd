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
from surgeproof.slo.rules import PER_GPU, TASK_RATE, WHEN, Selector

_BLOCKS = 16
_MAX_TRANSIENT = 0.25
"""At most this share of a load is left out as its initial transient, where no warm-up was asked for."""


class LoadWindow(msgspec.Struct, frozen=True):
    """The time of one run over which rates are taken, seconds since the first planned time.

    Attributes:
        start_s: end of the warm-up; without one, the time that 95 % of answers take after the first plan.
        end_s: the last planned time.
        of: records of the run, shape (n,).
        warmed_up: whether a warm-up was asked for.
        whole: whether the load was over before half of the answers came, or was a few requests: then the window
            is the whole time from the first planned one to the last answer.
    """

    start_s: float
    end_s: float
    of: Mask
    warmed_up: bool
    whole: bool

    @property
    def length_s(self) -> float:
        """Its length, s."""
        return self.end_s - self.start_s

    def contains(self, at_s: Floats) -> Mask:
        """Which times lie in it."""
        inside: Mask = (at_s >= self.start_s) & (at_s <= self.end_s)
        return inside


def load_windows(measured: Measured, selectors: Sequence[Selector] = ()) -> list[LoadWindow]:
    """The window of each run's main phase; of another phase or of one step where selectors name it."""
    when = measured.selected(one for one in selectors if one.column in WHEN)
    named = any(one.column == "phase" for one in selectors)
    load = when & (measured.sent if named else measured.judged)
    windows = [_window(measured, run, run & load, named=named) for run in measured.by_run()]
    return [window for window in windows if window is not None]


def _window(measured: Measured, run: Mask, load: Mask, *, named: bool) -> LoadWindow | None:
    if not load.any():
        return None
    planned_s, done_s = measured.times_s["intended_at_ns"], measured.times_s["done_at_ns"]
    start, end = float(planned_s[load].min()), float(planned_s[load].max())
    took_s = (done_s - planned_s)[load & measured.ok]
    took_s = took_s[~np.isnan(took_s)]
    if load.sum() < _BLOCKS or end - start <= (float(np.median(took_s)) if len(took_s) else 0.0):
        ends = done_s[load]
        last = float(np.nanmax(ends)) if not np.isnan(ends).all() else end
        return LoadWindow(start, last, run, warmed_up=False, whole=True) if last > start else None
    warmed_up = not named and bool((run & _same_steps(measured, load) & measured.sent & ~measured.main).any())
    if not warmed_up and len(took_s):
        start += min(float(np.quantile(took_s, 0.95)), _MAX_TRANSIENT * (end - start))
    return LoadWindow(start, end, run, warmed_up, whole=False)


def wording(windows: Sequence[LoadWindow]) -> str:
    """Which time rates are over, for a reader."""
    of_runs = f" of {len(windows)} runs" if len(windows) > 1 else ""
    over = f"over {sum(window.length_s for window in windows):.4g} s{of_runs}"
    if any(window.whole for window in windows):
        return f"{over}, to the last answer: the load was too short for a steady state"
    warmed_up = all(window.warmed_up for window in windows)
    start = "the end of the warm-up" if warmed_up else "the first answers on (there was no warm-up)"
    return f"{over}, from {start} to the end of the load"


def _same_steps(measured: Measured, load: Mask) -> Mask:
    steps = measured.numbers["step"]
    return np.isin(steps, np.unique(steps[load])) | np.isnan(steps)


def counted(measured: Measured, request_class: str, selectors: Sequence[Selector]) -> Mask:
    """Answered requests whose arrivals count: in a window it does not matter which phase or step sent them."""
    what = [one for one in selectors if one.column not in WHEN]
    return measured.of_class(request_class) & measured.selected(what) & measured.ok


class Arrived(msgspec.Struct, frozen=True):
    """Amounts that arrived in each of 16 equal parts of every window; NaN amounts count as nothing.

    Attributes:
        parts: shape (16 * windows,).
        lengths_s: of the parts.
        count: requests of which something arrived.
    """

    parts: Floats
    lengths_s: Floats
    count: int

    @property
    def per_s(self) -> float:
        """Mean rate."""
        return float(self.parts.sum() / self.lengths_s.sum())

    @property
    def interval(self) -> Interval:
        """Its bounds; None ends for too few requests."""
        return ratio_interval(self.parts, self.lengths_s) if self.count >= _BLOCKS else Interval(None, None)


def arrived(measured: Measured, what: str, of: Mask, windows: Sequence[LoadWindow]) -> Arrived:
    """How much of something arrived.

    Args:
        measured: the run.
        what: `requests`, `input_tokens`, `output_tokens` or `items`.
        of: the requests that count.
        windows: when; at least one.
    """
    starts, ends = _arrival_span(measured, what)
    amounts = np.ones(measured.count) if what == "requests" else np.nan_to_num(measured.numbers[what])
    parts, count = [], 0
    for window in windows:
        inside = of & window.of & (ends > window.start_s) & (starts <= window.end_s)
        parts.append(_parts(starts[inside], ends[inside], amounts[inside], window))
        count += int(inside.sum())
    lengths_s = np.repeat([window.length_s / _BLOCKS for window in windows], _BLOCKS)
    return Arrived(np.concatenate(parts), lengths_s, count)


def _parts(starts: Floats, ends: Floats, amounts: Floats, window: LoadWindow) -> Floats:
    """What arrived in each part of a window, of amounts that are spread evenly from start to end."""
    spread = ends > starts
    lengths = np.where(spread, ends - starts, 1.0)
    until = [
        float((amounts * np.where(spread, np.clip((edge - starts) / lengths, 0.0, 1.0), ends <= edge)).sum())
        for edge in np.linspace(window.start_s, window.end_s, _BLOCKS + 1)
    ]
    return np.diff(until)


def _arrival_span(measured: Measured, what: str) -> tuple[Floats, Floats]:
    """When each request's amount began and ended to arrive; the end of the answer where nothing else is known."""
    done = measured.times_s["done_at_ns"]
    first, last = measured.times_s["first_token_at_ns"], measured.times_s["last_token_at_ns"]
    if what in ("requests", "items"):
        return done, done
    first = np.where(np.isnan(first), done, first)
    if what == "input_tokens":
        return first, first
    return first, np.where(np.isnan(last), np.fmax(first, done), last)


def in_flight(measured: Measured, of: Mask, windows: Sequence[LoadWindow]) -> float:
    """Mean number of requests on the wire."""
    spent_s = 0.0
    for window in windows:
        chosen = of & window.of
        starts, ends = measured.times_s["sent_at_ns"][chosen], measured.times_s["done_at_ns"][chosen]
        ends = np.where(np.isnan(ends), window.end_s, ends)
        overlap_s = np.minimum(ends, window.end_s) - np.maximum(starts, window.start_s)
        spent_s += float(np.nansum(np.maximum(overlap_s, 0.0)))
    return spent_s / _length_s(windows) if windows else 0.0


def begun_per_s(measured: Measured, time: str, of: Mask, windows: Sequence[LoadWindow]) -> float:
    """Requests a second whose `time` (a column of times) lies in a window."""
    at_s = measured.times_s[time]
    count = sum(int((of & window.of & (at_s >= window.start_s) & (at_s < window.end_s)).sum()) for window in windows)
    return count / _length_s(windows)


def _length_s(windows: Sequence[LoadWindow]) -> float:
    return sum(window.length_s for window in windows)


def amount_of(metric: str) -> str:
    """What a rate's metric counts: `output_tokens_per_s_per_gpu` counts `output_tokens`."""
    return "requests" if metric == TASK_RATE else metric.removesuffix(PER_GPU).removesuffix("_per_s")
