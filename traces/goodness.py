"""Does a profile make traffic like its trace? A table of checks, each with its own bound. Pure.

The trace is compared with seeded replicates of the model. A check is not passed where its difference is
larger than is accepted and larger than chance explains: one rank test over all checks (Besag and
Clifford, Biometrika 76, 1989; envelopes as by Myllymaki et al., Journal of the Royal Statistical Society
B 79, 2017) lets traces of the model itself fail in 5 % of cases. What each check means and where its
bounds come from: docs/arrivals.md.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.dispersion import dispersion
from surgeproof.errors import TraceError
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.fit import operational_gaps
from surgeproof.traces.profile import Arrivals, Profile
from surgeproof.traces.queueing import concurrency, service_s, slots_for, waits_s

Floats = npt.NDArray[np.float64]
Lengths = npt.NDArray[np.int64]

SEEDS = 99
LEVEL = 0.05
"""Share of traces of the model itself that may fail."""
PASS, WARN, FAIL = "pass", "warn", "fail"
_MIN_DISPERSION = 1e-3
_SMALLEST = 1e-3
"""Added to a figure before its logarithm is taken."""
_DISPERSION_S = (1.0, 10.0, 60.0, 300.0)
_CURVE_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_PEAK_S = (10.0, 60.0)
_WORK_S = (10.0, 60.0, 300.0)
_LENGTH_WINDOW_S = 300.0
_LINK_WINDOW_S = 5.0
_MIN_REQUESTS = 200
_MIN_SPAN_S = 20.0
_TAIL = np.linspace(0.0, 1.0, 201)


class Check(msgspec.Struct, frozen=True):
    """One line of the report.

    Attributes:
        group: the kind of property that is compared.
        name: what is compared, with its window where there is one.
        trace: the trace's value.
        model: the mean of the replicates.
        low: 5 % of the replicates.
        high: 95 % of them.
        bound: the accepted range, in words.
        result: pass, warn or fail.
        deviation: distance of the trace from the mean of all, in standard deviations; None where there is no spread to
            compare with.
    """

    group: str
    name: str
    trace: float
    model: float
    low: float
    high: float
    bound: str
    result: str
    deviation: float | None = None


class DispersionCurve(msgspec.Struct, frozen=True):
    """Index of dispersion by window; the model with the band of its replicates."""

    window_s: list[float]
    trace: list[float | None]
    model_low: list[float]
    model: list[float]
    model_high: list[float]
    poisson: list[float]


class TimeCurve(msgspec.Struct, frozen=True):
    """A figure of each window over time; None for windows without a request."""

    window_s: float
    trace: list[float | None]
    model: list[float | None]


class CountsCurve(msgspec.Struct, frozen=True):
    """Requests of each window of ten seconds."""

    trace: list[float]
    model: list[float]
    poisson: list[float]


class WaitCurve(msgspec.Struct, frozen=True):
    """Quantiles of the wait for one of `slots` slots, seconds, at each `share`."""

    slots: int
    share: list[float]
    trace: list[float]
    model: list[float]
    poisson: list[float]


class Curves(msgspec.Struct, frozen=True):
    """The data of the charts."""

    dispersion: DispersionCurve
    rate: TimeCurve
    counts_10s: CountsCurve
    output_by_window: TimeCurve
    wait: WaitCurve


class Goodness(msgspec.Struct, frozen=True):
    """The whole report.

    Attributes:
        p_value: share of the replicates, the trace among them, of which some check deviates at least as much.
        limit: the deviation that 5 % of them exceed in some check.
        curves: what the pictures show.
    """

    profile: str
    kind: str
    source: str
    requests: int
    seeds: int
    result: str
    verdict: str
    p_value: float
    limit: float
    checks: tuple[Check, ...]
    curves: Curves


class _Traffic(NamedTuple):
    at_s: Floats
    lengths: Lengths


class _Compared(NamedTuple):
    """A check by its accepted range alone, and the figures that say whether chance explains it: the trace's first."""

    check: Check
    figures: Floats


