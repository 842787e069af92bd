"""A client that is stopped while a server streams: bounds of the first token against the server's own clock."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest

from surgeproof.clock import MonotonicClock
from surgeproof.loadgen.exchange import Exchange
from tests.integration.loadgen.client import ask, client_of

TOKENS = 8
# A process of its own: a thread would hold the interpreter's lock against the client, which no scheduler tells.
SERVER = f"""
import json, socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
connection.recv(65536)
connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nConnection: close\\r\\n\\r\\n")
due, log = time.monotonic() + 0.03, []
for index in range({TOKENS}):
    delta = {{"choices": [{{"index": 0, "delta": {{"content": f"t{{index}}"}}, "finish_reason": None}}]}}
    data = f"data: {{json.dumps(delta)}}\\n\\n".encode()
    time.sleep(max(0.0, due + index * 0.004 - time.monotonic()))
    begun = time.monotonic_ns()
    connection.sendall(data)
    log.append((begun, time.monotonic_ns()))
connection.sendall(b"data: [DONE]\\n\\n")
connection.close()
print(json.dumps(log), flush=True)
"""


class Log:
    """When the server wrote each token, CLOCK_MONOTONIC: before and after the call."""

    def __init__(self) -> None:
        self.begun_ns: list[int] = []
        self.ended_ns: list[int] = []


@contextmanager
def streaming(log: Log) -> Iterator[str]:
    """Answers one request: the head at once, then a token every 4 ms from 30 ms on."""
    child = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline())}/v1"
        for begun, ended in json.loads(child.stdout.readline()):
            log.begun_ns.append(begun)
            log.ended_ns.append(ended)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def asked_while_stopped(stall_ms: int, after_ms: int) -> tuple[Exchange, Log, int]:
    """The exchange, the server's log, and the offset of the client's clock."""
    log, clock = Log(), MonotonicClock()
    with streaming(log) as url, client_of(url, clock=clock) as client:
        stop = gevent.spawn_later(after_ms / 1000, time.sleep, stall_ms / 1000)
        exchange = ask(client)
        stop.join()
    return exchange, log, clock.anchor_ns


def is_inside(stall_ms: int, after_ms: int) -> bool:
    exchange, log, anchor_ns = asked_while_stopped(stall_ms, after_ms)
    reader = exchange.reader
    assert reader.token_events == TOKENS
    assert reader.first_token_at_ns is not None
    assert reader.first_token_not_before_at_ns is not None
    early, late = reader.first_token_not_before_at_ns - anchor_ns, reader.first_token_at_ns - anchor_ns
    return early <= log.ended_ns[0] and log.begun_ns[0] <= late


@pytest.mark.parametrize("stall_ms", [5, 20, 60])
@pytest.mark.parametrize("after_ms", [20, 29])
def test_the_first_token_came_inside_its_bounds(stall_ms: int, after_ms: int) -> None:
    """In two of three: a hypervisor that stops a sleeping core for milliseconds is seen by neither clock."""
    assert sum(is_inside(stall_ms, after_ms) for _ in range(3)) >= 2


def test_no_event_comes_before_the_request_was_sent() -> None:
    for _ in range(5):
        exchange, _, _ = asked_while_stopped(0, 100)
        assert exchange.sent_at_ns is not None
        assert exchange.reader.headers_at_ns is not None
        assert exchange.sent_at_ns <= exchange.reader.headers_at_ns
        assert exchange.send_ns is not None
        assert exchange.send_ns >= 0
