"""One clock for a host: monotonic time, moved once onto the Unix epoch.

The clock reads CLOCK_MONOTONIC and adds a fixed anchor: a wall clock that steps during a run moves
nothing. How far another host's clock is ahead is estimated from exchanged time stamps, as NTP does;
pure modules get times as arguments and never read a clock.
"""

import time
from collections.abc import Iterable

import msgspec


def measure_anchor_ns(samples: int = 16) -> int:
    """Return realtime minus monotonic time in ns, from the tightest of a few paired reads."""
    best_width, anchor = 1 << 62, 0
    for _ in range(samples):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_width:
            best_width, anchor = after - before, wall - (before + after) // 2
    return anchor


class MonotonicClock:
    """The clock of one process.

    Args:
        anchor_ns: realtime minus monotonic; measured now where not given. Workers on one host
            share the master's anchor, so that their stamps are on one axis.
    """

    __slots__ = ("anchor_ns",)

    def __init__(self, anchor_ns: int | None = None) -> None:
        self.anchor_ns = measure_anchor_ns() if anchor_ns is None else anchor_ns

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch, never going back."""
        return time.monotonic_ns() + self.anchor_ns


class ClockOffset(msgspec.Struct, frozen=True):
    """How far another clock is ahead of ours.

    Attributes:
        ahead_ns: their time minus ours.
        uncertainty_ns: maximum error of the offset, even if the network path is asymmetric.
    """

    ahead_ns: int
    uncertainty_ns: int


def estimate_offset(exchanges: Iterable[tuple[int, int, int, int]]) -> ClockOffset:
    """The offset by the tightest of some exchanges of time stamps (RFC 5905, section 8).

    Args:
        exchanges: (asked, received, replied, answered) in ns; the middle two by their clock.
    """
    tightest = min(exchanges, key=lambda e: (e[3] - e[0]) - (e[2] - e[1]))
    asked, received, replied, answered = tightest
    round_trip = (answered - asked) - (replied - received)
    return ClockOffset(((received - asked) + (replied - answered)) // 2, (round_trip + 1) // 2)
