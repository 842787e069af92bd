"""Rates over days: series from files, a daily and weekly model of them, and profiles made of both.

    log rate(t) = mean + daily harmonics + weekly harmonics + AR(1)

A long series gives the traffic by hour; a profile fitted on an hour of requests gives how
it bursts and how long requests are; `stitch` combines the two.
"""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import TraceError
from surgeproof.traces.formats.rows import csv_fields
from surgeproof.traces.profile import Profile

Floats = npt.NDArray[np.float64]

_DAY_S = 86_400.0
_WEEK_S = 7 * _DAY_S
_WEEKLY_HARMONICS = 2
_COLUMNS = ("t_s", "rate_rps")


class RateSeries(msgspec.Struct, frozen=True):
    """Mean rates of equal steps."""

    step_s: float
    rates_per_s: tuple[float, ...]


class Diurnal(msgspec.Struct, frozen=True):
    """A rate's daily and weekly shape.

    Attributes:
        mean_rate_per_s: of the series it was fitted to; drawn series are scaled to it.
        step_s: step of the series.
        daily: cosine and sine weights of 1, 2, .. cycles a day, of the log rate.
        weekly: the same a week; empty under two weeks.
        phi: correlation of the rest from step to step.
        sigma: standard deviation of what is new in each step.
        r2: share of the log rate's variance that the harmonics explain.
    """

    mean_rate_per_s: float
    step_s: float
    daily: tuple[tuple[float, float], ...]
    weekly: tuple[tuple[float, float], ...]
    phi: float
    sigma: float
    r2: float


