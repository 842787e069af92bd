"""One request, looked at closely: what `surgeproof probe` does.

The same client as under load, with the text kept. Needs no Locust and patches nothing.
"""

from typing import Any

import msgspec
from gevent.event import Event

from surgeproof.clock import MonotonicClock
from surgeproof.credentials import Secrets
from surgeproof.loadgen import usage_fallback
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.sender import PATHS, RequestForm
from surgeproof.loadgen.target import Target
from surgeproof.scenario import TargetConfig


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

    exchange = usage_fallback.send(
        client, payload(), payload, lambda: form.reader(max_tokens, keep_text=True), lambda _: finished.set()
    )
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
        "content_text": reader.text.answer(),
        "texts_by_choice": {str(index): text for index, text in reader.text.by_choice().items()},
        "reasoning_text": reader.text.reasoning(),
        "tool_arguments": reader.text.tool_arguments(),
        "output_tokens": reader.usage.output_tokens,
        "input_tokens": reader.usage.input_tokens,
        "cached_tokens": reader.usage.cached_tokens,
        "reasoning_tokens": reader.usage.reasoning_tokens,
        "finish_reason": reader.choices.finish_reason,
        "finish_by_choice": {str(index): reason for index, reason in reader.choices.finish_by_choice.items()},
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
