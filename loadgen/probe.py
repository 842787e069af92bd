"""One request, looked at closely: what `surgeproof probe` does.

The same client as under load, with the text kept. Needs no Locust and patches nothing.
"""

from typing import Any

import msgspec
from gevent.event import Event

from surgeproof.clock import MonotonicClock
from surgeproof.config import Secrets, TargetConfig
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.sender import PATHS, RequestForm, again_with, refused_stream_options
from surgeproof.loadgen.stream import StreamReader
from surgeproof.loadgen.target import Target
from surgeproof.loadgen.transport import Client


def probe(
    config: TargetConfig, base_url: str, model: str, prompt: str, max_tokens: int, secrets: Secrets
) -> dict[str, Any]:
    """Send one request and describe its answer as plain data; times in ms from `sent`.

    Raises:
        ConfigError: URL or certificates cannot be used.
    """
    clock = MonotonicClock()
    target = Target(base_url, secrets.headers, config.tls)
    client = Client(target, config.timeouts, clock=clock)
    form = RequestForm(config, model)
    finished = Event()

    def payload() -> bytes:
        body = form.body(prompt, max_tokens, None, include_usage=target.include_usage)
        return target.request_bytes(PATHS[config.endpoint], msgspec.json.encode(body), {}, reuse=True)

    def done(exchange: Exchange) -> None:
        if refused_stream_options(exchange):
            target.include_usage = False
            again_with(client, exchange, payload())
        else:
            finished.set()

    fixed = config.ignore_eos or "min_tokens" in config.extra_body
    exchange = Exchange(payload(), lambda: StreamReader(max_tokens, fixed_length=fixed, keep_text=True), done)
    client.start(exchange)
    finished.wait()
    client.close()
    return describe(exchange, tls=target.tls_context is not None)


def describe(exchange: Exchange, *, tls: bool) -> dict[str, Any]:
    """A finished exchange as plain data."""
    reader = exchange.reader
    origin = exchange.sent_at_ns

    def since_sent(at_ns: int | None) -> float | None:
        return None if at_ns is None or origin is None else round((at_ns - origin) / 1e6, 3)

    tpot_ns = reader.tpot_ns()
    ready_at = exchange.connected_at_ns or exchange.dispatched_at_ns
    phases = {
        "dns_ms": _between(exchange.connect_at_ns, exchange.resolved_at_ns),
        "tcp_ms": _between(exchange.resolved_at_ns, exchange.tcp_connected_at_ns),
        "tls_ms": _between(exchange.tcp_connected_at_ns, exchange.connected_at_ns) if tls else None,
        "write_ms": _between(ready_at, origin),
        "headers_ms": since_sent(reader.headers_at_ns),
        "first_byte_ms": since_sent(reader.first_byte_at_ns),
        "first_event_ms": since_sent(reader.first_event_at_ns),
        "first_token_ms": since_sent(reader.first_token_at_ns),
        "first_answer_ms": since_sent(reader.first_answer_at_ns),
        "last_token_ms": since_sent(reader.last_token_at_ns),
        "done_ms": since_sent(reader.done_at_ns),
    }
    return {
        "outcome": reader.outcome(),
        "http_status": reader.http_status,
        "ttft_ms": since_sent(reader.first_token_at_ns),
        "time_to_first_answer_ms": since_sent(reader.first_answer_at_ns),
        "first_byte_ms": since_sent(reader.first_byte_at_ns),
        "last_token_ms": since_sent(reader.last_token_at_ns),
        "done_ms": since_sent(reader.done_at_ns),
        "content_text": reader.text(),
        "texts_by_choice": {str(index): text for index, text in reader.texts_by_choice().items()},
        "reasoning_text": reader.reasoning_text(),
        "tool_arguments": reader.tool_arguments(),
        "output_tokens": reader.output_tokens,
        "input_tokens": reader.input_tokens,
        "cached_tokens": reader.cached_tokens,
        "reasoning_tokens": reader.reasoning_tokens,
        "finish_reason": reader.finish_reason,
        "finish_by_choice": {str(index): reason for index, reason in reader.finish_by_choice.items()},
        "tpot_ms": None if tpot_ns is None else round(tpot_ns / 1e6, 3),
        "events": reader.events,
        "token_events": reader.token_events,
        "merged_reads": reader.merged_reads,
        "arrivals_ms": [since_sent(at_ns) for at_ns in reader.arrivals_at_ns],
        "body_bytes": reader.body_bytes,
        "retries": exchange.retries,
        "retry_after_s": reader.retry_after_s,
        "request_id": reader.request_id,
        "server_timing": reader.server_timing,
        "warnings": list(reader.all_warnings()),
        "error": reader.error,
        "stamp_source": exchange.stamp_source,
        "phases": phases,
    }


def _between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else round((end_ns - start_ns) / 1e6, 3)
