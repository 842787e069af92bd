"""The load that this host's client can send, and its timing error: measured once, kept in the user's state folder.

`surgeproof calibrate` writes it; a run reads it, keeps it with its environment and warns when the plan
asks for more than the ceiling allows. It holds for one host with its number of cores.
"""

import os
import platform
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import StoreError

WARN_SHARE = 0.7
_PEAK_WINDOW_S = 10.0


class StampError(msgspec.Struct, frozen=True):
    """Error of our time to first token against the endpoint's own stamps, at one rate."""

    request_rate: float
    p50_ms: float
    p99_ms: float


class Ceiling(msgspec.Struct, frozen=True):
    """One host's figures, per worker process on a core of its own.

    Attributes:
        at: when, ISO 8601.
        host: its name.
        cores: usable cores at that time.
        events_per_s: the highest paced load at which the client's own audit passed.
        requests_per_s: the highest rate of one-token requests.
        stamp_errors: error bars by rate.
    """

    at: str
    host: str
    cores: int
    events_per_s: float
    requests_per_s: float
    stamp_errors: tuple[StampError, ...] = ()


def ceiling_path() -> Path:
    """Where it is kept: the XDG state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "surgeproof" / "calibration.json"


def save_ceiling(ceiling: Ceiling) -> Path:
    """Store the figures and return the path.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        path = ceiling_path()
    except RuntimeError as exc:
        raise StoreError("there is no home folder to keep the figures in: set XDG_STATE_HOME") from exc
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(ceiling)))
    except OSError as exc:
        raise StoreError(f"cannot write {path}: {exc.strerror}; set XDG_STATE_HOME to a folder you own") from exc
    return path


def load_ceiling() -> Ceiling | None:
    """This host's figures; None where there are none, or they are another host's."""
    try:
        result = msgspec.json.decode(ceiling_path().read_bytes(), type=Ceiling)
    except (OSError, msgspec.DecodeError, RuntimeError):
        # Without a home folder, as in many containers, nothing was kept.
        return None
    return result if result.host == platform.node() else None


def ceiling_note(
    ceiling: Ceiling, intended_ns: npt.NDArray[np.int64], output_tokens: npt.NDArray[np.int64], processes: int
) -> str | None:
    """A warning if an open-loop plan's busiest ten seconds need over 70 % of the ceiling.

    Args:
        ceiling: this host's figures.
        intended_ns: planned times, sorted.
        output_tokens: planned answers; each token is taken for one event.
        processes: worker processes.
    """
    if len(intended_ns) == 0 or intended_ns[0] < 0:
        return None
    windows = (intended_ns // int(_PEAK_WINDOW_S * 1e9)).astype(np.int64)
    seconds = min(_PEAK_WINDOW_S, max(1.0, float(intended_ns[-1]) / 1e9))
    events_per_s = float(np.bincount(windows, weights=output_tokens).max()) / seconds
    requests_per_s = float(np.bincount(windows).max()) / seconds
    share = max(events_per_s / ceiling.events_per_s, requests_per_s / ceiling.requests_per_s) / processes
    if share <= WARN_SHARE:
        return None
    needed = int(np.ceil(share * processes / WARN_SHARE))
    more = f"use --processes {needed}" if needed <= ceiling.cores else "spread the load over more hosts"
    return (
        f"the plan's busiest ten seconds ask for {requests_per_s:.0f} requests/s and {events_per_s:.0f} events/s, "
        f"{share:.0%} of what {processes} process{'es' if processes > 1 else ''} can do here "
        f"('surgeproof calibrate'): {more}"
    )
