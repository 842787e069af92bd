"""Sends a request, and once more where its answer says how: without usage, or with a new API key.

Some servers answer 400 or 422 to `stream_options`; a key may expire during a run. Only requests that were already
made are sent twice; each has one record, with a warning, and its second attempt is measured on its own.
"""

from collections.abc import Callable

from surgeproof.loadgen.api_key import ApiKey
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.stream import StreamReader
from surgeproof.records import KEY_RENEWED

_NO_USAGE = "stream_options_refused"
_KEY_NOT_RENEWED = "api_key_not_renewed"


def send(
    client: Client,
    payload: bytes,
    make_payload: Callable[[], bytes],
    make_reader: Callable[[], StreamReader],
    on_done: Callable[[Exchange], None],
    api_key: ApiKey | None = None,
) -> Exchange:
    """Send now.

    Args:
        client: the client.
        payload: the request's bytes, made ahead.
        make_payload: makes them again, by what the target is known to refuse and with the key that it has then.
        make_reader: makes the reader of each attempt.
        on_done: called once, with the exchange of the last attempt.
        api_key: the key that can be renewed; None for one that is given once.
    """

    def done(exchange: Exchange) -> None:
        if _refuses_usage(exchange):
            client.target.include_usage = False
            _restart(exchange, _NO_USAGE)
            start()
        elif api_key is not None and _refuses_key(exchange):
            refused = exchange.reader
            _restart(exchange, KEY_RENEWED)
            # It counts as in flight while it waits, so that the end of the load waits for it or cancels it.
            client.in_flight.add(exchange)
            api_key.renew(exchange.payload, lambda renewed: start() if renewed else give_up(refused))
        else:
            on_done(exchange)

    def start() -> None:
        if not exchange.finished:
            exchange.payload = make_payload()
            client.start(exchange)

    def give_up(refused: StreamReader) -> None:
        if not exchange.finished:
            exchange.reader = refused
            exchange.retries -= 1
            refused.warn(_KEY_NOT_RENEWED)
            client.finish(exchange)

    exchange = Exchange(payload, make_reader, done)
    client.start(exchange)
    return exchange


def _restart(exchange: Exchange, warning: str) -> None:
    """Prepare the second attempt; what is known of the first stays as warnings."""
    warnings = [*exchange.reader.warnings, warning]
    exchange.retries += 1
    exchange.finished = False
    exchange.restart()
    for one in warnings:
        exchange.reader.warn(one)


def _refuses_usage(exchange: Exchange) -> bool:
    """Whether the endpoint answered that it does not know `stream_options`."""
    reader = exchange.reader
    return (
        reader.http_status in (400, 422)
        and not reader.stop_reading  # cancelled or cut: not to be sent again
        and "stream_options" in (reader.error or "")
        and _NO_USAGE not in reader.warnings
    )


def _refuses_key(exchange: Exchange) -> bool:
    """Whether the endpoint refused the key of a first attempt."""
    reader = exchange.reader
    again = KEY_RENEWED in reader.warnings or _KEY_NOT_RENEWED in reader.warnings
    return reader.http_status == 401 and not reader.stop_reading and not again
