"""What the open and the closed loop share: the parts that are passed in, and records of requests without an exchange.

Pure: neither gevent nor a socket is needed to drive a loop.
"""

from collections.abc import Callable
from typing import Protocol

from surgeproof.outcomes import Outcome
from surgeproof.records import RequestPlan, StreamRecord
from surgeproof.scenario import LoadConfig

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

    def send(
        self, plan: RequestPlan, payload: bytes, intended_at_ns: int, phase: str, step: int, on_record: OnRecord
    ) -> None:
        """Send now; `on_record` is called once, when the request has ended."""
        ...


def failed_record(
    plan: RequestPlan, intended_at_ns: int, worker: int, phase: str, step: int, exc: Exception
) -> StreamRecord:
    """The record of a request that failed by an error in the client."""
    return StreamRecord(
        plan_index=plan.index,
        request_class=plan.request_class,
        worker=worker,
        step=step,
        phase=phase,
        planned_input_tokens=plan.input_tokens,
        planned_output_tokens=plan.output_tokens,
        intended_at_ns=intended_at_ns,
        outcome=Outcome.CLIENT_RESOURCE,
        error=f"the client failed: {exc!r}",
    )


def unsent_record(
    plan: RequestPlan, start_at_ns: int, worker: int | None, load: LoadConfig, reason: str
) -> StreamRecord:
    """The record of a planned request that was never sent.

    Args:
        plan: the request.
        start_at_ns: time of the plan's 0.
        worker: whose share it was; None where that is not known.
        load: says which phase it belongs to.
        reason: why it was not sent.
    """
    since_start_ns = plan.intended_ns or 0
    return StreamRecord(
        plan_index=plan.index,
        request_class=plan.request_class,
        worker=worker,
        phase=load.phase_of(plan.index, since_start_ns),
        planned_input_tokens=plan.input_tokens,
        planned_output_tokens=plan.output_tokens,
        intended_at_ns=start_at_ns + since_start_ns,
        outcome=Outcome.NOT_SENT,
        error=reason,
    )
