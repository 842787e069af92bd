"""A server that answers from a script: exact bytes at exact times, for testing any streaming client.

A script is a list of exchanges in the form of tests/wire/wire_cases.jsonl: status, headers, framing
(chunked, length, close), chunks with delays, and how the connection ends. The first request is
answered by the first exchange, and so on; the last one repeats. One thread serves a connection, so
that the client under test may own the main one.
"""

import base64
import contextlib
import socket
import ssl
import struct
import threading
import time
from types import TracebackType
from typing import Any

from surgeproof.strict_json import JsonObject

Exchange = JsonObject
"""One answer, in the form of the wire cases."""
_JOIN_TIMEOUT_S = 1.0


class ScriptedServer:
    """Serves a script on a free port.

    Args:
        exchanges: answers, in order.
        tls: server side context for HTTPS.
        host: address to listen on.
        accept_delay_s: wait after accepting, before anything is read.
    """

    def __init__(
        self,
        exchanges: list[Exchange],
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        accept_delay_s: float = 0.0,
    ) -> None:
        self._exchanges = exchanges
        self._tls = tls
        self._accept_delay_s = accept_delay_s
        self._lock = threading.Lock()
        self._next = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept_for_ever, daemon=True)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, 0))
        self._listener.listen(1024)
        self.port = int(self._listener.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if tls else "http"
        self.base_url = f"{scheme}://{'localhost' if tls else shown}:{self.port}/v1"

    def __enter__(self) -> "ScriptedServer":
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # First the acceptor, so that no connection is served after those that are shut down here.
        self._acceptor.join(_JOIN_TIMEOUT_S)
        with self._lock:
            left, threads = list(self._open), list(self._threads)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(_JOIN_TIMEOUT_S)

    def _accept_for_ever(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            time.sleep(self._accept_delay_s)
            if self._tls is not None:
                raw, connection = connection, self._tls.wrap_socket(connection, server_side=True)
                with self._lock:
                    self._open.discard(raw)
                    self._open.add(connection)
            with connection.makefile("rb") as file:
                while self._answer(connection, file):
                    pass
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, file: Any) -> bool:
        """One request and its answer; False when the connection is over."""
        first = file.readline().decode("latin-1").strip()
        if not first:
            return False
        headers: dict[str, str] = {}
        while (line := file.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = file.read(int(headers.get("content-length", "0")))
        with self._lock:
            self.requests.append((first, headers, body))
            exchange = self._exchanges[min(self._next, len(self._exchanges) - 1)]
            self._next += 1
        if exchange["http_status"] is None:
            return False
        self._play(connection, exchange)
        if exchange["close"] == "reset":
            # Give the client time to read: a reset throws away what it has not read yet.
            time.sleep(0.02)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            file.close()
            return False
        return bool(exchange["close"] != "clean")

    def _play(self, connection: socket.socket, exchange: Exchange) -> None:
        due = time.monotonic()
        for delay_s, data in reply_bytes(exchange):
            due += delay_s
            time.sleep(max(0.0, due - time.monotonic()))
            connection.sendall(data)


def reply_bytes(exchange: Exchange) -> list[tuple[float, bytes]]:
    """What is written for an exchange: (seconds after the write before, bytes), the head first."""
    chunks = [(chunk["delay_ms"] / 1000, _bytes_of(chunk)) for chunk in exchange["chunks"]]
    chunked = exchange["framing"] == "chunked"
    headers = dict(exchange["headers"])
    if chunked:
        headers["Transfer-Encoding"] = "chunked"
    elif exchange["framing"] == "length":
        length = sum(len(data) for _, data in chunks)
        headers.setdefault("Content-Length", str(length if exchange["complete_body"] else length + 100))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/{exchange['http_version']} {exchange['http_status']} Scripted\r\n{lines}\r\n".encode()
    writes = [(exchange["head_delay_ms"] / 1000, head)]
    writes += [(delay, b"%x\r\n%s\r\n" % (len(data), data) if chunked else data) for delay, data in chunks]
    if chunked and exchange["complete_body"]:
        writes.append((0.0, b"0\r\n\r\n"))
    return writes


def _bytes_of(chunk: JsonObject) -> bytes:
    if "text" in chunk:
        return str(chunk["text"]).encode("utf-8", "surrogatepass")
    return base64.b64decode(chunk["bytes_b64"])


def exchange(*chunks: tuple[int, str], **changes: Any) -> Exchange:
    """A 200 event stream of (delay in ms, text) chunks; keyword arguments change its fields."""
    return {
        "http_status": 200,
        "http_version": "1.1",
        "headers": {"Content-Type": "text/event-stream"},
        "framing": "chunked",
        "head_delay_ms": 0,
        "chunks": [{"delay_ms": delay, "text": text} for delay, text in chunks],
        "close": "keepalive",
        "complete_body": True,
    } | changes
