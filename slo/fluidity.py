"""How smoothly an answer flows: the share of deadlines that it meets (Etalon's fluidity index, 2024). Pure.

The first token is due `first` after the planned time, each later one `next` after the one before was
due; the tokens of one arrival come together. Time won is carried forward, so that an early burst pays
for a later wait. A wait misses a deadline for each `next` that it lasts too long, and starts the
deadlines anew from where the answer is. Averages hide what this shows: one long stall among short gaps.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def fluidity(arrivals_ms: Floats, first_ms: float, next_ms: float) -> float:
    """The index of one answer, from 0 to 1.

    Args:
        arrivals_ms: times of its arrivals since the planned time; shape (n,).
        first_ms: deadline of the first.
        next_ms: distance of the deadlines after it.
    """
    if len(arrivals_ms) == 0:
        return 0.0
    due = first_ms + next_ms * np.arange(len(arrivals_ms))
    met, missed, start = 0, 0, 0
    while start < len(arrivals_ms):
        late = np.flatnonzero(arrivals_ms[start:] > due[start:])
        if len(late) == 0:
            met += len(arrivals_ms) - start
            break
        at = start + int(late[0])
        met += at - start
        missed += 1 + int((arrivals_ms[at] - due[at]) // next_ms)
        start = at + 1
        due[start:] = arrivals_ms[at] + next_ms * np.arange(1, len(arrivals_ms) - at)
    return met / (met + missed)


def fluidity_of(
    plan_index: npt.NDArray[np.int64],
    lag_ms: Floats,
    tokens: Floats,
    packed: Mapping[int, bytes | None],
    first_ms: float,
    next_ms: float,
) -> Floats:
    """The index of every request; NaN where its arrivals were not kept.

    Args:
        plan_index: of each request.
        lag_ms: from the planned time to the send of each.
        tokens: streamed by each; NaN where unknown, which is taken as one for each arrival.
        packed: uint32 microsecond steps from the send, by plan index.
        first_ms: deadline of the first token.
        next_ms: distance of the deadlines after it.
    """
    result = np.full(len(plan_index), np.nan)
    for place, index in enumerate(plan_index.tolist()):
        steps = packed.get(index)
        if steps is not None:
            at_ms = np.cumsum(np.frombuffer(steps, dtype="<u4").astype(np.float64)) / 1e3 + lag_ms[place]
            result[place] = fluidity(_by_token(at_ms, tokens[place]), first_ms, next_ms)
    return result


def _by_token(at_ms: Floats, tokens: float) -> Floats:
    """The time of each token: those of an answer are spread evenly over its arrivals, at least one to each."""
    if not tokens > len(at_ms):
        return at_ms
    ends = np.round(np.arange(1, len(at_ms) + 1) * (tokens / len(at_ms))).astype(np.int64)
    return np.repeat(at_ms, np.diff(ends, prepend=0))
