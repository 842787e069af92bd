"""A timer that wakes the event loop at an absolute time, to the microsecond.

libev rounds its own timers up to whole milliseconds; a Linux timerfd does not. Elsewhere the
loop's timer serves, and the send lag shows its millisecond.
"""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from surgeproof.clock import MonotonicClock

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = 0o4000 | 0o2000000  # TFD_NONBLOCK | TFD_CLOEXEC


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class WakeTimer:
    """Calls back once for each `set`, in a hub callback.

    Args:
        loop: gevent's event loop.
        callback: called when the time has come; may set the timer again.
    """

    def __init__(self, loop: Any, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._fd = _timerfd() if sys.platform == "linux" else None
        if self._fd is not None:
            self._watcher = loop.io(self._fd, 1)
            self._watcher.start(self._fired)
        else:
            self._watcher = None

    def set(self, monotonic_ns: int, now_ns: int) -> None:
        """Fire at this time of CLOCK_MONOTONIC; at once if it has passed."""
        if self._fd is not None:
            due = max(monotonic_ns, 1)
            spec = _TimerSpec(0, 0, due // 1_000_000_000, due % 1_000_000_000)
            _libc().timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
            return
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
        self._watcher = self._loop.timer(max(0.0, (monotonic_ns - now_ns) / 1e9))
        self._watcher.start(self._callback)

    def close(self) -> None:
        """Stop for good."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _fired(self) -> None:
        if self._fd is None:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._callback()


NEVER_NS = 1 << 62
"""A monotonic time that is never reached."""


class Busy(Protocol):
    """A client that looks at the schedule between its reads, of which a turn of the loop may have hundreds."""

    loop: Any
    next_due_ns: int
    on_due: Callable[[], None]


class DispatchTimer:
    """Fires at times of the run's clock, by the event loop or between two reads of a busy client.

    Args:
        client: the client of the same process.
        clock: the run's clock.
        callback: called when the time has come; may set the timer again.
    """

    def __init__(self, client: Busy, clock: MonotonicClock, callback: Callable[[], None]) -> None:
        self._client, self._clock, self._callback = client, clock, callback
        self._timer = WakeTimer(client.loop, self._fire)
        client.on_due = self._fire

    def set(self, at_ns: int) -> None:
        """Fire at this time of the run's clock; at once if it has passed."""
        due_ns = at_ns - self._clock.anchor_ns
        self._client.next_due_ns = due_ns
        self._timer.set(due_ns, time.monotonic_ns())

    def cancel(self) -> None:
        """Do not fire between reads any more; a pending timer has no effect."""
        self._client.next_due_ns = NEVER_NS

    def close(self) -> None:
        """Stop for good."""
        self.cancel()
        self._timer.close()

    def _fire(self) -> None:
        self._client.next_due_ns = NEVER_NS
        self._callback()


def _libc() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(None, use_errno=True)
    return _loaded


_loaded: ctypes.CDLL | None = None


def _timerfd() -> int | None:
    fd = _libc().timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
    return fd if fd >= 0 else None
