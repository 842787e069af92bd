"""A toy server, to see what arrivals and lengths do together: neither is honest alone. Pure.

    service time = 0.05 s + input/20,000 s + output x 25 ms;  c slots, first come first served

Its seconds mean nothing; how a model's tail compares with the trace's is what a load test would see.
"""

import heapq

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_FIXED_S = 0.05
_INPUT_TOKENS_PER_S = 20_000.0
_S_PER_OUTPUT_TOKEN = 0.025
_UTILISATION = 0.8


def service_s(lengths: npt.NDArray[np.int64]) -> Floats:
    """Service time of each (input, output) pair, seconds; shape (n,)."""
    times: Floats = _FIXED_S + lengths[:, 0] / _INPUT_TOKENS_PER_S + lengths[:, 1] * _S_PER_OUTPUT_TOKEN
    return times


def slots_for(at_s: Floats, work_s: Floats) -> int:
    """Slots at which a server would be four fifths busy."""
    return max(1, round(float(work_s.sum()) / (float(at_s[-1]) * _UTILISATION)))


def waits_s(at_s: Floats, work_s: Floats, slots: int) -> Floats:
    """Time each request waits for one of `slots`, first come first served."""
    free = [0.0] * slots
    waits = np.empty(len(at_s))
    for index, (at, work) in enumerate(zip(at_s.tolist(), work_s.tolist(), strict=True)):
        start = max(at, free[0])
        heapq.heapreplace(free, start + work)
        waits[index] = start - at
    return waits


def concurrency(at_s: Floats, work_s: Floats, step_s: float = 1.0) -> npt.NDArray[np.int64]:
    """Requests in service every `step_s` where nobody waits: the batch size the load asks for."""
    moments = np.arange(0.0, float(at_s[-1]), step_s)
    ends = np.sort(at_s + work_s)
    inside: npt.NDArray[np.int64] = np.searchsorted(at_s, moments, "right") - np.searchsorted(ends, moments, "right")
    return inside
