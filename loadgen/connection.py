"""One socket: opens it, sends, receives with stamps, and hands bytes to `http_reply`. Hub callbacks only.

Every read is stamped as it is received: with the kernel's receive time where the socket gives one,
otherwise with a clock read right after the read. Which connections there are, and when they are read,
is up to the owner.
"""

import _socket
import errno
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Protocol

import httptools

from surgeproof.clock import MonotonicClock
from surgeproof.errors import EndpointError
from surgeproof.loadgen.dial import (
    RESOURCE_ERRORS,
    TunnelReply,
    error_text,
    start_connecting,
    strerror,
    switch_stamps_on,
    tunnel_request,
)
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.http_reply import Action, HttpReply
from surgeproof.loadgen.target import Target
from surgeproof.loadgen.tls_layer import TlsClosedError, TlsError, TlsLayer
from surgeproof.loadgen.turns import Turns
from surgeproof.outcomes import Outcome

logger = logging.getLogger(__name__)

READ_BYTES = 65536
LATE_READ_NS = 10_000_000
"""A read this long after the kernel had the data may have merged separate arrivals."""
_STAMP = struct.Struct("qq")
_CLOCKS_APART_NS = 20_000
_READABLE, _WRITABLE = 1, 2


class Owner(Protocol):
    """What a connection needs of the client that it belongs to."""

    target: Target
    clock: MonotonicClock
    loop: Any
    reuse: bool
    read_view: memoryview
    readable: "list[Connection]"
    idle: "deque[Connection]"
    reads: int
    late_reads: int
    turns: Turns

    def watch(self, exchange: Exchange) -> None:
        """A phase with its own timeout has begun."""
        ...

    def finish(self, exchange: Exchange) -> None:
        """The exchange is over."""
        ...

    def retry_fresh(self, exchange: Exchange) -> None:
        """Send once more on a new connection."""
        ...


class Stage(Enum):
    """What the bytes of the socket are for."""

    CONNECTING = auto()
    TUNNELLING = auto()
    HANDSHAKING = auto()
    OPEN = auto()
    CLOSED = auto()


# Access to an enum's member costs more than the comparison, for every read.
_CONTINUE, _OPEN = Action.CONTINUE, Stage.OPEN


