"""Other rates from one profile: four ways, each of which changes burstiness differently. Pure.

superpose s   s independent copies under the same daily shape: rates x s, a x s
intensify s   the same bursts, each s times as strong: rates x s
thin p        each request kept with probability p
compress s    the same requests in 1/s of the time: windows / s, rates x s
"""

from typing import NamedTuple

import msgspec

from surgeproof.errors import ConfigError
from surgeproof.traces.profile import Profile

MODES = ("superpose", "intensify", "thin", "compress")
EFFECTS = {
    "superpose": "independent copies under one rate curve: bursts within a window stay as fitted, the curve's own "
    "swings grow by the factor",
    "intensify": "the same bursts made stronger: dispersion minus 1 grows by the factor",
    "thin": "requests left out at random: dispersion minus 1 shrinks by the factor",
    "compress": "time divided by the factor: dispersion at a lag is that of the factor times the lag, "
    "and think times shrink with it",
}


class Scaled(NamedTuple):
    """A profile at another rate; of its requests the share `kept` is to be kept at random."""

    profile: Profile
    kept: float = 1.0


def default_mode(profile: Profile, factor: float) -> str:
    """More users are independent ones; fewer are a random part of those seen. A recording cannot be multiplied."""
    if factor < 1:
        return "thin"
    return "superpose" if profile.recording is None else "compress"


def scale(profile: Profile, mode: str, factor: float) -> Scaled:
    """Change a profile's rate by a factor.

    Args:
        profile: the fitted profile.
        mode: one of `MODES`.
        factor: new rate over old.

    Raises:
        ConfigError: the mode cannot give this factor.
    """
    if mode == "thin":
        if factor > 1:
            raise ConfigError(
                f"scale thin drops requests: it cannot produce {factor:.3g} times as many as the profile has "
                "in the time that is sent; use superpose, intensify or compress"
            )
        return Scaled(profile, factor)
    if profile.recording is not None:
        if mode != "compress":
            raise ConfigError(f"an exact profile cannot be scaled by {mode}: use thin or compress, or fit a model")
        steps_us = tuple(round(step / factor) for step in profile.recording.steps_us)
        profile = msgspec.structs.replace(
            profile, recording=msgspec.structs.replace(profile.recording, steps_us=steps_us)
        )
    model = profile.arrivals
    changes: dict[str, object] = {"rates_per_s": tuple(rate * factor for rate in model.rates_per_s)}
    if mode == "superpose" and model.modulator is not None:
        changes["modulator"] = msgspec.structs.replace(model.modulator, a=model.modulator.a * factor)
    if mode == "compress":
        changes |= {
            "coarse_window_s": model.coarse_window_s / factor,
            "fine_window_s": model.fine_window_s / factor,
        }
    return Scaled(msgspec.structs.replace(profile, arrivals=msgspec.structs.replace(model, **changes)))
