"""A list of models that never ends, trickles or is a bomb: the command ends within bounds, and at once by a signal."""

import gzip
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

BOMB = gzip.compress(bytes(300 << 20), 9)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def models_answered_by(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                with suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(20)


def endless(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n[")
    while True:
        connection.sendall(b" " * 65536)


def trickle(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n[")
    for _ in range(300):
        connection.sendall(b" ")
        time.sleep(0.2)


def bomb(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)


def started(base_url: str, cwd: Path) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "surgeproof",
        "run",
        "--base-url",
        base_url,
        "--request-rate",
        "1",
        "--duration",
        "1s",
    ]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("answer", "said"), [(endless, "more than 8 MB"), (trickle, "longer than 10 s"), (bomb, "decodes to")]
)
def test_the_check_is_bounded(tmp_path: Path, answer: Callable[[socket.socket], None], said: str) -> None:
    with models_answered_by(answer) as base_url:
        child = started(base_url, tmp_path)
        most = 0
        begun_s = time.monotonic()
        while child.poll() is None and time.monotonic() - begun_s < 40:
            try:
                most = max(most, psutil.Process(child.pid).memory_info().rss)
            except psutil.NoSuchProcess:
                break
            time.sleep(0.05)
        error = child.communicate(timeout=5)[1]
    assert child.returncode == 2, error
    assert said in error
    assert most < 400_000_000


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_check_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with models_answered_by(trickle) as base_url:
        child = started(base_url, tmp_path)
        time.sleep(3)
        child.send_signal(number)
        sent_s = time.monotonic()
        error = child.communicate(timeout=30)[1]
        assert time.monotonic() - sent_s < 5
    assert child.returncode == code, error
    assert "interrupted; nothing was sent" in error
    assert not list(tmp_path.glob("*.spool"))
