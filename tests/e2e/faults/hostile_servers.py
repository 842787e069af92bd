"""Raw servers that answer a request with anything but a proper reply, and such replies."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

BOMB = gzip.compress(bytes(300 << 20), 9)
_MODELS = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Answer = Callable[[socket.socket], None]


def models(connection: socket.socket) -> None:
    """A proper list of models."""
    connection.sendall(_HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(_MODELS), _MODELS))


def endless_body(connection: socket.socket) -> None:
    connection.sendall(_HEAD + b"\r\n[")
    while True:
        connection.sendall(b" " * 65536)


def endless_head(connection: socket.socket) -> None:
    connection.sendall(_HEAD + b"X-A: ")
    while True:
        connection.sendall(b"a" * 65536)


def trickle(connection: socket.socket) -> None:
    """A byte every 0.2 s, for a minute."""
    connection.sendall(_HEAD + b"\r\n[")
    for _ in range(300):
        connection.sendall(b" ")
        time.sleep(0.2)


def bomb(connection: socket.socket) -> None:
    """300 MB of zeros in 300 kB."""
    connection.sendall(_HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)


@contextmanager
def hostile_server(*, get: Answer = models, post: Answer = models) -> Iterator[str]:
    """Answers one request of each connection by its method; yields the base URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            (get if connection.recv(65536).startswith(b"GET") else post)(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
