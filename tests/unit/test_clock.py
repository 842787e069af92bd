"""Clock offsets by exchanged stamps, against RFC 5905's worked formula."""

from hypothesis import given
from hypothesis import strategies as st

from surgeproof.clock import estimate_offset


def test_equal_ways_give_the_exact_offset() -> None:
    """T1=100, T2=1150, T3=1160, T4=210: theta = ((T2-T1)+(T3-T4))/2 = 1000, delta = 100."""
    found = estimate_offset([(100, 1150, 1160, 210)])
    assert (found.ahead_ns, found.uncertainty_ns) == (1000, 50)


@given(
    ahead=st.integers(-(10**12), 10**12),
    ways=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20),
)
def test_the_truth_lies_within_the_uncertainty(ahead: int, ways: list[tuple[int, int]]) -> None:
    exchanges = [(0, there + ahead, there + ahead + 5, there + 5 + back) for there, back in ways]
    found = estimate_offset(exchanges)
    assert abs(found.ahead_ns - ahead) <= found.uncertainty_ns + 1
    assert found.uncertainty_ns <= min(there + back for there, back in ways) / 2 + 1
