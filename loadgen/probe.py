"""One request in detail: implements `surgeproof probe`.

The same client as under load, with the text kept. Needs no Locust and patches nothing.
"""

import msgspec
from gevent.event import Event

from surgeproof.clock import MonotonicClock
from surgeproof.credentials import Secrets
from surgeproof.loadgen import second_attempt
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.prompt_lengths import PromptLengths, lengths_of, sample_words
from surgeproof.loadgen.request_form import RequestForm, endpoint_headers
from surgeproof.loadgen.target import Target
from surgeproof.outcomes import Outcome
from surgeproof.scenario import TargetConfig

_SAMPLE_WORDS = 256
"""So many that their mean tells the list's within 2 % or so, and twice as many fit the smallest contexts."""


class ProbePhases(msgspec.Struct, frozen=True, kw_only=True):
    """When each phase of a request ended, ms; the first four are lengths, the others count from the send."""

    dns_ms: float | None
    tcp_ms: float | None
    tls_ms: float | None
    write_ms: float | None
    headers_ms: float | None
    first_byte_ms: float | None
    first_event_ms: float | None
    first_token_ms: float | None
    first_answer_ms: float | None
    last_token_ms: float | None
    done_ms: float | None


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its answer; times are ms from the send, None where there is none."""

    outcome: str
    http_status: int | None
    ttft_ms: float | None
    time_to_first_answer_ms: float | None
    first_byte_ms: float | None
    last_token_ms: float | None
    done_ms: float | None
    content_text: str
    texts_by_choice: dict[str, str]
    reasoning_text: str
    tool_arguments: str
    output_tokens: int | None
    input_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    finish_reason: str | None
    finish_by_choice: dict[str, str]
    tpot_ms: float | None
    items: int | None
    events: int
    token_events: int
    merged_reads: int
    arrivals_ms: tuple[float | None, ...]
    body_bytes: int
    retries: int
    retry_after_s: float | None
    request_id: str | None
    server_timing: str | None
    warnings: tuple[str, ...]
    error: str | None
    stamp_source: str | None
    phases: ProbePhases
    lengths: PromptLengths | None = None


def probe(
    config: TargetConfig, base_url: str, model: str, prompt: str, max_tokens: int, secrets: Secrets
) -> ProbeResult:
    """Send one request and describe its answer.

    Raises:
        ConfigError: URL or certificates cannot be used.
    """
    clock = MonotonicClock()
    target = Target(base_url, endpoint_headers(config.endpoint, secrets.headers), config.tls)
    client = Client(target, config.timeouts, clock=clock)
    form = RequestForm(config, model)
    finished = Event()

    def payload() -> bytes:
        body = form.body(prompt, max_tokens, None, include_usage=target.include_usage)
        return target.request_bytes(form.path_of(None), msgspec.json.encode(body), {}, reuse=True)

    exchange = second_attempt.send(
        client, payload(), payload, lambda: form.reader(max_tokens, keep_text=True), lambda _: finished.set()
    )
    finished.wait()
    client.close()
    return describe(exchange, tls=target.tls_context is not None)


def measure_lengths(config: TargetConfig, base_url: str, model: str, secrets: Secrets) -> PromptLengths | None:
    """How many tokens the server counts for our words, by two requests for one token; None where it does not say."""
    words = sample_words(_SAMPLE_WORDS)
    counts = []
    for times in (1, 2):
        result = probe(config, base_url, model, " ".join(words * times), 1, secrets)
        if result.outcome != Outcome.OK or not result.input_tokens:
            return None
        counts.append(result.input_tokens)
    return lengths_of(len(words), *counts)


def describe(exchange: Exchange, *, tls: bool) -> ProbeResult:
    """A finished exchange as a timeline."""
    reader = exchange.reader
    origin = exchange.sent_at_ns

    def since_sent(at_ns: int | None) -> float | None:
        return None if at_ns is None or origin is None else round((at_ns - origin) / 1e6, 3)

    tpot_ns = reader.tpot_ns()
    ready_at = exchange.connected_at_ns or exchange.dispatched_at_ns
    phases = ProbePhases(
        dns_ms=_between(exchange.connect_at_ns, exchange.resolved_at_ns),
        tcp_ms=_between(exchange.resolved_at_ns, exchange.tcp_connected_at_ns),
        tls_ms=_between(exchange.tcp_connected_at_ns, exchange.connected_at_ns) if tls else None,
        write_ms=_between(ready_at, origin),
        headers_ms=since_sent(reader.headers_at_ns),
        first_byte_ms=since_sent(reader.first_byte_at_ns),
        first_event_ms=since_sent(reader.first_event_at_ns),
        first_token_ms=since_sent(reader.first_token_at_ns),
        first_answer_ms=since_sent(reader.first_answer_at_ns),
        last_token_ms=since_sent(reader.last_token_at_ns),
        done_ms=since_sent(reader.done_at_ns),
    )
    return ProbeResult(
        outcome=reader.outcome(),
        http_status=reader.http_status,
        ttft_ms=phases.first_token_ms,
        time_to_first_answer_ms=phases.first_answer_ms,
        first_byte_ms=phases.first_byte_ms,
        last_token_ms=phases.last_token_ms,
        done_ms=phases.done_ms,
        content_text=reader.text.answer(),
        texts_by_choice={str(index): text for index, text in reader.text.by_choice().items()},
        reasoning_text=reader.text.reasoning(),
        tool_arguments=reader.text.tool_arguments(),
        output_tokens=reader.usage.output_tokens,
        input_tokens=reader.usage.input_tokens,
        cached_tokens=reader.usage.cached_tokens,
        reasoning_tokens=reader.usage.reasoning_tokens,
        finish_reason=reader.choices.finish_reason,
        finish_by_choice={str(index): reason for index, reason in reader.choices.finish_by_choice.items()},
        tpot_ms=None if tpot_ns is None else round(tpot_ns / 1e6, 3),
        items=reader.items,
        events=reader.events,
        token_events=reader.token_events,
        merged_reads=reader.merged_reads,
        arrivals_ms=tuple(since_sent(at_ns) for at_ns in reader.arrivals_at_ns),
        body_bytes=reader.body_bytes,
        retries=exchange.retries,
        retry_after_s=reader.retry_after_s,
        request_id=reader.request_id,
        server_timing=reader.server_timing,
        warnings=reader.all_warnings(),
        error=reader.error,
        stamp_source=exchange.stamp_source,
        phases=phases,
    )


def _between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else round((end_ns - start_ns) / 1e6, 3)
