"""Arrival processes: the planned times of a run, made whole before it starts. Pure numpy.

Times are offsets from the start in ns, sorted, int64. A process is drawn until `duration_s` or
`count` is reached, whichever is first; at least one must be given. Gaps are never rescaled to hit
a duration exactly, so their law stays what it says.
"""

import numpy as np
import numpy.typing as npt

from surgeproof.records import NS_PER_S

Times = npt.NDArray[np.int64]


def constant(rate_per_s: float, *, duration_s: float | None = None, count: int | None = None) -> Times:
    """Equal gaps of 1/rate, the first request at 0."""
    wanted = _limit(rate_per_s, duration_s, count)
    times = np.arange(wanted, dtype=np.float64) / rate_per_s
    return _cut(times, duration_s, count)


def gamma(
    rate_per_s: float,
    shape: float,
    rng: np.random.Generator,
    *,
    duration_s: float | None = None,
    count: int | None = None,
) -> Times:
    """Independent Gamma gaps of mean 1/rate.

    Args:
        rate_per_s: mean arrivals a second.
        shape: k; the gaps' squared coefficient of variation is 1/k. Below 1 is burstier than
            Poisson, 1 is Poisson (vLLM calls it burstiness).
        rng: source of the gaps.
        duration_s: end of the schedule, seconds.
        count: number of requests at most.
    """
    wanted = _limit(rate_per_s, duration_s, count)
    times = np.zeros(0)
    end = 0.0
    while len(times) < wanted or (count is None and end < (duration_s or 0)):
        chunk = max(1024, int(wanted * 0.1) if len(times) else wanted)
        gaps = rng.gamma(shape, 1.0 / (shape * rate_per_s), size=chunk)
        times = np.concatenate((times, end + np.cumsum(gaps)))
        end = float(times[-1])
    return _cut(times, duration_s, count)


def poisson(
    rate_per_s: float,
    rng: np.random.Generator,
    *,
    duration_s: float | None = None,
    count: int | None = None,
) -> Times:
    """Independent exponential gaps of mean 1/rate."""
    return gamma(rate_per_s, 1.0, rng, duration_s=duration_s, count=count)


def at_once(count: int) -> Times:
    """All at the start: an unlimited request rate."""
    return np.zeros(count, dtype=np.int64)


def _limit(rate_per_s: float, duration_s: float | None, count: int | None) -> int:
    if count is not None:
        return count
    assert duration_s is not None, "a schedule needs a duration or a count"
    return int(np.ceil(rate_per_s * duration_s))


def _cut(times: npt.NDArray[np.float64], duration_s: float | None, count: int | None) -> Times:
    if count is not None:
        times = times[:count]
    if duration_s is not None:
        times = times[times < duration_s]
    return np.round(times * NS_PER_S).astype(np.int64)
