"""Every scripted server of the wire cases, over real sockets, against the right answers."""

import time
from typing import Any

import pytest

from surgeproof.sandbox.scripted import ScriptedServer
from surgeproof.scenario import Timeouts
from tests.conftest import wire_cases
from tests.integration.loadgen.client import ask, client_of, ms_since_sent

TOLERANCE_MS = 30.0
CASES = wire_cases()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_client_is_right_on_the_wire(case: dict[str, Any]) -> None:
    """Outcome, text, tokens, times and warnings are those of the case."""
    options = case.get("client", {})
    timeouts = Timeouts(read_s=options.get("idle_timeout_ms", 5000) / 1000)
    with (
        ScriptedServer([case, *case.get("then", [])]) as server,
        client_of(server.base_url, timeouts=timeouts) as client,
    ):
        began = time.monotonic()
        exchanges = [ask(client, _body(case), case["endpoint"]) for _ in range(options.get("requests", 1))]
        took_ms = (time.monotonic() - began) * 1000
        requests = list(server.requests)
    _check_first(case, exchanges[0])
    if "then" in case and options.get("requests", 1) > 1:
        last = case["then"][-1]["expect"]
        assert exchanges[-1].reader.outcome() == last["outcome"]
        assert exchanges[-1].reader.text.answer() == last["content_text"]
    if "requests_on_wire" in options:
        assert len(requests) == options["requests_on_wire"]
    if "second_request_must_not_contain" in options:
        assert options["second_request_must_not_contain"].encode() not in requests[1][2]
    if "must_finish_within_ms" in options:
        assert took_ms < options["must_finish_within_ms"] + 200


def _body(case: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}]} | case["request"]


def _check_first(case: dict[str, Any], exchange: Any) -> None:
    expect, reader = case["expect"], exchange.reader
    assert reader.outcome() in (expect["outcome"], *case.get("alt_outcomes", ()))
    assert reader.text.answer() in (expect["content_text"], expect.get("content_text_alt"))
    assert reader.text.reasoning() == expect["reasoning_text"]
    assert reader.usage.output_tokens == expect["output_tokens"]
    assert reader.choices.finish_reason == expect["finish_reason"]
    assert reader.token_events == expect["token_events"]
    assert set(expect["warnings"]) <= set(reader.all_warnings())
    _close(ms_since_sent(exchange, reader.first_token_at_ns), expect["ttft_ms"])
    _close(ms_since_sent(exchange, reader.last_token_at_ns), expect["last_token_ms"])
    tpot_ms = None if reader.tpot_ns() is None else reader.tpot_ns() / 1e6
    if "tpot_ms_any_of" in expect:
        assert any(abs(tpot_ms - value) <= TOLERANCE_MS for value in expect["tpot_ms_any_of"])
    else:
        _close(tpot_ms, expect["tpot_ms"])
    for key, value in expect.get("texts_by_choice", {}).items():
        assert reader.text.by_choice()[int(key)] == value
    for key, value in expect.get("finish_by_choice", {}).items():
        assert reader.choices.finish_by_choice[int(key)] == value
    if "retry_after_s" in expect:
        assert reader.retry_after_s == expect["retry_after_s"]


def _close(measured: float | None, expected: float | None) -> None:
    if expected is None:
        assert measured is None
    else:
        assert measured is not None
        assert abs(measured - expected) <= TOLERANCE_MS
