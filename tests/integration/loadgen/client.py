"""Drives the real client from a test: one request, waited for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from gevent.event import Event

from surgeproof.loadgen import second_attempt
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.request_form import APIS
from surgeproof.loadgen.stream import StreamReader
from surgeproof.loadgen.target import Target
from surgeproof.scenario import Timeouts, TlsOptions

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 64}
TIMEOUT_S = 20


@contextmanager
def client_of(base_url: str, **options: Any) -> Iterator[Client]:
    """A client of one target; options of `Client`, and `tls`."""
    target = Target(base_url, tls=options.pop("tls", TlsOptions()))
    target.resolve()
    client = Client(target, options.pop("timeouts", Timeouts(read_s=10.0)), **options)
    try:
        yield client
    finally:
        client.close()


def ask(client: Client, body: dict[str, Any] | None = None, endpoint: str = "chat") -> Exchange:
    """Send one request and wait for its end."""
    body = body or BODY
    finished = Event()
    fixed = bool(body.get("ignore_eos") or body.get("min_tokens"))

    def payload() -> bytes:
        sent = dict(body)
        if not client.target.include_usage:
            sent.pop("stream_options", None)
        return client.target.request_bytes(APIS[endpoint].path, msgspec.json.encode(sent), {}, reuse=client.reuse)

    def reader() -> StreamReader:
        return StreamReader(body.get("max_tokens"), fixed_length=fixed, keep_text=True)

    exchange = second_attempt.send(client, payload(), payload, reader, lambda _: finished.set())
    assert finished.wait(TIMEOUT_S), "the exchange never ended"
    return exchange


def ms_since_sent(exchange: Exchange, at_ns: int | None) -> float | None:
    return None if at_ns is None or exchange.sent_at_ns is None else (at_ns - exchange.sent_at_ns) / 1e6
