"""Did a proxy hold tokens back and deliver many at a time? Told from when they arrived. Pure.

A proxy that buffers (nginx by default) fills a block before it sends it on: the first token comes late, the last ones
come together, and the time per token between them looks shorter than it was.
"""

from collections.abc import Sequence
from typing import NamedTuple

from surgeproof.records import NS_PER_MS

_MIN_TOKENS = 8
_TOKENS_PER_READ = 5
"""Servers and networks may put a few tokens into one segment; a buffer of 4 kB holds about twenty."""
_MIN_INTERVAL_NS = 20 * NS_PER_MS
"""Reads that follow one another faster hide no time worth a warning."""
_PROMPT_NS = 2 * NS_PER_MS
"""A read that may be later than this after its first bytes holds several tokens by the client's own doing."""


class MergedRead(NamedTuple):
    """A read of several token events: the first one's place among all, their number, when none had come yet."""

    first: int
    tokens: int
    not_before_ns: int


def came_in_few_reads(arrivals_at_ns: Sequence[int], merged: Sequence[MergedRead]) -> bool:
    """Whether tokens arrived many at a time although the client read promptly.

    Args:
        arrivals_at_ns: of each token event, in order; those of one read are equal.
        merged: the reads of several tokens that the client may have been late for.
    """
    tokens = len(arrivals_at_ns)
    if tokens < _MIN_TOKENS:
        return False
    reads = len(set(arrivals_at_ns))
    late = sum(read.tokens - 1 for read in merged if arrivals_at_ns[read.first] - read.not_before_ns > _PROMPT_NS)
    span_ns = arrivals_at_ns[-1] - arrivals_at_ns[0]
    return reads > 1 and tokens >= _TOKENS_PER_READ * (reads + late) and span_ns >= _MIN_INTERVAL_NS * (reads - 1)
