"""A client that is stopped reads several events at once: the truth lies inside what it reports."""

import json

import pytest

from surgeproof.loadgen.stream import StreamReader

MS = 1_000_000
SSE = {"content-type": "text/event-stream"}


def event(text: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def read_with_stall(
    stall_at_ms: int, stall_ms: int, *, tokens: int = 30, gap_ms: int = 7
) -> tuple[StreamReader, list[int]]:
    """Tokens every 7 ms from 40 ms on, through a loop that turns every millisecond but for one stall."""
    came_ns = [(40 + gap_ms * index) * MS for index in range(tokens)]
    reader = StreamReader()
    reader.on_head(200, SSE, 30 * MS)
    turns = [ms * MS for ms in range(30, 400) if not stall_at_ms < ms < stall_at_ms + stall_ms]
    empty_at = turns[0]
    for turn in turns:
        arrived = [at for at in came_ns if empty_at < at <= turn]
        if arrived:
            # The kernel keeps the time of the last segment.
            reader.on_body(b"".join(event(f"t{came_ns.index(at)} ") for at in arrived), arrived[-1], empty_at)
        empty_at = turn
    return reader, came_ns


@pytest.mark.parametrize("stall_ms", [5, 20, 60])
@pytest.mark.parametrize("stall_at_ms", [35, 38, 90])
def test_the_truth_is_inside_the_bounds(stall_at_ms: int, stall_ms: int) -> None:
    reader, came_ns = read_with_stall(stall_at_ms, stall_ms)
    assert reader.first_token_at_ns is not None
    assert reader.first_token_not_before_at_ns is not None
    assert reader.first_token_not_before_at_ns <= came_ns[0] <= reader.first_token_at_ns
    least, most = reader.max_gap_least_ns(), reader.max_gap_ns()
    assert least is not None
    assert most is not None
    assert least <= 7 * MS <= most
    assert reader.last_token_at_ns == came_ns[-1], "the time of a read is that of its last event"


def test_a_client_that_keeps_up_is_exact() -> None:
    reader, came_ns = read_with_stall(0, 0)
    assert reader.first_token_not_before_at_ns == reader.first_token_at_ns == came_ns[0]
    assert reader.max_gap_least_ns() == reader.max_gap_ns() == 7 * MS
    assert reader.merged == []


def test_a_stall_over_the_first_token_widens_it_by_the_stall_at_most() -> None:
    """Tokens at 40, 47 and 54 ms; nothing is read between 35 and 55: the first came after 35 and by 54."""
    reader, _ = read_with_stall(35, 20)
    assert reader.first_token_at_ns == 54 * MS
    assert reader.first_token_not_before_at_ns == 35 * MS


def test_a_role_before_the_first_token_in_one_read_hides_nothing() -> None:
    """The read's time is that of its last event, which is the first token."""
    reader = StreamReader()
    reader.on_head(200, SSE, 0)
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    reader.on_body(role + event("a"), 50 * MS, 10 * MS)
    assert reader.first_token_not_before_at_ns == 50 * MS


def test_an_answer_of_one_token_that_ends_in_the_same_read_is_vague() -> None:
    """The usage event and [DONE] may have come later than the token."""
    reader = StreamReader()
    reader.on_head(200, SSE, 0)
    reader.on_body(event("a") + b"data: [DONE]\n\n", 50 * MS, 10 * MS)
    assert reader.first_token_not_before_at_ns == 10 * MS
