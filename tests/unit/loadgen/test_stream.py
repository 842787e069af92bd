"""From body reads to one record: the wire cases without sockets, and what they leave open."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgeproof.loadgen.arrivals_codec import pack_arrivals, unpack_arrivals
from surgeproof.loadgen.stream import StreamReader
from tests.conftest import wire_cases

STREAMS = [
    case
    for case in wire_cases()
    if case["http_status"] == 200 and case["complete_body"] and all("text" in chunk for chunk in case["chunks"])
]
SSE = {"content-type": "text/event-stream"}


def read(
    *chunks: str | bytes, status: int = 200, headers: dict[str, str] | None = None, **options: Any
) -> StreamReader:
    """Feed chunks 10 ms apart, the first at 10 ms."""
    reader = StreamReader(64, keep_text=True, **options)
    reader.on_head(status, SSE if headers is None else headers, 1_000_000)
    for number, chunk in enumerate(chunks, 1):
        reader.on_body(chunk.encode() if isinstance(chunk, str) else chunk, number * 10_000_000)
    reader.on_end(len(chunks) * 10_000_000 + 1)
    return reader


def delta(**fields: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": fields}]}) + "\n\n"


def usage(tokens: int, **details: Any) -> str:
    return "data: " + json.dumps({"choices": [], "usage": {"completion_tokens": tokens} | details}) + "\n\n"


DONE = "data: [DONE]\n\n"
FINISH = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize("case", STREAMS, ids=[case["id"] for case in STREAMS])
def test_cutting_the_body_anywhere_changes_no_fact(case: dict[str, Any]) -> None:
    """Whole, and byte by byte."""
    body = "".join(chunk["text"] for chunk in case["chunks"]).encode("utf-8", "surrogatepass")
    headers = {name.lower(): value for name, value in case["headers"].items()}
    whole = read(body, headers=headers)
    pieces = read(*(body[i : i + 1] for i in range(len(body))), headers=headers) if len(body) < 5000 else whole
    for reader in (whole, pieces):
        assert reader.outcome() == case["expect"]["outcome"]
        assert reader.text.answer() in (case["expect"]["content_text"], case["expect"].get("content_text_alt"))
        assert reader.usage.output_tokens == case["expect"]["output_tokens"]
        assert reader.token_events == case["expect"]["token_events"]


def test_hidden_reasoning_is_taken_off_the_time_per_token() -> None:
    """100 of 103 tokens were reasoned before the first visible one: two steps of 10 ms followed it."""
    details = {"completion_tokens_details": {"reasoning_tokens": 100}}
    reader = read(delta(content="a"), delta(content="b"), delta(content="c"), FINISH + usage(103, **details) + DONE)
    assert reader.tpot_ns() == 10_000_000
    assert "hidden_reasoning" in reader.all_warnings()


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"function_call": {"name": "f"}},
        {"content": [{"type": "thinking", "thinking": "x"}]},
    ],
)
def test_generated_output_in_any_channel_is_the_first_token_but_no_answer(fields: dict[str, Any]) -> None:
    """Only visible text is an answer."""
    reader = read(delta(role="assistant", content=""), delta(**fields), delta(content="x"), FINISH + DONE)
    assert reader.first_token_at_ns == 20_000_000
    assert reader.first_answer_at_ns == 30_000_000


def test_a_refusal_is_what_the_user_reads() -> None:
    reader = read(delta(refusal="I can"), delta(refusal="not"), FINISH + DONE)
    assert reader.first_answer_at_ns == reader.first_token_at_ns == 10_000_000
    assert reader.text.answer() == "I cannot"


@pytest.mark.parametrize(
    "payload",
    [
        {"error": {"message": "x"}},
        {"error": "x"},
        {"object": "error", "message": "x", "code": 500},
        {"type": "error", "message": "x"},
        {"detail": "x"},
        {"code": 503, "message": "x"},
        {"error_code": 1, "error_msg": "x"},
    ],
)
def test_an_error_inside_a_200_stream_is_an_error(payload: dict[str, Any]) -> None:
    """In every form seen in the field, and although [DONE] follows."""
    reader = read(delta(content="a"), "data: " + json.dumps(payload) + "\n\n" + DONE)
    assert reader.outcome() == "error:server_event"
    assert reader.error


def test_a_null_error_field_is_no_error() -> None:
    """Some servers send `error: null` with every chunk."""
    chunk = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"error":null}\n\n'
    assert read(chunk, FINISH + DONE).outcome() == "ok"


def test_a_cut_after_the_terminal_signal_is_unclean_but_ok() -> None:
    """The answer was complete; the record ends at its last event."""
    reader = StreamReader(64)
    reader.on_head(200, SSE, 1)
    reader.on_body((delta(content="a") + FINISH).encode(), 5)
    reader.on_fault("error:reset", "reset", 99)
    assert (reader.outcome(), reader.done_at_ns) == ("ok", 5)
    assert "unclean_close" in reader.all_warnings()


def test_json_with_an_event_stream_content_type_is_read_as_json() -> None:
    """A gateway's error body with the wrong header is still its error."""
    assert read('{"error": {"message": "no"}}').outcome() == "error:server_event"


