"""When the event loop last saw a socket empty: how early what a read found can have come.

A turn of the loop waits for sockets, reads those that are readable, and waits again. A socket that a wait
did not report was empty when that wait began. Where the loop slept, nothing was there until it was
woken, less the time that the scheduler let it wait for a core.
"""

from collections.abc import Callable
from typing import Any, Protocol

from surgeproof.loadgen.host_cpu import SchedulerDelay

_SLEPT_NS = 1_000_000
"""A wait that is longer than the scheduler's delay by so much was a sleep; a slow host takes tens of us without one."""
_MIN_REPORTED = 64
"""libev's waits report so many descriptors, and more after they had to; with fewer, all that were readable."""
_OTHERS = 16
"""Descriptors that are no connection's: timers, Locust's own."""
_MAX_PROMPT = 4
"""Where more sockets were readable at once, data may have gathered while a hypervisor had the core."""
_SAMPLE_NS = 5_000_000
"""How often the scheduler's delay is noted, which costs a system call."""
_WAKE_NS = 100_000
"""From the arrival of data to the loop's next step, on an idle core."""


class Delay(Protocol):
    """A source of the scheduler's delay."""

    def total_ns(self) -> int | None:
        """So far; None where nothing tells."""
        ...

    def close(self) -> None:
        """Not needed any more."""
        ...


class Turns:
    """Follows the turns of one event loop.

    Args:
        loop: gevent's event loop.
        now_ns: the run's clock.
        delay: how long this thread waited for a core.

    Attributes:
        reading_at_ns: when this turn's reading began.
        empty_at_ns: a socket that was not read in the turn before was empty then.
    """

    def __init__(self, loop: Any, now_ns: Callable[[], int], delay: Delay | None = None) -> None:
        self.reading_at_ns = self.empty_at_ns = 0
        self._now_ns = now_ns
        self._wait_at_ns = self._complete_wait_at_ns = self._woke_at_ns = 0
        self._reported, self._surely_all = 0, _MIN_REPORTED - _OTHERS
        self._delay: Delay = delay or SchedulerDelay()
        self._delay_ns, self._delay_at_ns = self._delay.total_ns() or 0, 0
        # First after the wait, before anything that it reported is handled.
        self._waking = loop.check(priority=loop.MAXPRI)
        self._waking.start(self._on_wake)

    def begin(self, reported: int) -> None:
        """The sockets that the last wait reported, so many, are about to be read."""
        self._reported = reported
        self.empty_at_ns = self._complete_wait_at_ns
        if reported < self._surely_all:
            self._complete_wait_at_ns = self._wait_at_ns
        self._surely_all = max(self._surely_all, reported - _OTHERS)
        self.reading_at_ns = self._now_ns()

    def end(self) -> None:
        """All that is there has been read; the loop is about to wait."""
        self._wait_at_ns = self._now_ns()
        # Before a wait, never after: what delayed the loop in it must not be taken for earlier.
        if self._wait_at_ns - self._delay_at_ns > _SAMPLE_NS:
            self._delay_ns, self._delay_at_ns = self._delay.total_ns() or 0, self._wait_at_ns

    def settled_ns(self) -> int:
        """The best that is known of when the sockets of this turn were empty; dearer than `empty_at_ns`."""
        slept_ns = self._woke_at_ns - self._wait_at_ns
        if slept_ns <= _SLEPT_NS or self._reported > _MAX_PROMPT:
            return self.empty_at_ns
        total_ns = self._delay.total_ns()
        if total_ns is None:
            return self.empty_at_ns
        delay_ns = max(0, total_ns - self._delay_ns)
        if slept_ns - delay_ns <= _SLEPT_NS:
            return self.empty_at_ns
        return max(self.empty_at_ns, self._woke_at_ns - delay_ns - _WAKE_NS)

    def close(self) -> None:
        """Stop following."""
        self._waking.stop()
        self._waking.close()
        self._delay.close()

    def _on_wake(self) -> None:
        self._woke_at_ns = self._now_ns()
