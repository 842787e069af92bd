"""Prefix sharing and sessions of the Mooncake trace, against figures that others computed too."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from surgeproof.records import TracePoint
from surgeproof.traces.prefixes import cached_tokens, sessions_of
from surgeproof.traces.reader import read_trace


def point(index: int, tokens: int, *ids: int, session: str | None = None) -> TracePoint:
    return TracePoint(at_ns=index, input_tokens=tokens, output_tokens=1, row=index + 1, hash_ids=ids, session=session)


@pytest.fixture(scope="module")
def mooncake(request: pytest.FixtureRequest) -> list[TracePoint]:
    from tests.conftest import TRACES

    path = TRACES / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the public trace is not beside the checkout")
    return read_trace(path, undo_grid=False).points


@pytest.mark.parametrize(
    ("capacity", "percent"),
    [(None, 37.4), (300_000, 4.3), (1_000_000, 5.5), (3_000_000, 14.1), (10_000_000, 29.3), (51_000_000, 37.1)],
)
def test_a_cache_of_each_size_serves_the_known_share(
    capacity: int | None, percent: float, mooncake: list[TracePoint]
) -> None:
    total = sum(p.input_tokens for p in mooncake)
    assert 100 * sum(cached_tokens(mooncake, 512, capacity)) / total == pytest.approx(percent, abs=0.35)


def test_sessions_found_by_prefix_are_those_known(mooncake: list[TracePoint]) -> None:
    """33 % continue an earlier request, half lie in sessions, 90 % have at most 2 turns and 99 % at most 7."""
    sessions = sessions_of(mooncake)
    turns = Counter(session for session in sessions if session is not None)
    assert (sum(turns.values()) - len(turns)) / len(mooncake) == pytest.approx(0.33, abs=0.005)
    assert sum(turns.values()) / len(mooncake) == pytest.approx(0.50, abs=0.005)
    lengths = [*turns.values(), *[1] * sessions.count(None)]
    assert np.quantile(lengths, (0.9, 0.99)).tolist() == [2, 7]


def test_sharing_ends_at_the_first_block_that_differs() -> None:
    points = [point(0, 1200, 1, 2, 3), point(1, 1200, 1, 2, 4), point(2, 1100, 1, 9, 3), point(3, 600, 1, 2)]
    assert cached_tokens(points, 512) == [0, 1024, 512, 600]


def test_a_small_cache_forgets_what_was_not_used_longest() -> None:
    points = [point(0, 4, 1), point(1, 4, 2), point(2, 4, 1), point(3, 4, 3), point(4, 4, 2), point(5, 4, 1)]
    assert cached_tokens(points, 4, 8) == [0, 0, 4, 0, 0, 0]


def test_named_sessions_are_numbered_and_single_requests_left_alone() -> None:
    points = [point(0, 1, session="b"), point(1, 1), point(2, 1, session="a"), point(3, 1, session="b")]
    assert sessions_of(points) == [0, None, None, 0]


def test_real_files_keep_their_sessions(real_trace: Any) -> None:
    trace = read_trace(real_trace("burstgpt3_excerpt.csv"))
    assert any(p.session for p in trace.points)
