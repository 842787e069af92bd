"""One request in flight and its answer: the state that client, connection and sender share."""

from collections.abc import Callable
from typing import Any, Protocol

from surgeproof.loadgen.stream import StreamReader


class Link(Protocol):
    """The connection that carries an exchange, as others see it."""

    def on_readable(self) -> None:
        """Read what the kernel has, if anything."""
        ...

    def close(self) -> None:
        """Drop the socket."""
        ...


class Exchange:
    """A request and its answer. Times are on the client's clock, ns."""

    __slots__ = (
        "address_index", "addresses", "attempt_started_at_ns", "connect_at_ns", "connected_at_ns", "connection",
        "dispatched_at_ns", "finished", "last_activity_at_ns", "make_reader", "on_done", "payload", "reader",
        "resolved_at_ns", "retries", "reused", "send_ns", "sent_at_ns", "stamp_source", "stop_after_events",
        "tcp_connected_at_ns", "watches",
    )  # fmt: skip

    def __init__(
        self,
        payload: bytes,
        make_reader: Callable[[], StreamReader],
        on_done: Callable[["Exchange"], None],
    ) -> None:
        self.payload = payload
        self.make_reader = make_reader
        self.on_done = on_done
        self.retries = 0
        self.stop_after_events: int | None = None
        self.finished = False
        self.connection: Link | None = None
        self.dispatched_at_ns = 0
        self.addresses: tuple[tuple[int, Any], ...] = ()
        self.watches: list[list[Exchange]] = []
        self.restart()

    def restart(self) -> None:
        """Forget the attempt before: the next one is measured on its own."""
        self.reader = self.make_reader()
        self.attempt_started_at_ns = 0
        self.last_activity_at_ns = 0
        self.address_index = 0
        self.addresses = ()
        self.reused = False
        self.connect_at_ns: int | None = None
        self.resolved_at_ns: int | None = None
        self.tcp_connected_at_ns: int | None = None
        self.connected_at_ns: int | None = None
        self.sent_at_ns: int | None = None
        self.send_ns: int | None = None
        self.stamp_source: str | None = None