@pytest.mark.parametrize(
    "value", [None, 3, [], "x", {"choices": 7}, {"choices": [None, 4]}, {"choices": [{"delta": 5}]}]
)
def test_odd_json_never_raises(value: Any) -> None:
    """The worst server costs one record."""
    reader = read(f"data: {json.dumps(value)}\n\n" + DONE)
    assert reader.outcome() in ("error:malformed", "error:empty")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "usage",
                    "index",
                    "finish_reason",
                    "error",
                    "tool_calls",
                    "function",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(json_values, max_size=4))
def test_arbitrary_json_events_never_raise(values: list[Any]) -> None:
    """Field names are right, types are anything."""
    body = "".join(f"data: {json.dumps(value)}\n\n" for value in values) + DONE
    reader = read(body)
    assert reader.outcome().startswith(("ok", "error:"))
    reader.all_warnings()
    reader.tpot_ns()


def test_arrivals_are_packed_to_the_microsecond() -> None:
    """Four bytes an event, relative to the send."""
    packed = pack_arrivals(1_000_000_000, [1_000_123_456, 1_000_500_999, 9_000_000_000])
    assert packed is not None
    assert len(packed) == 12
    assert unpack_arrivals(packed) == [123, 500, 8_000_000]
    assert pack_arrivals(0, []) is None


TEXTS = st.text(st.sampled_from('ab ,.{}:é"\\\n\0'), min_size=0, max_size=4)
CHUNKS = st.one_of(
    TEXTS.map(lambda text: {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}),
    TEXTS.map(lambda text: {"choices": [{"index": 0, "delta": {"content": text, "role": "assistant"}}]}),
    TEXTS.map(lambda text: {"content": text, "choices": [{"index": 0, "delta": {"content": "x"}}]}),
    st.just({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]}),
    st.just({"choices": [{"index": 0, "delta": {"content": "c"}, "finish_reason": "stop"}]}),
    st.just({"choices": [], "usage": {"completion_tokens": 7}}),
    st.just({"error": {"message": "gone"}}),
)


@given(st.lists(st.tuples(CHUNKS, st.booleans(), st.booleans()), min_size=1, max_size=12), st.integers(1, 60))
@settings(deadline=None)
def test_tokens_known_by_their_form_are_those_that_json_would_tell(
    events: list[tuple[dict[str, Any], bool, bool]], cut: int
) -> None:
    """A reader that keeps its text decodes every event: with and without, read by read, all facts are the same."""
    wire = [
        (b"data: " + json.dumps(chunk, ensure_ascii=ascii_only).encode() + b"\n\n", merged)
        for chunk, ascii_only, merged in events
    ]
    reads: list[bytes] = [b""]
    for data, merged in wire:
        reads[-1] += data
        if not merged:
            reads.append(b"")
    body = b"".join(reads)
    for pieces in (reads, [body[i : i + cut] for i in range(0, len(body), cut)]):
        facts = []
        for keep_text in (True, False):
            reader = StreamReader(keep_text=keep_text)
            reader.on_head(200, SSE, 1)
            for number, piece in enumerate(pieces, 1):
                reader.on_body(piece, number)
            reader.on_end(99)
            facts.append(
                (reader.outcome(), reader.error, reader.events, reader.arrivals_at_ns, reader.last_token_at_ns,
                 reader.first_answer_at_ns, reader.merged_reads, reader.usage.output_tokens,
                 reader.choices.finish_by_choice,
                 reader.all_warnings())
            )  # fmt: skip
        assert facts[0] == facts[1]


@pytest.mark.parametrize("broken", ['a"b', "a\\", "", "a\tb", 'a","x":"b'])
def test_what_only_looks_like_a_token_of_the_known_form_is_decoded(broken: str) -> None:
    """After three good tokens, one whose text is not plain: broken JSON is told, an empty text is no token."""
    good = 'data: {"id":"1","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    reader = StreamReader()
    reader.on_head(200, SSE, 1)
    for text in ("w", " x", " y", broken):
        reader.on_body((good % text).encode(), 2)
    reader.on_body(DONE.encode(), 3)
    reader.on_end(3)
    expected = {"": "ok", 'a","x":"b': "ok"}.get(broken, "error:malformed")
    assert (reader.outcome(), reader.token_events) == (expected, 4 if "x" in broken else 3)


