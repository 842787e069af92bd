"""Protocols of what is passed to the open and the closed loop: clock, timer and sender.

Pure: neither gevent nor a socket is needed to drive a loop.
"""

from collections.abc import Callable
from typing import Protocol

from surgeproof.records import RequestPlan, StreamRecord

OnRecord = Callable[[StreamRecord, RequestPlan], None]


class Clock(Protocol):
    """The run's clock."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class Timer(Protocol):
    """Calls a loop once for each `set`."""

    def set(self, at_ns: int) -> None:
        """Fire at this time of the run's clock; at once if it has passed."""
        ...

    def cancel(self) -> None:
        """Do not fire."""
        ...


class RequestSender(Protocol):
    """Request bytes ahead of time, a send now, and how many requests are unanswered."""

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        ...

    def payload(self, plan: RequestPlan) -> bytes:
        """The request's bytes."""
        ...

    def forget(self, plan: RequestPlan) -> None:
        """The request will not be sent: what was kept for it can go."""
        ...

    def send(
        self, plan: RequestPlan, payload: bytes, intended_at_ns: int, phase: str, step: int, on_record: OnRecord
    ) -> None:
        """Send now; `on_record` is called once, when the request has ended."""
        ...
