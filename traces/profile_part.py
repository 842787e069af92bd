"""Which part of a profile a short run plays: drawn by the seed, or named by `window_s`. Pure.

An hour of traffic holds busy and quiet minutes: a run that always began with the first would tell of
those alone.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from surgeproof.autocorrelation import autocorrelation_time
from surgeproof.scenario import LoadConfig
from surgeproof.seeds import Dimension, generator
from surgeproof.traces.profile import Profile


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
    return Part(int(generator(load.seed, Dimension.PART).integers(0, last + 1)) * model.coarse_window_s, length_s)


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


def part_notes(load: LoadConfig, profile: Profile, part: Part) -> list[str]:
    """Which part is played, how it compares with the whole, and whether it is too short to show it."""
    model = profile.arrivals
    shares = np.array(model.rates_per_s) / model.mean_rate_per_s
    first = round(part.start_s / model.coarse_window_s)
    played = np.roll(shares, -first)[: max(1, round(part.length_s / model.coarse_window_s))]
    ends_min = (part.start_s / 60, (part.start_s + part.length_s) / 60)
    chosen = "the window asked for" if load.window_s is not None else f"seed {load.seed}"
    sentence = (
        f"profile: {chosen} plays minutes {ends_min[0]:.3g} to {ends_min[1]:.3g} of {model.span_s / 60:.3g}, at "
        f"{played.mean():.0%} of its mean rate ({played.min():.0%} to {played.max():.0%} by window; in the whole "
        f"{shares.min():.0%} to {shares.max():.0%}); another --seed plays another part, --window START,END names one"
    )
    notes = [sentence]
    level_s = autocorrelation_time(shares) * model.coarse_window_s
    if part.length_s < level_s:
        notes.append(
            f"profile: its rate stays alike for about {level_s / 60:.2g} minutes, longer than this run: "
            f"one run shows one level of it; play {level_s / 60:.2g} minutes or more, or repeat with other seeds"
        )
    return notes