def check_profile(profile: Profile, source: str, at_s: Floats, lengths: Lengths, seeds: int = SEEDS) -> Goodness:
    """Compare a profile with a trace.

    Args:
        profile: the fitted profile.
        source: name of the trace.
        at_s: the trace's times, seconds, sorted, the first at 0; shape (n,).
        lengths: its (input, output) tokens; shape (n, 2).
        seeds: replicates; under 19 no difference is larger than chance explains.

    Raises:
        TraceError: the trace is too short to compare with.
    """
    if len(at_s) < _MIN_REQUESTS or at_s[-1] < _MIN_SPAN_S:
        raise TraceError(
            f"{source}: {len(at_s)} requests over {at_s[-1] if len(at_s) else 0:.0f} s are too few to compare with; "
            f"{_MIN_REQUESTS} over {_MIN_SPAN_S:g} s are needed"
        )
    trace = _Traffic(at_s, lengths)
    replicates = [_replicate(profile, seed) for seed in range(seeds)]
    compared = [
        *_volume(trace, replicates),
        *_dispersions(trace, replicates),
        *_peaks(trace, replicates),
        *_autocorrelations(trace, replicates),
        *_work(trace, replicates),
        *_lengths(trace, replicates),
        *_queue(trace, replicates),
        *_gaps(trace, replicates, profile.arrivals),
    ]
    deviations, p_value, limit = rank_test(np.array([one.figures for one in compared]))
    checks = (*_significant(compared, deviations, p_value, limit), _sample(trace, profile.arrivals))
    result = FAIL if any(c.result == FAIL for c in checks) else WARN if any(c.result == WARN for c in checks) else PASS
    poisson = [_poisson(trace, seed) for seed in range(min(seeds, 12))]
    return Goodness(
        profile.name, profile.kind, source, len(at_s), seeds, result, _in_words(checks), round(p_value, 4),
        round(limit, 3), checks, _curves(trace, replicates, poisson, profile.arrivals),
    )  # fmt: skip


def _replicate(profile: Profile, seed: int) -> _Traffic:
    if profile.recording is not None:
        return _Traffic(*profile.recorded())
    arrival_seed, length_seed = np.random.SeedSequence(seed).spawn(2)
    at_s = simulate(profile.arrivals, np.random.default_rng(arrival_seed))
    return _Traffic(at_s, profile.draw_lengths(at_s, np.random.default_rng(length_seed)))


def _poisson(trace: _Traffic, seed: int) -> _Traffic:
    """What most load testers send: one rate, exponential gaps, lengths drawn without regard to time."""
    rng = np.random.default_rng([7, seed])
    count = len(trace.at_s)
    at_s = np.sort(rng.uniform(0.0, float(trace.at_s[-1]), count))
    return _Traffic(at_s, trace.lengths[rng.integers(0, count, count)])


def rank_test(figures: Floats) -> tuple[Floats, float, float]:
    """Does one of many series of figures stand out among all, in any of them?

    Every figure is measured by its distance from the mean in standard deviations, and every series by its largest
    one; the rank of the first among all is exact whatever the figures' laws and dependence, where all series have
    the same law.

    Args:
        figures: the series in columns, the one in question first; shape (figures, series).

    Returns:
        The first series' deviations; its p-value; the largest deviation that `LEVEL` of all series exceed.
    """
    spread = figures.std(axis=1, keepdims=True)
    off = np.abs(figures - figures.mean(axis=1, keepdims=True))
    # Figures that are equal but for rounding deviate by nothing.
    known = spread > 1e-9 * np.maximum(1.0, np.abs(figures).max(axis=1, keepdims=True))
    deviations = np.where(known, off / np.where(known, spread, 1.0), 0.0)
    largest = deviations.max(axis=0)
    p_value = float((largest >= largest[0] - 1e-12).mean())
    limit = float(np.sort(largest)[int(np.ceil((1 - LEVEL) * len(largest))) - 1])
    return deviations[:, 0], p_value, limit


