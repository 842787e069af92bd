"""HTTP replies without a socket: every scripted reply whole, byte by byte and with a tail, at exact times."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgeproof.loadgen.http_reply import Action, HttpReply, State
from surgeproof.loadgen.stream import StreamReader
from surgeproof.outcomes import Outcome
from surgeproof.sandbox.scripted import exchange, reply_bytes
from tests.conftest import wire_cases

Pieces = list[tuple[int, bytes]]
START_NS = 1_800_000_000_000_000_000
MS = 1_000_000

# Cases about what the client does around a reply: they are played over sockets (test_wire_cases).
AROUND_A_REPLY = {
    case["id"]
    for case in wire_cases()
    if case["http_status"] is None or {"requests", "requests_on_wire"} & case.get("client", {}).keys() or "then" in case
}
CASES = [case for case in wire_cases() if case["id"] not in AROUND_A_REPLY]
OK_BODY = b"data: [DONE]\n\n"
TAIL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def pieces_of(case: dict[str, Any]) -> Pieces:
    """What the server writes and when, ns."""
    at_ns, pieces = START_NS, []
    for delay_s, data in reply_bytes(case):
        at_ns += round(delay_s * 1e9)
        if data:
            pieces.append((at_ns, data))
    return pieces


def byte_by_byte(pieces: Pieces) -> Pieces:
    return [(at_ns, data[place : place + 1]) for at_ns, data in pieces for place in range(len(data))]


def with_tail(pieces: Pieces) -> Pieces:
    """A second reply in the read that ends the first one: nobody asked for it."""
    *rest, (at_ns, last) = pieces
    return [*rest, (at_ns, last + TAIL)]


def play(pieces: Iterable[tuple[int, bytes]], close: str, max_tokens: int | None = None) -> tuple[StreamReader, Action]:
    """Feed a reply as a connection would, up to its end."""
    reader = StreamReader(max_tokens, keep_text=True)
    reply, at_ns = HttpReply(), START_NS
    reply.begin(reader)
    action = Action.CONTINUE
    for at_ns, data in pieces:
        action = reply.feed(data, at_ns)
        if action in (Action.KEEP, Action.CLOSE):
            return reader, action
        if action is Action.FAULT:
            reader.on_fault(*reply.fault, at_ns)
            return reader, action
    if close == "clean":
        action = reply.end(at_ns)
        if action is Action.FAULT:
            reader.on_fault(*reply.fault, at_ns)
    elif close == "reset":
        reader.on_fault(Outcome.RESET, "connection reset", at_ns)
    else:
        reader.on_fault(Outcome.TIMEOUT, "read timeout", at_ns)
    return reader, action


def facts(reader: StreamReader) -> dict[str, Any]:
    return {
        "outcome": reader.outcome(),
        "content_text": reader.text.answer(),
        "reasoning_text": reader.text.reasoning(),
        "output_tokens": reader.usage.output_tokens,
        "finish_reason": reader.choices.finish_reason,
        "token_events": reader.token_events,
        "ttft_ms": None if reader.first_token_at_ns is None else (reader.first_token_at_ns - START_NS) / MS,
        "last_token_ms": None if reader.last_token_at_ns is None else (reader.last_token_at_ns - START_NS) / MS,
    }


def right(case: dict[str, Any], reader: StreamReader) -> None:
    """Every fact is the case's; times are exact, since stamps are given."""
    expect, found = case["expect"], facts(reader)
    assert found.pop("outcome") in (expect["outcome"], *case.get("alt_outcomes", ()))
    assert found.pop("content_text") in (expect["content_text"], expect.get("content_text_alt"))
    assert found == {name: expect[name] for name in found}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_scripted_reply_is_right_whole_byte_by_byte_and_with_a_tail(case: dict[str, Any]) -> None:
    pieces, close, most = pieces_of(case), case["close"], case["request"].get("max_tokens")
    right(case, play(pieces, close, most)[0])
    right(case, play(byte_by_byte(pieces), close, most)[0])
    if case["complete_body"] and case["framing"] != "close":
        reader, action = play(with_tail(pieces), close, most)
        right(case, reader)
        assert action is not Action.KEEP, "a connection that says more than it was asked is not used again"


def test_few_cases_are_about_more_than_one_reply() -> None:
    assert len(CASES) > 70


@given(st.lists(st.integers(1, 400), max_size=8))
def test_any_cut_gives_the_same_facts(cuts: list[int]) -> None:
    delta = '{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}'
    script = exchange((0, f"data: {delta}\n\n" * 3), (0, "data: [DONE]\n\n"))
    whole = b"".join(data for _, data in reply_bytes(script))
    pieces, rest = [], whole
    for cut in cuts:
        pieces.append((START_NS, rest[:cut]))
        rest = rest[cut:]
    reader, action = play([piece for piece in (*pieces, (START_NS, rest)) if piece[1]], "keepalive")
    assert (reader.outcome(), reader.token_events, action) == ("ok", 3, Action.KEEP)


# -- the table of states -----------------------------------------------------------------------------


def fed(*data: bytes) -> tuple[HttpReply, StreamReader, list[Action]]:
    reply, reader = HttpReply(), StreamReader()
    reply.begin(reader)
    return reply, reader, [reply.feed(piece, START_NS) for piece in data]


