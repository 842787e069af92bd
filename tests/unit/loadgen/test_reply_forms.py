"""Replies of the other APIs in their public shapes: whole, byte by byte, and cut before their end."""

import json
from typing import Any, NamedTuple

import pytest

from surgeproof.loadgen.reply_forms import ITEMS, MESSAGES, RESPONSES, ReplyForm
from surgeproof.loadgen.stream import StreamReader

SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n"


class Case(NamedTuple):
    """A reply and what is right about it."""

    form: ReplyForm
    body: str
    text: str
    reasoning: str
    tool_arguments: str
    events: int
    tokens: int
    cached: int
    prompt: int
    finish: str


# The events and fields of the reference pages of OpenAI's responses and Anthropic's messages.
USAGE = {
    "input_tokens": 37, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 11,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 48,
}  # fmt: skip
RESPONSE = {"id": "resp_67c9", "object": "response", "model": "gpt", "output": []}
PLACE = {"item_id": "msg_67c9", "output_index": 0, "content_index": 0}
CASES = {
    "responses": Case(
        RESPONSES,
        event("response.created", response=RESPONSE | {"status": "in_progress", "usage": None})
        + event("response.in_progress", response=RESPONSE | {"status": "in_progress", "usage": None})
        + event("response.output_item.added", output_index=0, item={"id": "msg_67c9", "type": "message", "content": []})
        + event("response.content_part.added", **PLACE, part={"type": "output_text", "text": "", "annotations": []})
        + event("response.output_text.delta", **PLACE, delta="Hi")
        + event("response.output_text.delta", **PLACE, delta=" there!")
        + event("response.output_text.done", **PLACE, text="Hi there!")
        + event("response.content_part.done", **PLACE, part={"type": "output_text", "text": "Hi there!"})
        + event("response.output_item.done", output_index=0, item={"type": "message", "status": "completed"})
        + event("response.completed", response=RESPONSE | {"status": "completed", "usage": USAGE}),
        "Hi there!", "", "", 2, 11, 16, 37, "stop",
    ),
    "responses with reasoning and a call": Case(
        RESPONSES,
        event("response.created", response=RESPONSE)
        + event("response.reasoning_summary_text.delta", item_id="rs_1", summary_index=0, delta="Think")
        + event("response.output_item.added", output_index=1, item={"type": "function_call", "name": "get_weather"})
        + event("response.function_call_arguments.delta", item_id="fc_1", delta='{"city":')
        + event("response.function_call_arguments.delta", item_id="fc_1", delta='"Oslo"}')
        + event("response.function_call_arguments.done", item_id="fc_1", arguments='{"city":"Oslo"}')
        + event(
            "response.incomplete",
            response=RESPONSE
            | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": USAGE},
        ),
        "", "Think", '{"city":"Oslo"}', 4, 11, 16, 37, "length",
    ),
    "messages": Case(
        MESSAGES,
        event(
            "message_start",
            message={
                "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude",
                "stop_reason": None, "stop_sequence": None,
                "usage": {"input_tokens": 25, "cache_read_input_tokens": 10, "output_tokens": 1},
            },
        )
        + event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        + event("ping")
        + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hello"})
        + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "!"})
        + event("content_block_stop", index=0)
        + event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 15})
        + event("message_stop"),
        "Hello!", "", "", 2, 15, 10, 35, "stop",
    ),
    "messages with thinking and a tool": Case(
        MESSAGES,
        event("message_start", message={"type": "message", "usage": {"input_tokens": 472, "output_tokens": 2}})
        + event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})
        + event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "First"})
        + event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "EqQBCg"})
        + event("content_block_stop", index=0)
        + event("content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}})
        + event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": ""})
        + event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"a": 1}'})
        + event("content_block_stop", index=1)
        + event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 89})
        + event("message_stop"),
        "", "First", '{"a": 1}', 3, 89, None, 472, "tool_calls",  # type: ignore[arg-type]
    ),
}  # fmt: skip