def _significant(compared: Sequence[_Compared], deviations: Floats, p_value: float, limit: float) -> list[Check]:
    """The checks, passed where the trace is no more unusual than the model's own."""
    results = []
    for one, deviation in zip(compared, deviations.tolist(), strict=True):
        unusual = p_value <= LEVEL and deviation >= limit
        result = one.check.result if unusual else PASS
        results.append(msgspec.structs.replace(one.check, result=result, deviation=_short(deviation)))
    return results


# -- the checks --------------------------------------------------------------------------------------


def _check(
    group: str, name: str, real: float, values: Sequence[float], bound: str, result: str, *, log: bool = False
) -> _Compared:
    """Args: as of `Check`; with `log` figures above 0 are ranked by their logarithm, which is less skewed."""
    column = np.array(values, dtype=np.float64)
    low, high = np.quantile(column, (0.05, 0.95))
    check = Check(group, name, _short(real), _short(column.mean()), _short(low), _short(high), bound, result)
    figures = np.array([real, *values])
    return _Compared(check, np.log(figures + _SMALLEST) if log else figures)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _graded(difference: float, passing: float, warning: float) -> str:
    return PASS if difference <= passing else WARN if difference <= warning else FAIL


def _volume(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    """Mean rate and mean tokens, whose ratio must be 1."""
    results = []
    for name in ("requests/s", "input tokens", "output tokens"):
        real, *values = (_mean_of(traffic, name) for traffic in (trace, *replicates))
        noise = 2 * float(np.std(values)) / real / np.sqrt(len(values))
        off = abs(float(np.mean(values)) / real - 1)
        results.append(
            _check("volume", name, real, values, "ratio within 2 %", _graded(off, max(0.02, noise), max(0.05, noise)))
        )
    return results


def _mean_of(traffic: _Traffic, name: str) -> float:
    if name == "requests/s":
        return len(traffic.at_s) / float(traffic.at_s[-1])
    return float(traffic.lengths[:, 0 if name == "input tokens" else 1].mean())


def _dispersions(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    results = []
    for window_s in _DISPERSION_S:
        real = dispersion(trace.at_s, window_s)
        if real is None or trace.at_s[-1] < 5 * window_s:
            continue
        # Equal gaps have no dispersion: the floor keeps the ratio finite.
        real = max(real, _MIN_DISPERSION)
        values = [max(dispersion(r.at_s, window_s) or 0.0, _MIN_DISPERSION) for r in replicates]
        spread = float(np.log(values).std())
        off = abs(float(np.log(values).mean() - np.log(real)))
        bound = f"|ln ratio| <= {max(0.10, 2 * spread):.2f}"
        result = _graded(off, max(0.10, 2 * spread), 0.35)
        results.append(_check("dispersion", f"dispersion {window_s:g} s", real, values, bound, result, log=True))
    return results


def _peaks(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    """The fullest windows, against the range of the replicates."""
    results = []
    for window_s in _PEAK_S:
        counts = [_counts(r.at_s, window_s) for r in replicates]
        for name, share in ((f"p99 count in {window_s:g} s", 0.99), (f"maximum in {window_s:g} s", 1.0)):
            real = float(np.quantile(_counts(trace.at_s, window_s), share))
            values = [float(np.quantile(c, share)) for c in counts]
            outside = max(0.0, min(values) - real, real - max(values)) / real
            results.append(_check("peaks", name, real, values, "in the replicates' range", _graded(outside, 0.0, 0.10)))
    return results


def _autocorrelations(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    results = []
    for window_s in _PEAK_S:
        real, values = _lag_one(trace.at_s, window_s), [_lag_one(r.at_s, window_s) for r in replicates]
        # Sixty windows of a minute leave a correlation uncertain by more than the fixed bound.
        noise = 2 * float(np.std(values))
        result = _graded(abs(float(np.mean(values)) - real), max(0.10, noise), max(0.20, noise))
        results.append(
            _check("autocorrelation", f"lag-1, {window_s:g} s", real, values, "difference <= 0.10 or 2 sd", result)
        )
    return results


def _work(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    results = []
    for window_s in _WORK_S:
        if trace.at_s[-1] < 5 * window_s:
            continue
        real, values = _work_dispersion(trace, window_s), [_work_dispersion(r, window_s) for r in replicates]
        ratio = float(np.median(values)) / real
        result = PASS if 0.67 <= ratio <= 1.5 else WARN if 0.5 <= ratio <= 2.0 else FAIL
        bound = "ratio in [0.67, 1.5]"
        results.append(_check("work", f"dispersion of work {window_s:g} s", real, values, bound, result, log=True))
    return results


def _lengths(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    results = []
    for column, name in ((0, "input"), (1, "output")):
        real, values = _ks_from_all(trace.lengths[:, column], [r.lengths[:, column] for r in replicates])
        results.append(_check("lengths", f"KS of {name} tokens", real, values, "<= 0.03", _graded(real, 0.03, 0.06)))
    real, values = _spearman(trace.lengths), [_spearman(r.lengths) for r in replicates]
    result = _graded(abs(float(np.mean(values)) - real), 0.05, 0.10)
    results.append(_check("lengths", "rank correlation", real, values, "difference <= 0.05", result))
    if trace.at_s[-1] >= 5 * _LENGTH_WINDOW_S:
        real, values = _rate_length_link(trace), [_rate_length_link(r) for r in replicates]
        noise = 2 * float(np.std(values))
        result = _graded(abs(float(np.mean(values)) - real), max(0.15, noise), max(0.30, noise))
        results.append(
            _check("lengths", "rate against output, 300 s", real, values, "difference <= 0.15 or 2 sd", result)
        )
    real, values = _count_output_link(trace), [_count_output_link(r) for r in replicates]
    result = _graded(abs(float(np.mean(values)) - real), 0.15, 0.30)
    results.append(
        _check("lengths", f"count against output, {_LINK_WINDOW_S:g} s", real, values, "difference <= 0.15", result)
    )
    return results


def _queue(trace: _Traffic, replicates: Sequence[_Traffic]) -> list[_Compared]:
    slots = slots_for(trace.at_s, service_s(trace.lengths))

    def wait(traffic: _Traffic) -> float:
        return float(np.quantile(waits_s(traffic.at_s, service_s(traffic.lengths), slots), 0.99))

    def batch(traffic: _Traffic) -> float:
        return float(np.quantile(concurrency(traffic.at_s, service_s(traffic.lengths)), 0.99))

    results = []
    statistics: dict[str, Callable[[_Traffic], float]] = {f"p99 wait, {slots} slots, s": wait, "p99 batch size": batch}
    for name, statistic in statistics.items():
        real, values = statistic(trace), [statistic(r) for r in replicates]
        low, high = np.quantile(values, (0.05, 0.95))
        near = 0.5 <= (float(np.median(values)) + 1e-3) / (real + 1e-3) <= 2.0
        # Recorded times are rounded to microseconds: replicates that are all alike leave no band to lie in.
        result = PASS if low - 1e-3 <= real <= high + 1e-3 else WARN if near else FAIL
        results.append(_check("queue", name, real, values, "within 5-95 % of the replicates", result, log=True))
    return results


def _gaps(trace: _Traffic, replicates: Sequence[_Traffic], arrivals: Arrivals) -> list[_Compared]:
    plain = _ks_from_all(np.diff(trace.at_s), [np.diff(r.at_s) for r in replicates])
    changed = _ks_from_all(
        operational_gaps(trace.at_s, arrivals), [operational_gaps(r.at_s, arrivals) for r in replicates]
    )
    return [
        _check("gaps", name, real, values, "<= 0.05", _graded(real, 0.05, 0.10))
        for name, (real, values) in (("KS of gaps", plain), ("KS of gaps without the rates", changed))
    ]


def _ks_from_all(real: npt.NDArray[Any], replicates: Sequence[npt.NDArray[Any]]) -> tuple[float, list[float]]:
    """Distance of the trace, and of each replicate, from all replicates together."""
    pool = np.sort(np.concatenate(replicates))
    return _distance_from(pool, real), [_distance_from(pool, values) for values in replicates]


def _distance_from(pool: npt.NDArray[Any], values: npt.NDArray[Any]) -> float:
    """`ks_distance` from a large sorted sample, whose points need not be looked at one by one."""
    ordered = np.sort(values)
    points = np.unique(ordered)
    off = [
        np.searchsorted(ordered, points, side) / len(ordered) - np.searchsorted(pool, points, side) / len(pool)
        for side in ("left", "right")
    ]
    return float(np.abs(off).max())


def _sample(trace: _Traffic, arrivals: Arrivals) -> Check:
    count, windows = len(trace.at_s), len(arrivals.rates_per_s)
    result = PASS if count >= 5000 and windows >= 20 else WARN if count >= 1000 else FAIL
    return Check("sample", "requests", count, windows, windows, windows, ">= 5000 in >= 20 windows", result)


# -- statistics --------------------------------------------------------------------------------------


def _counts(at_s: Floats, window_s: float) -> Floats:
    windows = max(1, int(at_s[-1] // window_s))
    return np.bincount((at_s / window_s).astype(np.int64), minlength=windows)[:windows].astype(np.float64)


def _lag_one(at_s: Floats, window_s: float) -> float:
    counts = _counts(at_s, window_s)
    centred = counts - counts.mean()
    power = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / power if power > 0 else 0.0


def _work_dispersion(traffic: _Traffic, window_s: float) -> float:
    """Var(work in a window) / (its mean x E S^2 / E S): 1 for Poisson arrivals with independent lengths."""
    work = service_s(traffic.lengths)
    windows = max(2, int(traffic.at_s[-1] // window_s))
    sums = np.bincount((traffic.at_s / window_s).astype(np.int64), weights=work, minlength=windows)[:windows]
    return float(sums.var(ddof=1) / (sums.mean() * (work**2).mean() / work.mean()))


def ks_distance(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> float:
    """Two-sample Kolmogorov-Smirnov distance: the largest gap between the empirical distributions."""
    points = np.concatenate((left, right))
    below = [np.searchsorted(np.sort(side), points, "right") / len(side) for side in (left, right)]
    return float(np.abs(below[0] - below[1]).max())


def _spearman(lengths: Lengths) -> float:
    left, right = _ranks(lengths[:, 0]), _ranks(lengths[:, 1])
    return float(np.corrcoef(left, right)[0, 1]) if left.std() > 0 and right.std() > 0 else 0.0


def _ranks(values: npt.NDArray[Any]) -> Floats:
    """Ranks, the mean of their ranks for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks


def _count_output_link(traffic: _Traffic) -> float:
    """Correlation of a short window's count with its mean output, within minutes of alike lengths."""
    windows = int(traffic.at_s[-1] // _LINK_WINDOW_S)
    labels = (traffic.at_s / _LINK_WINDOW_S).astype(np.int64)
    counts = np.bincount(labels, minlength=windows)[:windows].astype(np.float64)
    sums = np.bincount(labels, weights=traffic.lengths[:, 1], minlength=windows)[:windows]
    used = counts > 0
    means = sums[used] / counts[used]
    left, right = (_without_level(series) for series in (counts[used], means))
    return float(np.corrcoef(left, right)[0, 1]) if left.std() > 0 and right.std() > 0 else 0.0


def _without_level(series: Floats) -> Floats:
    """A series less its mean over every minute."""
    minute = np.arange(len(series)) // round(60 / _LINK_WINDOW_S)
    levels: Floats = np.bincount(minute, weights=series) / np.bincount(minute)
    return series - levels[minute]


def _rate_length_link(traffic: _Traffic) -> float:
    """Correlation of a window's rate with its mean output."""
    windows = int(traffic.at_s[-1] // _LENGTH_WINDOW_S)
    labels = (traffic.at_s / _LENGTH_WINDOW_S).astype(np.int64)
    counts = np.bincount(labels, minlength=windows)[:windows]
    sums = np.bincount(labels, weights=traffic.lengths[:, 1], minlength=windows)[:windows]
    used = counts > 0
    means = sums[used] / counts[used]
    return float(np.corrcoef(counts[used], means)[0, 1]) if used.sum() > 2 and means.std() > 0 else 0.0


# -- words and curves --------------------------------------------------------------------------------

_SAYINGS = {
    "volume": "volume",
    "dispersion": "dispersion",
    "peaks": "peaks",
    "autocorrelation": "autocorrelation",
    "work": "work",
    "lengths": "lengths",
    "queue": "queueing",
}


def _in_words(checks: Sequence[Check]) -> str:
    """Summary: what matches, what does not, and what to do about it."""
    worst = {
        group: max((c.result for c in checks if c.group == group), key=(PASS, WARN, FAIL).index, default=PASS)
        for group in (*_SAYINGS, "gaps", "sample")
    }
    parts = []
    for result, saying in ((PASS, "match"), (WARN, "nearly match"), (FAIL, "do not match")):
        names = [name for group, name in _SAYINGS.items() if worst[group] == result]
        if names:
            parts.append(f"{', '.join(names)} {saying}")
    if worst["gaps"] != PASS:
        distance = max(c.trace for c in checks if c.group == "gaps")
        parts.append(
            f"the structure below a second {'nearly matches' if worst['gaps'] == WARN else 'does not'} "
            f"(KS {distance:.2f}): replay the trace itself if first-token times under 1 s matter"
        )
    if worst["sample"] != PASS:
        parts.append("the trace is short: its dispersion over minutes is uncertain; use several seeds")
    return "; ".join(parts)


def _curves(trace: _Traffic, replicates: Sequence[_Traffic], poisson: Sequence[_Traffic], arrivals: Arrivals) -> Curves:
    """The data of the charts."""
    windows = [w for w in _CURVE_S if trace.at_s[-1] >= 5 * w]
    models = np.array([[dispersion(r.at_s, w) or np.nan for w in windows] for r in replicates])
    coarse_s = arrivals.coarse_window_s if len(arrivals.rates_per_s) > 1 else 60.0
    slots = slots_for(trace.at_s, service_s(trace.lengths))
    return Curves(
        dispersion=DispersionCurve(
            windows,
            [dispersion(trace.at_s, w) for w in windows],
            np.quantile(models, 0.05, axis=0).tolist(),
            models.mean(axis=0).tolist(),
            np.quantile(models, 0.95, axis=0).tolist(),
            [float(np.mean([dispersion(p.at_s, w) or 1.0 for p in poisson])) for w in windows],
        ),
        rate=TimeCurve(
            coarse_s,
            (_counts(trace.at_s, coarse_s) / coarse_s).tolist(),
            (_counts(replicates[0].at_s, coarse_s) / coarse_s).tolist(),
        ),
        counts_10s=CountsCurve(
            _counts(trace.at_s, 10.0).tolist(),
            _counts(replicates[0].at_s, 10.0).tolist(),
            _counts(poisson[0].at_s, 10.0).tolist(),
        ),
        output_by_window=TimeCurve(
            coarse_s, _mean_by_window(trace, coarse_s), _mean_by_window(replicates[0], coarse_s)
        ),
        wait=WaitCurve(slots, _TAIL.tolist(), _tail([trace], slots), _tail(replicates, slots), _tail(poisson, slots)),
    )


def _mean_by_window(traffic: _Traffic, window_s: float) -> list[float | None]:
    windows = max(1, int(traffic.at_s[-1] // window_s))
    labels = (traffic.at_s / window_s).astype(np.int64)
    counts = np.bincount(labels, minlength=windows)[:windows]
    sums = np.bincount(labels, weights=traffic.lengths[:, 1], minlength=windows)[:windows]
    return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]


def _tail(sides: Sequence[_Traffic], slots: int) -> list[float]:
    """Quantiles of the wait, seconds: the median over replicates."""
    quantiles = [np.quantile(waits_s(side.at_s, service_s(side.lengths), slots), _TAIL) for side in sides]
    medians: list[float] = np.median(quantiles, axis=0).tolist()
    return medians