def test_an_empty_text_among_the_tokens_of_one_read_is_no_token() -> None:
    good = 'data: {"id":"1","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    reader = StreamReader()
    reader.on_head(200, SSE, 1)
    for text in ("w", " x"):
        reader.on_body((good % text).encode(), 2)
    reader.on_body((good % " y" + good % "" + good % " z").encode(), 3)
    assert (reader.events, reader.token_events) == (5, 4)


@pytest.mark.parametrize(
    "event",
    [
        {"choices": None, "base_resp": {"status_code": 1013, "status_msg": "service failed"}},
        {"code": "DataInspectionFailed", "message": "service failed", "request_id": "r"},
        {"success": False, "message": "service failed"},
    ],
)
def test_a_failure_inside_a_stream_is_seen_in_whatever_form(event: dict[str, Any]) -> None:
    reader = read(delta(content="a"), f"data: {json.dumps(event)}\n\n", DONE)
    assert reader.outcome() == "error:server_event"
    assert "service failed" in (reader.error or "")


def test_a_good_status_beside_the_choices_is_no_failure() -> None:
    status = {"status_code": 0, "status_msg": "success"}
    chunk = {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}], "base_resp": status}
    assert read(delta(content="a"), f"data: {json.dumps(chunk)}\n\n", DONE).outcome() == "ok"


@pytest.mark.parametrize("reason", ["insufficient_system_resource", "network_error", "server_overloaded", "cancelled"])
def test_an_answer_that_was_given_up_is_aborted(reason: str) -> None:
    finish = f'data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}\n\n'
    assert read(delta(content="a"), finish, DONE).outcome() == "error:aborted"


def test_a_whole_message_after_deltas_is_no_token() -> None:
    whole = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}],
    }
    reader = read(delta(content="a"), delta(content="b"), f"data: {json.dumps(whole)}\n\n", DONE)
    assert (reader.token_events, reader.last_token_at_ns, reader.outcome()) == (2, reader.arrivals_at_ns[1], "ok")


def test_messages_alone_are_tokens() -> None:
    """Some servers stream `message` in place of `delta`."""
    parts = [{"choices": [{"index": 0, "message": {"content": text}}]} for text in "ab"]
    assert read(*(f"data: {json.dumps(part)}\n\n" for part in parts), FINISH + DONE).token_events == 2


def test_reasoning_that_only_the_total_holds_is_counted() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 59,
             "completion_tokens_details": {"reasoning_tokens": 50}}  # fmt: skip
    inside = usage | {"total_tokens": 64, "completion_tokens": 59}
    for told, tokens in ((usage, 54), (inside, 59)):
        event = f"data: {json.dumps({'choices': [], 'usage': told})}\n\n"
        assert read(delta(content="a"), delta(content="b"), FINISH, event + DONE).output_tokens() == tokens


def test_usage_of_zero_beside_text_is_unknown() -> None:
    event = 'data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}\n\n'
    reader = read(delta(content="a"), FINISH, event + DONE)
    assert reader.output_tokens() is None
    assert "usage_all_zero" in reader.all_warnings()


def test_more_events_than_tokens_are_told() -> None:
    event = 'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    reader = read(delta(content="the prompt"), delta(content="a"), delta(content="b"), FINISH, event + DONE)
    assert "more_events_than_tokens" in reader.all_warnings()


def test_a_stop_token_without_text_is_an_answer() -> None:
    event = 'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    reader = read(FINISH, event + DONE)
    assert reader.outcome() == "ok"
    assert "no_output_event" in reader.all_warnings()
    assert read(FINISH, DONE).outcome() == "error:empty"


@pytest.mark.parametrize(("odd", "warning"), [("42", "event_is_no_object"), (": PROCESSING", "comment_as_data")])
def test_odd_events_are_told_and_the_stream_goes_on(odd: str, warning: str) -> None:
    reader = read(delta(content="a"), f"data: {odd}\n\n", delta(content="b"), FINISH + DONE)
    assert (reader.outcome(), reader.token_events) == ("ok", 2)
    assert warning in reader.all_warnings()


def test_a_stream_of_json_lines_is_named() -> None:
    reader = StreamReader()
    reader.on_head(200, {"content-type": "application/x-ndjson"}, 0)
    reader.on_body(b'{"choices":[]}\n{"choices":[]}\n', 1)
    reader.on_end(2)
    assert reader.outcome() == "error:content_type"
    assert "application/x-ndjson" in (reader.error or "")