def read(form: ReplyForm, *chunks: bytes, headers: dict[str, str] | None = None, **options: Any) -> StreamReader:
    """Feed chunks 10 ms apart, the first at 10 ms."""
    reader = StreamReader(None, keep_text=True, reply_form=form, **options)
    reader.on_head(200, headers or SSE, 1_000_000)
    for number, chunk in enumerate(chunks, 1):
        reader.on_body(chunk, number * 10_000_000)
    reader.on_end(len(chunks) * 10_000_000 + 1)
    return reader


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("size", [1, 7, 10**9], ids=["byte by byte", "sevens", "whole"])
def test_a_streamed_reply_is_read_alike_however_it_is_cut(case: Case, size: int) -> None:
    body = case.body.encode()
    reader = read(case.form, *(body[at : at + size] for at in range(0, len(body), size)))
    assert (reader.outcome(), reader.choices.finish_reason) == ("ok", case.finish)
    assert reader.text.answer() == case.text
    assert reader.text.reasoning() == case.reasoning
    assert reader.text.tool_arguments() == case.tool_arguments
    assert reader.token_events == case.events
    assert (reader.usage.input_tokens, reader.usage.output_tokens) == (case.prompt, case.tokens)
    assert reader.usage.cached_tokens == case.cached
    assert reader.saw_done


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_first_token_is_the_first_event_with_output(case: Case) -> None:
    """One event a read, 10 ms apart: role, item and block events hold no token."""
    events = [f"{part}\n\n".encode() for part in case.body.split("\n\n") if part]
    reader = read(case.form, *events)
    marks = ("output_text.delta", "reasoning_summary_text.delta", "text_delta", "thinking_delta")
    first = next(number for number, text in enumerate(events, 1) if any(mark in text.decode() for mark in marks))
    assert reader.first_token_at_ns == first * 10_000_000
    assert reader.done_at_ns == len(events) * 10_000_000


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_reply_that_is_cut_before_its_end_is_no_answer(case: Case) -> None:
    whole = case.body.encode()
    last = {RESPONSES: b"event: response.", MESSAGES: b"event: message_delta"}[case.form]
    assert read(case.form, whole[: whole.rindex(last)]).outcome() == "error:truncated"


@pytest.mark.parametrize(
    ("form", "body", "said"),
    [
        (MESSAGES, event("error", error={"type": "overloaded_error", "message": "Overloaded"}), "Overloaded"),
        (RESPONSES, event("error", code="server_error", message="it broke", param=None), "it broke"),
        (
            RESPONSES,
            event("response.failed", response=RESPONSE | {"error": {"code": "server_error", "message": "it broke"}}),
            "it broke",
        ),
    ],
)
def test_an_error_inside_a_stream_is_told(form: ReplyForm, body: str, said: str) -> None:
    reader = read(form, body.encode())
    assert reader.outcome() == "error:server_event"
    assert said in (reader.error or "")


WHOLE = {
    "responses": (
        RESPONSES,
        RESPONSE
        | {
            "status": "completed",
            "usage": USAGE,
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
                {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
            ],
        },
        ("Hi", "Hm", 11, "stop"),
    ),
    "messages": (
        MESSAGES,
        {
            "type": "message",
            "content": [{"type": "text", "text": "Hi"}],
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
        ("Hi", "", 4, "length"),
    ),
}


@pytest.mark.parametrize(("form", "body", "right"), WHOLE.values(), ids=WHOLE)
def test_an_answer_that_was_asked_for_whole_is_no_surprise(form: ReplyForm, body: Any, right: Any) -> None:
    reader = read(form, json.dumps(body).encode(), headers=JSON, streamed=False)
    assert reader.outcome() == "ok"
    assert reader.all_warnings() == ()
    assert (reader.text.answer(), reader.text.reasoning()) == right[:2]
    assert (reader.usage.output_tokens, reader.choices.finish_reason) == right[2:]
    assert reader.first_token_at_ns is None
    assert "not_streamed" in read(form, json.dumps(body).encode(), headers=JSON).all_warnings()


EMBEDDINGS = {
    "object": "list", "model": "e", "usage": {"prompt_tokens": 8, "total_tokens": 8},
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1]}, {"index": 1, "embedding": "AAAA"}],
}  # fmt: skip
RERANK = {
    "id": "score-1", "model": "r", "usage": {"total_tokens": 56},
    "results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "document": {"text": "x"}, "relevance_score": 0.1}],
}  # fmt: skip


@pytest.mark.parametrize(("body", "tokens"), [(EMBEDDINGS, 8), (RERANK, 56)])
def test_vectors_and_scores_are_counted_and_fewer_than_asked_are_no_answer(body: Any, tokens: int) -> None:
    reader = read(ITEMS, json.dumps(body).encode(), headers=JSON, streamed=False, items=2)
    assert (reader.outcome(), reader.items, reader.usage.input_tokens) == ("ok", 2, tokens)
    assert reader.all_warnings() == ()
    short = read(ITEMS, json.dumps(body).encode(), headers=JSON, streamed=False, items=3)
    assert (short.outcome(), short.error) == ("error:truncated", "2 items for 3 that were asked for")
    none = read(ITEMS, b'{"object": "list", "data": []}', headers=JSON, streamed=False, items=2)
    assert none.outcome() == "error:empty"
