"""Sends a request that asks for usage, and once more without where the endpoint refuses the field.

Some servers answer 400 or 422 to `stream_options`. The target remembers it, so that only requests that
were already made are sent twice; each has one record, with a warning.
"""

from collections.abc import Callable

from surgeproof.loadgen.client import Client
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.stream import StreamReader

_WARNING = "stream_options_refused"


def send(
    client: Client,
    payload: bytes,
    make_payload: Callable[[], bytes],
    make_reader: Callable[[], StreamReader],
    on_done: Callable[[Exchange], None],
) -> Exchange:
    """Send now.

    Args:
        client: the client.
        payload: the request's bytes, made ahead.
        make_payload: makes them again, by what the target is known to refuse.
        make_reader: makes the reader of each attempt.
        on_done: called once, with the exchange of the last attempt.
    """

    def done(exchange: Exchange) -> None:
        if not _refused(exchange):
            on_done(exchange)
            return
        client.target.include_usage = False
        exchange.payload = make_payload()
        exchange.retries += 1
        exchange.finished = False
        exchange.restart()
        exchange.reader.warn(_WARNING)
        client.start(exchange)

    exchange = Exchange(payload, make_reader, done)
    client.start(exchange)
    return exchange


def _refused(exchange: Exchange) -> bool:
    """Whether the endpoint answered that it does not know `stream_options`."""
    reader = exchange.reader
    return (
        reader.http_status in (400, 422)
        and not reader.stop_reading  # cancelled or cut: not to be sent again
        and "stream_options" in (reader.error or "")
        and _WARNING not in reader.warnings
    )