class Connection:
    """One socket and the exchange that it carries, None while it is idle.

    Args:
        owner: the client.
        exchange: what it is opened for.
    """

    def __init__(self, owner: Owner, exchange: Exchange) -> None:
        self.owner = owner
        self.clock = owner.clock
        self.exchange: Exchange | None = exchange
        self._stage = Stage.CONNECTING
        self._reply = HttpReply()
        self._tunnel: TunnelReply | None = None
        self._tls: TlsLayer | None = None
        self._sock: _socket.socket | None = None
        self._reading: Any = None
        self._writing: Any = None
        self._view = owner.read_view
        self._unsent = b""
        self._data = b""
        self._at_ns = 0
        self._not_before_ns = self._empty_at_ns = 0
        self._drained = self._was_empty = True
        self._stamp_source = "clock"

    @property
    def closed(self) -> bool:
        """Whether the socket is gone."""
        return self._stage is Stage.CLOSED

    # -- opening --------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, then send the exchange's request."""
        exchange = self.exchange
        assert exchange is not None, "a connection is opened for an exchange"
        exchange.connection = self
        exchange.connect_at_ns = self.clock.now_ns()
        self.owner.watch(exchange)
        self._connect(exchange)

    def _connect(self, exchange: Exchange) -> None:
        target = self.owner.target
        if not target.addresses:
            try:
                target.resolve()
            except EndpointError as exc:
                self._fail(Outcome.CONNECT, str(exc))
                return
        exchange.resolved_at_ns = self.clock.now_ns()
        # Other exchanges may reorder the target's list while we wait.
        exchange.addresses = exchange.addresses or tuple(target.addresses)
        family, address = exchange.addresses[exchange.address_index]
        try:
            self._sock = start_connecting(family, address)
        except OSError as exc:
            self._connect_failed(exc.errno or errno.EIO)
            return
        self._writing = self.owner.loop.io(self._sock.fileno(), _WRITABLE)
        self._writing.start(self.guarded, Connection._on_writable)

    def _connect_failed(self, code: int) -> None:
        exchange = self.exchange
        assert exchange is not None, "connecting for an exchange"
        if code in RESOURCE_ERRORS:
            self._fail(Outcome.CLIENT_RESOURCE, f"no socket for a connection: {error_text(code)}")
        elif exchange.address_index + 1 < len(exchange.addresses):
            self._drop_socket()
            exchange.address_index += 1
            self._connect(exchange)
        else:
            self._fail(Outcome.CONNECT, f"cannot connect to {self.owner.target.authority}: {error_text(code)}")

    def _on_writable(self) -> bool:
        if self.exchange is None or self._sock is None:
            return False
        if self._stage is Stage.CONNECTING:
            code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._connect_failed(code)
            else:
                self._connected(self.exchange, self._sock)
        else:
            self._flush()
        return False

    def _connected(self, exchange: Exchange, sock: _socket.socket) -> None:
        target = self.owner.target
        exchange.tcp_connected_at_ns = exchange.last_activity_at_ns = self.clock.now_ns()
        target.prefer(exchange.addresses[exchange.address_index])
        switch_stamps_on(sock)
        self._writing.stop()
        self._reading = self.owner.loop.io(sock.fileno(), _READABLE)
        self._reading.start(self.owner.readable.append, self)
        if target.proxy and target.scheme == "https":
            self._stage, self._tunnel = Stage.TUNNELLING, TunnelReply()
            self._write(tunnel_request(target))
        else:
            self._start_tls_or_send(exchange)

    def _read_tunnel(self, exchange: Exchange, data: bytes) -> None:
        assert self._tunnel is not None, "set with the stage"
        try:
            status = self._tunnel.feed(data)
        except httptools.HttpParserError as exc:
            self._fail(Outcome.MALFORMED, f"the reply is not HTTP/1.1: {exc}")
            return
        if status is None:
            return
        if 200 <= status < 300:
            self._tunnel = None
            self._start_tls_or_send(exchange)
        else:
            self._fail(Outcome.CONNECT, f"the proxy refused CONNECT with HTTP {status}")

    def _start_tls_or_send(self, exchange: Exchange) -> None:
        context = self.owner.target.tls_context
        if context is None:
            self._ready(exchange)
            return
        self._stage, self._tls = Stage.HANDSHAKING, TlsLayer(context, self.owner.target.host)
        self._handshake(exchange, b"")

    def _handshake(self, exchange: Exchange, data: bytes) -> None:
        tls = self._tls
        assert tls is not None, "set with the stage"
        tls.receive(data)
        try:
            complete = tls.handshake()
        except TlsError as exc:
            self._write(tls.pending())
            self._fail(Outcome.CONNECT, f"TLS handshake with {self.owner.target.authority} failed: {exc}")
            return
        self._write(tls.pending())
        if complete:
            self._ready(exchange)
            self._read_tls(b"")

    def _ready(self, exchange: Exchange) -> None:
        self._stage = Stage.OPEN
        exchange.connected_at_ns = self.clock.now_ns()
        self.owner.watch(exchange)
        self.send(exchange)

    # -- sending --------------------------------------------------------------------------------

    def send(self, exchange: Exchange) -> None:
        """Write one request; the connection is this exchange's until its reply has ended."""
        self.exchange = exchange
        exchange.connection = self
        self._reply.begin(exchange.reader)
        if self._tls is not None:
            self._tls.write(exchange.payload)
            self._write(self._tls.pending())
        else:
            self._write(exchange.payload)

    def _write(self, data: bytes) -> None:
        self._unsent = self._unsent + data if self._unsent else data
        self._flush()

    def _flush(self) -> None:
        if self._sock is None or self._writing is None:
            return
        begun_at_ns = 0
        try:
            while self._unsent:
                begun_at_ns = self.clock.now_ns()
                count = self._sock.send(self._unsent)
                self._unsent = self._unsent[count:]
        except BlockingIOError:
            self._writing.start(self.guarded, Connection._on_writable)
            return
        except OSError:
            # The next read shows what happened: an early answer, a reset or the end.
            self._unsent = b""
            self._writing.stop()
            return
        if self._writing.active:
            self._writing.stop()
        exchange = self.exchange
        if self._stage is Stage.OPEN and exchange is not None and exchange.sent_at_ns is None:
            # The server may have answered before the call returned.
            exchange.sent_at_ns = begun_at_ns
            exchange.last_activity_at_ns = self.clock.now_ns()
            exchange.send_ns = exchange.last_activity_at_ns - begun_at_ns

    # -- reading --------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Read what the kernel has, if anything."""
        if self._reading is not None and self.guarded(Connection.receive):
            self.guarded(Connection.parse)

    def guarded(self, step: "Callable[[Connection], bool]") -> bool:
        """Run a step; hub callbacks must not raise, so a client bug becomes a record and a log line."""
        try:
            return step(self)
        except Exception as exc:
            logger.exception("error in the client while handling a connection")
            self._fail(Outcome.CLIENT_RESOURCE, f"the client failed: {exc!r}")
            return False

    def receive(self) -> bool:
        """One read with its stamp; whether there is something to parse."""
        sock = self._sock
        if sock is None:
            return False
        try:
            count, ancillary, _, _ = sock.recvmsg_into([self._view], 64)
        except BlockingIOError:
            return False
        except OSError as exc:
            self._on_cut(Outcome.RESET, f"connection reset: {strerror(exc.errno)}")
            return False
        at_ns, self._stamp_source = self._stamp(time.monotonic_ns(), ancillary)
        turns = self.owner.turns
        # What came now came after the read before, and after the socket was last seen empty.
        self._was_empty = self._drained
        self._not_before_ns = max(self._at_ns, self._empty_at_ns, turns.empty_at_ns if self._drained else 0)
        self._drained = count < READ_BYTES
        if self._drained:
            self._empty_at_ns = turns.reading_at_ns
        self._at_ns = at_ns
        exchange = self.exchange
        if exchange is None:
            # No request is pending: the server closed an idle connection, or sent unsolicited data.
            self.close()
            return False
        exchange.last_activity_at_ns = at_ns
        if count == 0:
            if self._tls is not None:
                self._tls.receive_end()
            self._on_end(exchange)
            return False
        self._data = bytes(self._view[:count])
        return True

    def parse(self) -> bool:
        """Handle what was received; there is no step after this one."""
        data, self._data = self._data, b""
        exchange = self.exchange
        if exchange is None:
            return False
        if self._stage is _OPEN:
            if self._tls is None:
                self._feed(exchange, data)
            else:
                self._read_tls(data)
        elif self._stage is Stage.TUNNELLING:
            self._read_tunnel(exchange, data)
        elif self._stage is Stage.HANDSHAKING:
            self._handshake(exchange, data)
        return False

    def _stamp(self, now: int, ancillary: list[Any]) -> tuple[int, str]:
        """When the data of a read arrived, and the source: the kernel, or our clock right after the read.

        Both clocks are read here, so a wall clock that stepped earlier cannot move a stamp; one that
        stepped since then gives a stamp before the read or the request before, which is rejected.
        """
        read_at_ns = now + self.clock.anchor_ns
        if not ancillary:
            return read_at_ns, "clock"
        seconds, nanoseconds = _STAMP.unpack_from(ancillary[0][2])
        real = time.time_ns()
        if time.monotonic_ns() - now > _CLOCKS_APART_NS:
            # The process was stopped between the two clocks: the stamp would be as much too early.
            now, real = time.monotonic_ns(), time.time_ns()
            read_at_ns = now + self.clock.anchor_ns
        age = real - seconds * 1_000_000_000 - nanoseconds
        exchange = self.exchange
        earliest = max(self._at_ns, exchange.attempt_started_at_ns if exchange is not None else 0)
        if age < 0 or read_at_ns - age < earliest:
            return read_at_ns, "clock"
        self.owner.reads += 1
        if age > LATE_READ_NS:
            self.owner.late_reads += 1
        # An answer comes after its request, though the two clocks may differ by microseconds.
        sent_at_ns = exchange.sent_at_ns if exchange is not None else None
        return max(read_at_ns - age, sent_at_ns or 0), "kernel"

    def _read_tls(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None, "read only from a connection with TLS"
        tls.receive(data)
        while not self.closed and (exchange := self.exchange) is not None:
            try:
                plain = tls.read()
            except TlsClosedError:
                self._on_end(exchange)
                return
            except TlsError as exc:
                self._on_cut(Outcome.RESET, f"TLS failed: {exc}")
                return
            if plain is None:
                break
            self._feed(exchange, plain)
        if not self.closed and (pending := tls.pending()):
            self._write(pending)

    def _feed(self, exchange: Exchange, data: bytes) -> None:
        source = self._stamp_source
        if exchange.stamp_source is None:
            exchange.stamp_source = source
        elif exchange.stamp_source != source:
            exchange.stamp_source = "mixed"
        at_ns, reader = self._at_ns, exchange.reader
        not_before_ns = min(at_ns, max(self._not_before_ns, exchange.sent_at_ns or 0))
        action = self._reply.feed(data, at_ns, not_before_ns)
        if source == "clock" and reader.first_token_at_ns == at_ns:
            # The clock tells when the read was, not when its data came.
            reader.first_token_not_before_at_ns = not_before_ns
        if reader.vague and self._was_empty:
            reader.settle(min(at_ns, max(not_before_ns, self.owner.turns.settled_ns())))
        if exchange.sent_at_ns is None:
            # An answer that came before the request was sent whole.
            exchange.sent_at_ns = exchange.reader.headers_at_ns
        if action is not _CONTINUE:
            self._act(exchange, action)
        elif exchange.stop_after_events is not None and reader.token_events >= exchange.stop_after_events:
            self._fail(Outcome.STOPPED, "its user stopped reading, as planned")

    def _act(self, exchange: Exchange, action: Action) -> None:
        """Do what the reply asks for."""
        if action is Action.LAST_EVENT:
            self.owner.watch(exchange)
        elif action is Action.FAULT:
            self._fail(*self._reply.fault)
        else:
            keep = action is Action.KEEP and self.owner.reuse and not self._unsent
            self.exchange = None
            if keep and (self._tls is None or self._tls.is_open()):
                self.owner.idle.append(self)
            else:
                self.close()
            self.owner.finish(exchange)

    def is_quiet(self) -> bool:
        """Whether an idle connection can carry a request: open, without unsolicited data."""
        if self._sock is None:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        # End of stream, or an unsolicited reply such as 408, which would be taken for the next reply.
        self.close()
        return False

    # -- ends -----------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        """The other side has closed the connection."""
        if self._stage is not Stage.OPEN:
            self._on_cut(Outcome.DISCONNECT, "no response: the connection was closed before the first byte")
            return
        action = self._reply.end(self._at_ns)
        if action is Action.FAULT:
            self._on_cut(*self._reply.fault)
        else:
            self._act(exchange, action)

    def _on_cut(self, outcome: Outcome, message: str) -> None:
        """Reset or closed by the other side."""
        exchange = self.exchange
        if exchange is None:
            self.close()
        elif self._stage is not Stage.OPEN:
            self._fail(Outcome.CONNECT, f"{message} (before the connection was ready)")
        elif exchange.reused and not self._reply.received and exchange.retries == 0:
            self.close()
            self.owner.retry_fresh(exchange)
        else:
            self._fail(outcome, message)

    def _fail(self, outcome: Outcome, message: str) -> None:
        exchange = self.exchange
        self.close()
        if exchange is not None:
            exchange.reader.on_fault(outcome, message, self.clock.now_ns())
            self.owner.finish(exchange)

    def close(self) -> None:
        """Close the socket; the caller must end the exchange, if any."""
        self._stage = Stage.CLOSED
        self.exchange = None
        self._reply.release()
        self._tunnel = None
        self._drop_socket()

    def _drop_socket(self) -> None:
        for watcher in (self._reading, self._writing):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._reading = self._writing = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None
