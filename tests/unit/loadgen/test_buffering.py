"""Which arrivals show a proxy that buffers, and which a network or a late client."""

import pytest

from surgeproof.loadgen.buffering import MergedRead, came_in_few_reads

MS = 1_000_000


def arrivals(*reads: tuple[int, int]) -> list[int]:
    """Token events from reads: (at, ms; tokens in it)."""
    return [at * MS for at, tokens in reads for _ in range(tokens)]


@pytest.mark.parametrize(
    ("reads", "buffered"),
    [
        (((122, 20), (190, 12)), True),  # 32 tokens through nginx with its default buffer
        (tuple((100 + 50 * i, 8) for i in range(6)), True),
        (tuple((150 * i, 3) for i in range(1, 4)), False),  # a server that sends three tokens at a time
        (tuple((6 * i, 1) for i in range(32)), False),
        (((190, 32),), False),  # all in one read has a warning of its own
        (tuple((100 + 2 * i, 8) for i in range(6)), False),  # reads 2 ms apart hide nothing
        (((100, 3), (200, 4)), False),  # too few tokens to tell
    ],
)
def test_many_tokens_in_few_reads_are_a_buffer(reads: tuple[tuple[int, int], ...], buffered: bool) -> None:
    assert came_in_few_reads(arrivals(*reads), []) is buffered


def test_a_client_that_read_late_is_no_proxy() -> None:
    """The same arrivals, where the client had not looked for 60 ms."""
    at = arrivals((122, 20), (190, 12))
    late = [MergedRead(0, 20, 62 * MS), MergedRead(20, 12, 130 * MS)]
    assert not came_in_few_reads(at, late)
    prompt = [MergedRead(0, 20, 121 * MS), MergedRead(20, 12, 189 * MS)]
    assert came_in_few_reads(at, prompt)
