"""Which part of a profile a short run plays: drawn by the seed, or named by `window_s`. Pure.

An hour of traffic holds busy and quiet minutes: a run that always began with the first would tell of
those alone.
"""

import math
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.autocorrelation import autocorrelation_time
from surgeproof.scenario import LoadConfig
from surgeproof.seeds import Dimension, generator
from surgeproof.traces.profile import Profile

Floats = npt.NDArray[np.float64]

_SAME_RATE = 0.05
"""Windows whose rates differ by less are taken as equally busy."""


class Part(NamedTuple):
    """A stretch of a profile's time, s; `start_s` is the start of a coarse window."""

    start_s: float
    length_s: float


def choose_part(load: LoadConfig, profile: Profile, length_s: float) -> Part | None:
    """The part that a run plays; None for the whole.

    Args:
        load: its window, if it names one, or else its seed.
        profile: what is played.
        length_s: time of the profile that the run plays.
    """
    model = profile.arrivals
    if load.window_s is not None:
        start_s = load.window_s[0] // model.coarse_window_s * model.coarse_window_s
        return Part(min(start_s, model.span_s - model.coarse_window_s), length_s)
    last = int((model.span_s - length_s) // model.coarse_window_s)
    if last < 1:
        return None
    # Parts of repetitions lie evenly over the profile, from one random place on (systematic sampling).
    number, of = load.repetition
    place = (generator(load.seed - number, Dimension.PART).random() + number / of) % 1
    return Part(int(place * (last + 1)) * model.coarse_window_s, length_s)


def starting_at(profile: Profile, start_s: float) -> Profile:
    """The profile from a moment on; what came before it follows at its end. A recording ends where it ends."""
    model, marks = profile.arrivals, profile.marks
    first = round(start_s / model.coarse_window_s)
    rates = np.roll(np.array(model.rates_per_s), -first)
    rows = np.array(marks.rows if marks.rows is not None else range(len(marks.mix)))
    # Lengths of windows past the last row are those of the last row.
    rows = np.roll(rows[np.minimum(np.arange(len(rates)), len(rows) - 1)], -first)
    recording = profile.recording
    if recording is not None:
        at_us = np.cumsum(np.array(recording.steps_us, dtype=np.int64))
        kept = int(np.searchsorted(at_us, round(start_s * 1e6)))
        steps_us = np.diff(at_us[kept:], prepend=round(start_s * 1e6))
        recording = msgspec.structs.replace(
            recording,
            steps_us=tuple(steps_us.tolist()),
            input_tokens=recording.input_tokens[kept:],
            output_tokens=recording.output_tokens[kept:],
        )
    return msgspec.structs.replace(
        profile,
        arrivals=msgspec.structs.replace(model, rates_per_s=tuple(rates.tolist())),
        marks=msgspec.structs.replace(marks, rows=tuple(rows.tolist())),
        recording=recording,
    )


def left_out_share(load: LoadConfig, profile: Profile, part: Part) -> float:
    """Share of the profile's requests that are due in busier windows than any that is played.

    With `request_rate` windows are compared by their share of the mean rate, that of the run and of the whole. A window
    that the user names is what the run is about: it leaves out nothing.
    """
    if load.window_s is not None:
        return 0.0
    rates = np.array(profile.arrivals.rates_per_s)
    played = _rates_played(profile, part)
    mean = played.mean() if load.request_rate is not None else rates.mean()
    if mean <= 0:
        return 1.0
    busier = rates / rates.mean() > played.max() / mean * (1 + _SAME_RATE)
    return float(rates[busier].sum() / rates.sum())


def part_notes(load: LoadConfig, profile: Profile, part: Part) -> list[str]:
    """Which part is played, how it compares with the whole, and what it cannot show."""
    model = profile.arrivals
    mean = model.mean_rate_per_s
    shares, played = np.array(model.rates_per_s) / mean, _rates_played(profile, part) / mean
    ends_min = (part.start_s / 60, (part.start_s + part.length_s) / 60)
    chosen = "the window asked for" if load.window_s is not None else f"seed {load.seed}"
    which = (
        f"profile: {chosen} plays minutes {ends_min[0]:.3g} to {ends_min[1]:.3g} of {model.span_s / 60:.3g}, at "
        f"{played.mean():.0%} of its mean rate ({played.min():.0%} to {played.max():.0%} by window; in the whole "
        f"{shares.min():.0%} to {shares.max():.0%})"
    )
    notes = [which]
    left_out = left_out_share(load, profile, part)
    if left_out > 0:
        start_s = _busiest_start_s(profile, part.length_s)
        notes.append(
            f"profile: {left_out:.0%} of its requests are due in busier minutes than these, so that objectives "
            f"of which fewer may miss cannot PASS; --window {start_s:.0f},{start_s + part.length_s:.0f} plays the "
            "busiest part, --repeat several parts"
        )
    level_s = autocorrelation_time(shares) * model.coarse_window_s
    if part.length_s < level_s:
        notes.append(
            f"profile: its rate stays alike for about {level_s / 60:.2g} minutes, longer than this run: "
            "one run shows one level of it"
        )
    return notes


def _rates_played(profile: Profile, part: Part) -> Floats:
    """Rates of the windows that a part touches."""
    model = profile.arrivals
    count = max(1, math.ceil(part.length_s / model.coarse_window_s - 1e-9))
    return np.roll(np.array(model.rates_per_s), -round(part.start_s / model.coarse_window_s))[:count]


def _busiest_start_s(profile: Profile, length_s: float) -> float:
    """Where a part of this length holds the busiest window, and around it the most requests."""
    model = profile.arrivals
    rates = np.array(model.rates_per_s)
    count = min(len(rates), max(1, math.ceil(length_s / model.coarse_window_s - 1e-9)))
    totals = np.convolve(rates, np.ones(count), "valid")
    peak = int(rates.argmax())
    starts = np.arange(max(0, peak - count + 1), min(peak, len(totals) - 1) + 1)
    return float(starts[totals[starts].argmax()] * model.coarse_window_s)