def test_the_state_follows_the_reply() -> None:
    reply = HttpReply()
    assert reply.state is State.IDLE
    reply.begin(StreamReader())
    seen = []
    for piece in (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 14\r\n\r\n", b"data: ", b"[DONE]\n\n"):
        reply.feed(piece, START_NS)
        seen.append(reply.state)
    assert seen == [State.HEAD, State.BODY, State.BODY, State.IDLE]


@pytest.mark.parametrize(
    ("head", "action"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n", Action.KEEP),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 14\r\n\r\n", Action.CLOSE),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 14\r\n\r\n", Action.CLOSE),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 14\r\n\r\n", Action.KEEP),
    ],
)
def test_a_connection_is_kept_as_http_says(head: bytes, action: Action) -> None:
    _, reader, actions = fed(head + OK_BODY)
    assert actions == [action]
    assert reader.done_at_ns == START_NS


def test_one_connection_carries_one_reply_after_the_other() -> None:
    reply, first, second = HttpReply(), StreamReader(), StreamReader()
    for reader, status in ((first, b"200 OK"), (second, b"503 Busy")):
        reply.begin(reader)
        assert reply.feed(b"HTTP/1.1 " + status + b"\r\nContent-Length: 14\r\n\r\n" + OK_BODY, START_NS) is Action.KEEP
    assert (first.http_status, second.http_status) == (200, 503)


def test_interim_replies_are_passed_over() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nX-Request-Id: early\r\n\r\n"
    _, reader, actions = fed(interim, b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + OK_BODY)
    assert actions == [Action.CONTINUE, Action.KEEP]
    assert (reader.http_status, reader.request_id) == (200, None)


def test_the_last_event_is_reported_once_while_the_framing_is_open() -> None:
    _, _, actions = fed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n" + OK_BODY, b"\r\n", b"0\r\n\r\n")
    assert actions == [Action.LAST_EVENT, Action.CONTINUE, Action.KEEP]


def test_a_body_without_length_ends_with_the_connection() -> None:
    reply, reader, _ = fed(b"HTTP/1.1 200 OK\r\n\r\n" + OK_BODY)
    assert reply.end(START_NS + 5) is Action.CLOSE
    assert reader.outcome() == "error:empty", "a stream without a token"


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((), "no response"),
        ((b"HTTP/1.1 200 OK\r\nConte",), "before the reply had ended"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata",), "before the reply had ended"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndat",), "before the reply had ended"),
    ],
)
def test_an_end_before_the_replys_end_is_a_fault(pieces: tuple[bytes, ...], message: str) -> None:
    reply, _, _ = fed(*pieces)
    assert reply.end(START_NS) is Action.FAULT
    outcome, text = reply.fault
    assert outcome is Outcome.DISCONNECT
    assert message in text
    assert reply.received == bool(pieces)


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"\x16\x03\x01\x00"]
)
def test_bytes_that_are_not_http_are_a_fault(data: bytes) -> None:
    reply, reader, actions = fed(data)
    assert actions == [Action.FAULT]
    assert reply.fault[0] is Outcome.MALFORMED
    assert reader.headers_at_ns is None


def test_damage_in_the_middle_hands_on_what_came_before() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply, reader, actions = fed(head + b"8\r\ndata: {}\r\n" + b"zz\r\n")
    assert actions == [Action.FAULT]
    assert (reply.fault[0], reader.body_bytes) == (Outcome.MALFORMED, 8)


def test_damage_after_a_whole_reply_costs_the_connection_only() -> None:
    _, reader, actions = fed(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + OK_BODY + b"\x00\x01garbage\r\n\r\n")
    assert actions == [Action.CLOSE]
    assert reader.done_at_ns == START_NS


def test_a_switch_of_protocols_is_a_fault() -> None:
    reply, _, actions = fed(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert actions == [Action.FAULT]
    assert "switched protocols" in reply.fault[1]


def test_a_transfer_coding_is_told_as_a_content_coding() -> None:
    import gzip

    body = gzip.compress(OK_BODY)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    _, reader, actions = fed(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    assert actions == [Action.KEEP]
    assert reader.saw_done


def test_repeated_fields_are_joined() -> None:
    _, reader, _ = fed(b"HTTP/1.1 200 OK\r\nServer-Timing: a\r\nserver-timing: b\r\nContent-Length: 0\r\n\r\n")
    assert reader.server_timing == "a, b"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n", b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
        (b"Content-Length: 14\n\n", OK_BODY),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"e  \r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
    ],
    ids=["length beside chunks", "line ends without CR", "blanks after a size"],
)
def test_framing_that_gateways_send_and_clients_accept(head: bytes, body: bytes) -> None:
    end = b"\r\n" if b"\r" in head else b"\n"
    reply = end.join((b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream", head)) + body
    held, reader = HttpReply(), StreamReader()
    held.begin(reader)
    assert held.feed(reply, START_NS) is Action.KEEP
    assert reader.saw_done


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 65536),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 8192),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2048),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X-A: a\r\n" * 8192),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536),
    ],
    ids=["a header", "headers", "interim replies", "trailers", "an extension"],
)
def test_endless_framing_ends_the_reply(start: bytes, more: bytes) -> None:
    """A megabyte of it is enough; none of it may be kept for ever."""
    held = HttpReply()
    held.begin(StreamReader())
    held.feed(start, START_NS)
    actions = [held.feed(more, START_NS) for _ in range(40)]
    assert Action.FAULT in actions[:20]
    assert "without any body" in held.fault[1] or "not HTTP/1.1" in held.fault[1]
