"""Shared beginnings of prompts: what a prefix cache could serve, and which requests continue a conversation.

A trace's hash ids name blocks of a fixed number of tokens, each id standing for its block and all
before it: two requests share exactly the ids at their beginnings. Pure.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from surgeproof.records import BLOCK_TOKENS, TracePoint


def cached_tokens(
    points: Iterable[TracePoint], block_tokens: int = BLOCK_TOKENS, capacity_tokens: int | None = None
) -> list[int]:
    """Prompt tokens of each request that a prefix cache would hold when it comes.

    Args:
        points: requests in order of time.
        block_tokens: tokens of a block.
        capacity_tokens: of a cache that evicts the least recently used block; None never evicts.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    capacity = capacity_tokens // block_tokens if capacity_tokens is not None else None
    results = []
    for point in points:
        hits = 0
        for block in point.hash_ids:
            if block not in cache:
                break
            hits += 1
        results.append(min(hits * block_tokens, point.input_tokens))
        for block in point.hash_ids:
            cache[block] = None
            cache.move_to_end(block)
        while capacity is not None and len(cache) > capacity:
            cache.popitem(last=False)
    return results


def sessions_of(points: Sequence[TracePoint], block_tokens: int = BLOCK_TOKENS) -> list[int | None]:
    """Number of the conversation that each request belongs to; None for a request on its own.

    By the names that the trace gives, else by its hash ids: a request continues the last one whose
    whole blocks its own begin with, as far as these go beyond the beginning that all requests share.
    """
    if any(point.session is not None for point in points):
        names = [point.session for point in points]
    else:
        names = _by_prefix(points, block_tokens)
    turns: dict[str, int] = {}
    for name in names:
        if name is not None:
            turns[name] = turns.get(name, 0) + 1
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) if name is not None and turns[name] > 1 else None for name in names]


def _by_prefix(points: Sequence[TracePoint], block_tokens: int) -> list[str | None]:
    common = _common_blocks(points)
    last_with: dict[int, str] = {}
    names: list[str | None] = []
    for index, point in enumerate(points):
        name = next(
            (last_with[block] for block in reversed(point.hash_ids[common:]) if block in last_with), None
        ) if point.hash_ids else None  # fmt: skip
        name = name or f"#{index}"
        names.append(name)
        whole = point.input_tokens // block_tokens
        if whole > common and len(point.hash_ids) >= whole:
            last_with[point.hash_ids[whole - 1]] = name
    return names


def _common_blocks(points: Sequence[TracePoint]) -> int:
    """Blocks at the beginning that nine tenths of the requests share: a system prompt."""
    with_blocks = [point.hash_ids for point in points if point.hash_ids]
    depth = 0
    while with_blocks:
        heads = [ids[depth] for ids in with_blocks if len(ids) > depth]
        if not heads or max(heads.count(head) for head in set(heads[:50])) < 0.9 * len(with_blocks):
            break
        depth += 1
    return depth