def read_rate_series(path: Path) -> RateSeries:
    """Read a CSV with `t_s` (equal steps) and `rate_rps`.

    Raises:
        TraceError: it is not such a file.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise TraceError(f"cannot read {path}: {exc}") from exc
    header = csv_fields(lines[0]) if lines else []
    if any(name not in header for name in _COLUMNS):
        raise TraceError(f"{path} is not a rate series: its header must name {' and '.join(_COLUMNS)}")
    places = [header.index(name) for name in _COLUMNS]
    rows = []
    for number, line in enumerate(lines[1:], 2):
        fields = csv_fields(line)
        try:
            rows.append([float(fields[place]) for place in places])
        except (IndexError, ValueError):
            raise TraceError(f"{path}, row {number}: {line!r} does not contain a time and a rate") from None
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    steps = np.diff(table[:, 0])
    if len(table) < 2 or not np.allclose(steps, steps[0]) or steps[0] <= 0:
        raise TraceError(f"{path}: times must increase in equal steps, at least two of them")
    if not np.isfinite(table).all() or (table[:, 1] < 0).any():
        raise TraceError(f"{path}: a rate is negative or not a number")
    return RateSeries(float(steps[0]), tuple(table[:, 1].tolist()))


def fit_diurnal(series: RateSeries, harmonics: int = 4) -> Diurnal:
    """Least squares on the log rate of steps that had traffic; the rest is an AR(1).

    Args:
        series: at least a day.
        harmonics: cycles a day, at most.

    Raises:
        TraceError: the series is shorter than a day.
    """
    rates = np.array(series.rates_per_s)
    times: Floats = np.arange(len(rates), dtype=np.float64) * series.step_s
    if len(rates) * series.step_s < _DAY_S:
        raise TraceError("a daily shape needs a series of at least a day")
    used = rates > 0
    if not used.any():
        raise TraceError("a daily shape needs a series with some traffic")
    # A wave of less than four steps is not seen by them.
    daily = [_DAY_S / k for k in range(1, harmonics + 1) if _DAY_S / k >= 4 * series.step_s]
    if not daily:
        raise TraceError(f"a daily shape needs steps of six hours at most, not {series.step_s / 3600:g}")
    periods = list(daily)
    if len(rates) * series.step_s >= 2 * _WEEK_S:
        periods += [_WEEK_S / k for k in range(1, _WEEKLY_HARMONICS + 1)]
    basis = np.column_stack([np.ones(len(times)), *_waves(times, periods)])
    if used.sum() <= basis.shape[1]:
        raise TraceError(
            f"a daily shape of {basis.shape[1]} numbers needs more than {int(used.sum())} steps with traffic"
        )
    logs = np.log(rates[used])
    weights, *_ = np.linalg.lstsq(basis[used], logs, rcond=None)
    rest = logs - basis[used] @ weights
    power = float((rest**2).sum())
    phi = float(np.clip((rest[1:] * rest[:-1]).sum() / power, 0.0, 0.999)) if power > 1e-12 * len(rest) else 0.0
    pairs = [(round(float(c), 5), round(float(s), 5)) for c, s in weights[1:].reshape(-1, 2)]
    return Diurnal(
        mean_rate_per_s=round(float(rates.mean()), 6),
        step_s=series.step_s,
        daily=tuple(pairs[: len(daily)]),
        weekly=tuple(pairs[len(daily) :]),
        phi=round(phi, 5),
        sigma=round(float((rest[1:] - phi * rest[:-1]).std()), 5),
        r2=round(float(1 - rest.var() / logs.var()), 5) if logs.var() > 0 else 1.0,
    )


def draw_series(shape: Diurnal, days: float, rng: np.random.Generator) -> RateSeries:
    """A series of a daily shape, of its mean rate."""
    count = max(2, round(days * _DAY_S / shape.step_s))
    times: Floats = np.arange(count, dtype=np.float64) * shape.step_s
    weights = [*shape.daily, *shape.weekly]
    periods = [_DAY_S / k for k in range(1, len(shape.daily) + 1)]
    periods += [_WEEK_S / k for k in range(1, len(shape.weekly) + 1)]
    logs = np.zeros(count)
    for (cosine, sine), wave in zip(weights, np.array(_waves(times, periods)).reshape(-1, 2, count), strict=True):
        logs += cosine * wave[0] + sine * wave[1]
    new = rng.normal(0.0, shape.sigma, count)
    rest = rng.normal(0.0, shape.sigma / np.sqrt(1 - shape.phi**2))
    for index in range(count):
        logs[index] += rest
        rest = shape.phi * rest + new[index]
    rates = np.exp(logs)
    return RateSeries(shape.step_s, tuple((rates * (shape.mean_rate_per_s / rates.mean())).tolist()))


def _waves(times: Floats, periods: list[float]) -> list[Floats]:
    """Cosine and sine of each period."""
    return [wave(2 * np.pi * times / period) for period in periods for wave in (np.cos, np.sin)]


def stitch(profile: Profile, series: RateSeries, name: str, rng: np.random.Generator) -> Profile:
    """A profile with the series' rates and the short-time model of a fitted one.

    Each step of the series is filled with a stretch of the profile's own windows, begun at a random
    one and scaled to the step's rate: bursts, gaps and lengths, and how they go with the rate within
    minutes, stay the profile's; hours and days are the series'.

    Raises:
        TraceError: the step is not a whole number of the profile's windows, or the profile is a recording.
    """
    model = profile.arrivals
    per_step = series.step_s / model.coarse_window_s
    if profile.recording is not None or per_step < 1 or not float(per_step).is_integer():
        raise TraceError(
            f"a step of {series.step_s:g} s is not a whole number of the profile's windows of "
            f"{model.coarse_window_s:g} s, or the profile is an exact recording: fit one of kind pgar"
        )
    windows = np.array(model.rates_per_s)
    length = int(per_step)
    starts = rng.integers(0, len(windows), size=len(series.rates_per_s))
    chosen = (starts[:, None] + np.arange(length)) % len(windows)
    shape = windows[chosen]
    means = shape.mean(axis=1, keepdims=True)
    # A stretch without any traffic has no shape of its own.
    shape = np.where(means > 0, shape / np.where(means > 0, means, 1.0), 1.0)
    rates = shape * np.array(series.rates_per_s)[:, None]
    arrivals = msgspec.structs.replace(model, rates_per_s=tuple(np.round(rates.ravel(), 6).tolist()))
    rows = np.array(profile.marks.rows if profile.marks.rows is not None else range(len(profile.marks.mix)))
    marks = msgspec.structs.replace(profile.marks, rows=tuple(rows[np.minimum(chosen, len(rows) - 1)].ravel().tolist()))
    return msgspec.structs.replace(profile, name=name, arrivals=arrivals, marks=marks)
