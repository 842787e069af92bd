"""The event-stream parser: grammar, splits, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgeproof.loadgen.sse import EventTooLongError, SseParser

STREAMS = {
    "lf": (b"data: a\n\ndata: b\n\n", [(None, b"a"), (None, b"b")]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [(None, b"a"), (None, b"b")]),
    "cr": (b"data: a\r\rdata: b\r\r", [(None, b"a"), (None, b"b")]),
    "mixed ends": (b"data: a\r\n\ndata: b\r\rdata: c\n\r\n", [(None, b"a"), (None, b"b"), (None, b"c")]),
    "comments": (b": ping\n\n: x\ndata: a\n\n", [(None, b"a")]),
    "named": (b"event: error\nid: 7\nretry: 10\ndata: x\n\n", [(b"error", b"x")]),
    "multi-line": (b"data: a\ndata: b\n\n", [(None, b"a\nb")]),
    "no space": (b"data:a\n\n", [(None, b"a")]),
    "two spaces": (b"data:  a\n\n", [(None, b" a")]),
    "empty data": (b"data:\n\ndata\n\n", []),
    "field without colon": (b"foo\ndata: a\n\n", [(None, b"a")]),
    "bom": (b"\xef\xbb\xbfdata: a\n\n", [(None, b"a")]),
    "many blank lines": (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [(None, b"a"), (None, b"b")]),
    "unicode line separators": ("data: a\u2028b\u0085c\n\n".encode(), [(None, "a\u2028b\u0085c".encode())]),
    "error field": (b'error: {"code":400}\n\n', [(b"error", b'{"code":400}')]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_the_same_events_whole_and_byte_by_byte(name: str) -> None:
    """How the network cut the bytes changes nothing."""
    stream, events = STREAMS[name]
    expected = events
    assert SseParser().feed(stream) == expected
    parser = SseParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == expected
    assert parser.close() == []


@pytest.mark.parametrize("name", STREAMS)
def test_an_event_is_dispatched_by_the_read_that_completes_it(name: str) -> None:
    """The last event of a complete stream needs no further byte."""
    stream, events = STREAMS[name]
    parser = SseParser()
    out = [len(parser.feed(bytes([byte]))) for byte in stream]
    assert sum(out) == len(events)


def test_the_end_of_the_body_yields_an_event_without_its_blank_line() -> None:
    """Real servers stop right after `data: [DONE]`."""
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: [DONE]") == [(None, b"a")]
    assert parser.close() == [(None, b"[DONE]")]


def test_a_tail_after_a_complete_event_is_kept_for_the_next_read() -> None:
    """A read may end anywhere."""
    parser = SseParser()
    assert parser.feed(b"data: a\n\nda") == [(None, b"a")]
    assert parser.feed(b"ta: b\n\n") == [(None, b"b")]


def test_an_event_longer_than_the_limit_is_refused() -> None:
    """Memory is bounded, and the error says by how much."""
    parser = SseParser(max_event_bytes=1000)
    with pytest.raises(EventTooLongError, match="1000"):
        for _ in range(100):
            parser.feed(b"data: " + b"x" * 50 + b"\n")


lines = st.sampled_from([b"data: a", b"data:b", b": c", b"event: e", b"", b"junk", b"data: \xe2\x82\xac", b"id: 1"])
ends = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(lines, ends), max_size=30), st.data())
def test_any_split_gives_the_same_events(parts: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """Split points are drawn at random."""
    stream = b"".join(line + end for line, end in parts)
    whole = SseParser()
    expected = whole.feed(stream) + whole.close()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser, got, start = SseParser(), [], 0
    for cut in [*cuts, len(stream)]:
        got += parser.feed(stream[start:cut])
        start = cut
    assert got + parser.close() == expected


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(stream: bytes) -> None:
    """No input raises anything but the limit."""
    parser = SseParser()
    parser.feed(stream)
    parser.close()
