"""One clock for a host: monotonic time, moved once onto the Unix epoch.

`Clock` is what the rest of the program asks for, so that tests can pass a `ManualClock`. The real
clock reads CLOCK_MONOTONIC and adds a fixed anchor: a wall clock that steps during a run moves
nothing. It knows nothing about other hosts.
"""

import time
from typing import Protocol


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


class Clock(Protocol):
    """Tells the time on the run's clock."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch, never going back."""
        ...


class MonotonicClock:
    """The real clock.

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


class ManualClock:
    """A clock that stands still until told to move; for tests."""

    def __init__(self, now_ns: int = 0) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        """The time it was set to."""
        return self.time_ns

    def advance_ms(self, milliseconds: float) -> int:
        """Move on and return the new time."""
        self.time_ns += round(milliseconds * 1e6)
        return self.time_ns
