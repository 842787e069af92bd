"""Arrival times of a stream as bytes: four an event, for spool and database. Pure."""

import struct
from operator import sub

import numpy as np

_MAX_STEP_US = 0xFFFFFFFF


def pack_arrivals(origin_ns: int, arrivals_at_ns: list[int]) -> bytes | None:
    """Arrival times as little-endian uint32 microsecond steps, the first from `origin_ns`.

    A step of over 71 minutes is stored as that.
    """
    if not arrivals_at_ns:
        return None
    at_us = [origin_ns // 1000, *(at_ns // 1000 for at_ns in arrivals_at_ns)]
    form = f"<{len(arrivals_at_ns)}I"
    try:
        return struct.pack(form, *map(sub, at_us[1:], at_us))
    except struct.error:
        return struct.pack(form, *(min(max(step, 0), _MAX_STEP_US) for step in map(sub, at_us[1:], at_us)))


def unpack_arrivals(packed: bytes | None) -> list[int]:
    """Microseconds since the origin of `pack_arrivals`, one for each event."""
    at_us: list[int] = np.cumsum(np.frombuffer(packed or b"", dtype="<u4").astype(np.int64)).tolist()
    return at_us
