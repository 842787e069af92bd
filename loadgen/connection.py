"""One socket: connect, tunnel, TLS, send, receive with stamps, parse HTTP. Callbacks on the event loop.

Every read is stamped as it is received: with the kernel's receive time where the socket gives one,
else with a clock read right after the read. HTTP is parsed by httptools; what the bytes mean is
`stream`'s business. Which sockets there are, and when they are read, is the client's.
"""

import _socket
import contextlib
import errno
import logging
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools

from surgeproof.errors import EndpointError
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.target import proxy_authorization

if TYPE_CHECKING:
    from surgeproof.loadgen.transport import Client

logger = logging.getLogger(__name__)

READ_BYTES = 65536
LATE_READ_NS = 10_000_000
"""A read this long after the kernel had the data may have merged what came apart."""
_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("qq")
_KERNEL_STAMPS = sys.platform == "linux"
_RESOURCE_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EADDRINUSE}
)
_SPENT_PARSER = httptools.HttpResponseParser(None)


class Connection:
    """One socket and the exchange it is busy with. All methods run in hub callbacks."""

    def __init__(self, client: "Client", exchange: Exchange) -> None:
        self.client = client
        self.clock = client.clock
        self.exchange: Exchange | None = exchange
        self.closed = False
        self._sock: _socket.socket | None = None
        self._reading: Any = None
        self._writing: Any = None
        self._view = client.read_view
        self._out = b""
        self._at_ns = 0
        self._tls: ssl.SSLObject | None = None
        self._received = False
        self._pieces: list[bytes] = []
        self._new_message()
        self._parser = httptools.HttpResponseParser(self)
        self._tunnelling = False
        exchange.connection = self
        now = self.clock.now_ns()
        exchange.connect_at_ns = now
        client.watch(exchange)
        self._connect(exchange)

    # -- opening --------------------------------------------------------------------------------

    def _connect(self, exchange: Exchange) -> None:
        target = self.client.target
        if not target.addresses:
            try:
                target.resolve()
            except EndpointError as exc:
                self._fault("error:connect", str(exc))
                return
        exchange.resolved_at_ns = self.clock.now_ns()
        # Other exchanges may reorder the target's list while we wait.
        exchange.addresses = exchange.addresses or tuple(target.addresses)
        family, address = exchange.addresses[exchange.address_index]
        try:
            sock = _socket.socket(family, socket.SOCK_STREAM)
            self._sock = sock
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(address)
        except OSError as exc:
            code = exc.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            self._connect_failed(code)
            return
        loop = self.client.loop
        self._writing = loop.io(sock.fileno(), 2)
        self._writing.start(self.guarded, Connection._on_writable)

    def _connect_failed(self, code: int) -> None:
        exchange = self.exchange
        assert exchange is not None
        reason = f"{errno.errorcode.get(code, code)}: {_strerror(code)}"
        if code in _RESOURCE_ERRORS:
            self._fault("error:client_resource", f"no socket for a connection: {reason}")
        elif exchange.address_index + 1 < len(exchange.addresses):
            self._drop_socket()
            exchange.address_index += 1
            self._connect(exchange)
        else:
            self._fault("error:connect", f"cannot connect to {self.client.target.authority}: {reason}")

    def _on_writable(self) -> bool:
        exchange, sock = self.exchange, self._sock
        if exchange is None or sock is None:
            return False
        if exchange.connect_at_ns is not None and exchange.tcp_connected_at_ns is None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._connect_failed(code)
                return False
            exchange.tcp_connected_at_ns = self.clock.now_ns()
            exchange.last_activity_at_ns = exchange.tcp_connected_at_ns
            self.client.target.prefer(exchange.addresses[exchange.address_index])
            if _KERNEL_STAMPS:
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._writing.stop()
            self._reading = self.client.loop.io(sock.fileno(), 1)
            self._reading.start(self.client.readable.append, self)
            self._tcp_ready()
        else:
            self._flush()
        return False

    def _tcp_ready(self) -> None:
        target = self.client.target
        if target.proxy and target.scheme == "https":
            self._tunnelling = True
            lines = {"Host": target.authority, **proxy_authorization(target.proxy)}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self._write(f"CONNECT {target.authority} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        else:
            self._start_tls_or_send()

    def _start_tls_or_send(self) -> None:
        context = self.client.target.tls_context
        if context is None:
            self._ready()
            return
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._tls_in, self._tls_out, server_hostname=self.client.target.host)
        self._handshaking = True
        self._handshake()

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write(self._tls_out.read())
            return
        except (ssl.SSLError, OSError, ValueError) as exc:
            self._write(self._tls_out.read())
            self._fault("error:connect", f"TLS handshake with {self.client.target.authority} failed: {exc}")
            return
        self._handshaking = False
        self._write(self._tls_out.read())
        self._ready()

    def _ready(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.connected_at_ns = self.clock.now_ns()
        self.client.watch(exchange)
        self.send(exchange)

    # -- sending --------------------------------------------------------------------------------

    def send(self, exchange: Exchange) -> None:
        """Write one request; the connection is this exchange's until its reply has ended."""
        self.exchange = exchange
        exchange.connection = self
        self._received = False
        self._sending = True
        self._new_message()
        if self._tls is not None:
            self._tls.write(exchange.payload)
            self._write(self._tls_out.read())
        else:
            self._write(exchange.payload)

    def _write(self, data: bytes) -> None:
        self._out = self._out + data if self._out else data
        self._flush()

    def _flush(self) -> None:
        if self._sock is None or self._writing is None:
            return
        try:
            while self._out:
                count = self._sock.send(self._out)
                self._out = self._out[count:]
        except BlockingIOError:
            self._writing.start(self.guarded, Connection._on_writable)
            return
        except OSError:
            # The reading side tells what happened: an early answer, a reset or the end.
            self._out = b""
            self._writing.stop()
            return
        if self._writing.active:
            self._writing.stop()
        exchange = self.exchange
        if self._sending and exchange is not None and exchange.sent_at_ns is None:
            exchange.sent_at_ns = exchange.last_activity_at_ns = self.clock.now_ns()

    # -- reading --------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Read what the kernel holds, if anything."""
        if self._reading is not None and self.guarded(Connection.receive):
            self.guarded(Connection.parse)

    def guarded(self, step: Callable[["Connection"], bool]) -> bool:
        """Hub callbacks must not raise: a bug of ours becomes a record and a log line."""
        try:
            return step(self)
        except Exception as exc:
            logger.exception("error in the client while handling a connection")
            self._fault("error:client_resource", f"the client failed: {exc!r}")
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
            self._on_cut("error:reset", f"connection reset: {_strerror(exc.errno or 0)}")
            return False
        at_ns, self._source = self._stamp(time.monotonic_ns(), ancillary)
        self._at_ns = at_ns
        exchange = self.exchange
        if exchange is None:
            # Nothing was asked: the server closes an idle connection, or talks out of turn.
            self.close()
            return False
        exchange.last_activity_at_ns = at_ns
        if count == 0:
            if self._tls is not None:
                self._tls_in.write_eof()
            self._on_eof()
            return False
        self._data = bytes(self._view[:count])
        return True

    def parse(self) -> bool:
        """What was received; there is no step after this one."""
        data, self._data = self._data, b""
        if self.exchange is None:
            return False
        if self._tls is not None:
            self._read_tls(data)
        else:
            self._parse(data)
        return False

    def _stamp(self, now: int, ancillary: list[Any]) -> tuple[int, str]:
        """When the data of a read arrived, and who says so: the kernel, or our clock right after the read.

        Both clocks are read here, so a wall clock that stepped earlier cannot move a stamp; one that
        stepped since then gives a stamp before the read or the request before, which is not believed.
        """
        read_at_ns = now + self.clock.anchor_ns
        if not ancillary:
            return read_at_ns, "clock"
        seconds, nanoseconds = _STAMP.unpack_from(ancillary[0][2])
        age = time.time_ns() - seconds * 1_000_000_000 - nanoseconds
        exchange = self.exchange
        earliest = max(self._at_ns, exchange.attempt_started_at_ns if exchange is not None else 0)
        if age < 0 or read_at_ns - age < earliest:
            return read_at_ns, "clock"
        self.client.reads += 1
        if age > LATE_READ_NS:
            self.client.late_reads += 1
        return read_at_ns - age, "kernel"

    def _read_tls(self, data: bytes) -> None:
        assert self._tls is not None
        self._tls_in.write(data)
        if self._handshaking:
            self._handshake()
            if self._handshaking or self.closed:
                return
        while not self.closed and self.exchange is not None:
            try:
                plain = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                self._on_eof()
                return
            except ssl.SSLError as exc:
                self._on_cut("error:reset", f"TLS failed: {exc}")
                return
            if not plain:
                self._on_eof()
                return
            self._parse(plain)
        if not self.closed and self._tls_out.pending:
            self._write(self._tls_out.read())

    def _parse(self, data: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        if not self._tunnelling:
            self._received = True
            held, source = exchange.stamp_source, self._source
            if held is None:
                exchange.stamp_source = source
            elif held != source:
                exchange.stamp_source = "mixed"
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._spoil(exchange, "the server switched protocols")
        except httptools.HttpParserError as exc:
            self._spoil(exchange, f"the reply is not HTTP/1.1: {exc}")
        if not self.closed:
            self._after_read(exchange)
        self._pieces.clear()

    def _spoil(self, exchange: Exchange, message: str) -> None:
        """Bytes that are not HTTP: after a whole reply they cost the connection, before its end the reply."""
        self._keep_alive = False
        if self._message_done or self.closed:
            return
        body, self._pieces = b"".join(self._pieces), []
        if body and self._head_done:
            exchange.reader.on_body(body, self._at_ns)
        self._fault("error:malformed", message)

    def _after_read(self, exchange: Exchange) -> None:
        """Hand on what httptools found in one read, and see whether the reply is over."""
        reader = exchange.reader
        if self._pieces:
            # One read may hold many chunks: the reader gets them as the one arrival that they were.
            reader.on_body(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces), self._at_ns)
        if self._message_done:
            self._message_done = False
            self._answered(exchange)
        elif reader.stop_reading:
            self.close()
            if reader.done_at_ns is None:
                reader.done_at_ns = self._at_ns
            self.client.finish(exchange)
        elif reader.saw_done and not self._end_watched:
            self._end_watched = True
            self.client.watch(exchange)

    def _answered(self, exchange: Exchange) -> None:
        """A whole message was read: acted on only after httptools has returned."""
        if self._tunnelling:
            self._tunnel_answered(self._parser.get_status_code())
            return
        keep = self.client.reuse and self._keep_alive and not self._out
        exchange.reader.on_end(self._at_ns)
        self.exchange = None
        if keep and self._tls_is_open():
            self.client.idle.append(self)
        else:
            self.close()
        self.client.finish(exchange)

    def _tls_is_open(self) -> bool:
        """Whether TLS still runs: a close_notify may have come in one read with the reply's end."""
        if self._tls is None:
            return True
        try:
            self._tls.read(1)
        except ssl.SSLWantReadError:
            return True
        except (ssl.SSLError, OSError):
            return False
        return False

    def is_quiet(self) -> bool:
        """Whether an idle connection can carry a request: open, and nothing has come unasked."""
        if self.closed or self._sock is None:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        # Its end, or an answer to nothing such as 408: what comes next would be taken for ours.
        self.close()
        return False

    # -- what httptools tells -------------------------------------------------------------------

    def _new_message(self) -> None:
        self._headers: dict[str, str] = {}
        self._head_done = False
        self._end_watched = False
        self._message_done = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field; repeated ones are joined as HTTP says."""
        if self._message_done:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        held = self._headers.get(key)
        self._headers[key] = text if held is None else f"{held}, {text}"

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._message_done:
            # A second reply to one request: the first one stands, the connection does not.
            self._keep_alive = False
            return
        status = self._parser.get_status_code()
        exchange = self.exchange
        if self._tunnelling:
            # The answer to CONNECT has no body, whatever its headers say.
            self._message_done = True
            return
        if status < 200 or exchange is None:
            return
        if exchange.sent_at_ns is None:
            exchange.sent_at_ns = self._at_ns
        self._head_done = True
        coding = self._headers.get("transfer-encoding", "chunked").strip().lower()
        if coding not in ("chunked", "identity"):
            # A transfer coding is told to the reader as what it is to the content: something to undo first.
            self._headers["content-encoding"] = coding.removesuffix("chunked").strip(", ")
        exchange.reader.on_head(status, self._headers, self._at_ns)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, framing removed."""
        if not self._message_done:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The reply has ended as its framing says."""
        if self._message_done:
            return
        if self._parser.get_status_code() >= 200:
            self._message_done = True
            # llhttp knows this only inside the callback.
            self._keep_alive = self._parser.should_keep_alive()
        else:
            self._headers = {}

    def _tunnel_answered(self, status: int) -> None:
        self._tunnelling = False
        self._new_message()
        self._parser = httptools.HttpResponseParser(self)
        if 200 <= status < 300:
            self._start_tls_or_send()
        else:
            self._fault("error:connect", f"the proxy refused CONNECT with HTTP {status}")

    # -- ends -----------------------------------------------------------------------------------

    def _on_eof(self) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        until_close = (
            self._head_done
            and "content-length" not in self._headers
            and "chunked" not in self._headers.get("transfer-encoding", "").lower()
        )
        if until_close:
            exchange.reader.on_end(self._at_ns)
            self.close()
            self.client.finish(exchange)
        elif self._received:
            self._on_cut("error:disconnect", "the connection was closed before the reply had ended")
        else:
            self._on_cut("error:disconnect", "no response: the connection was closed before the first byte")

    def _on_cut(self, outcome: str, message: str) -> None:
        """Reset or closed by the other side."""
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        if exchange.connect_at_ns is not None and exchange.connected_at_ns is None:
            self._fault("error:connect", f"{message} (before the connection was ready)")
        elif exchange.reused and not self._received and exchange.retries == 0:
            self.close()
            self.client.retry_fresh(exchange)
        else:
            self._fault(outcome, message)

    def _fault(self, outcome: str, message: str) -> None:
        exchange = self.exchange
        self.close()
        if exchange is not None:
            exchange.reader.on_fault(outcome, message, self.clock.now_ns())
            self.client.finish(exchange)

    def close(self) -> None:
        """Drop the socket; the exchange, if any, is the caller's to end."""
        self.closed = True
        self.exchange = None
        # The parser calls back and so holds us: without a garbage collector the circle is cut by hand.
        self._parser = _SPENT_PARSER
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

    _data = b""
    _source = "clock"
    _sending = False
    _handshaking = False
    _keep_alive = False
    _message_done = False
    _end_watched = False


def _strerror(code: int) -> str:
    return os.strerror(code) if code else "unknown"


def hold_stamping_on() -> _socket.socket | None:
    """Keep one stamped socket open: the kernel switches stamping on in the background for the first."""
    if not _KERNEL_STAMPS:
        return None
    with contextlib.suppress(OSError):
        sock = _socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        return sock
    return None
