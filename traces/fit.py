"""Fits the arrival model `pgar` to a trace, in closed form: no optimiser, no random start.

    intensity(t) = R_j * X_i, gaps in operational time Gamma(k)

R_j is the rate of coarse window j, shrunk so that Poisson noise is not counted twice; X_i is a
unit-mean Gamma autoregression on fine windows, fitted only where a dispersion test asks for it; k is
matched on dispersion at 1 s. Lengths are clustered into a few classes whose mix follows the window.
Formulas and figures: docs/arrivals.md.
"""

import hashlib
import math
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.dispersion import dispersion
from surgeproof.errors import TraceError
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.profile import SCHEMA, Arrivals, Cell, Marks, ModulatorFit, Profile, Recording, Source
from surgeproof.traces.reader import Trace

Floats = npt.NDArray[np.float64]

_COARSE_S = (60.0, 120.0, 300.0, 600.0, 3600.0)
_MIN_WINDOWS = 20
_MIN_MEDIAN_COUNT = 100
_FINE_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 150.0, 300.0, 600.0)
_FINE_MIN_COUNT = 2.0
_GATE_Z = 3.0
_MAX_RHO = 0.97
_CLEARLY_BETTER = 0.06
_LAGS = (1, 2, 3, 4)
_LENGTH_CLASSES = 4
_LENGTH_BINS = 24
_MIN_IN_CELL = 4
_DIRICHLET = 10.0
_MIN_ROWS = 200


def fit_profile(
    trace: Trace,
    name: str,
    *,
    kind: str = "pgar",
    empirical_gaps: bool = False,
    licence: str | None = None,
    citation: str | None = None,
) -> Profile:
    """Fit a profile.

    Args:
        trace: the trace.
        name: what to call the profile.
        kind: one of `profile.KINDS`.
        empirical_gaps: keep the trace's own gaps in operational time in place of a Gamma law.
        licence: of the trace.
        citation: what users of the numbers should cite.

    Raises:
        TraceError: the trace is too short to fit.
    """
    at_s = np.array([point.at_ns for point in trace.points], dtype=np.float64) / 1e9
    if len(at_s) < _MIN_ROWS or at_s[-1] <= _MIN_WINDOWS:
        raise TraceError(
            f"{trace.source}: {len(at_s)} requests over {at_s[-1]:.0f} s are too few to fit a model; "
            f"{_MIN_ROWS} over more than {_MIN_WINDOWS} s are needed"
        )
    pairs = np.array([(point.input_tokens, point.output_tokens) for point in trace.points], dtype=np.int64)
    if kind in ("poisson", "gamma"):
        arrivals = fit_constant_rate(at_s, bursty_gaps=kind == "gamma")
    else:
        arrivals = fit_arrivals(at_s, choose_coarse_window(at_s))
    if empirical_gaps:
        arrivals = msgspec.structs.replace(arrivals, gap_quantiles=empirical_gap_quantiles(at_s, arrivals))
    return Profile(
        SCHEMA,
        name,
        kind,  # type: ignore[arg-type]
        _source(trace, at_s, licence, citation),
        arrivals,
        fit_marks(at_s, pairs, arrivals.coarse_window_s),
        _recording(at_s, pairs) if kind == "exact" else None,
    )


def _source(trace: Trace, at_s: Floats, licence: str | None, citation: str | None) -> Source:
    return Source(
        file=Path(trace.source).name,
        sha256=hashlib.sha256(Path(trace.source).read_bytes()).hexdigest(),
        rows=len(at_s),
        span_s=round(float(at_s[-1]), 3),
        dropped=trace.dropped,
        clock_grid_s=trace.grid_ns / 1e9 if trace.grid_ns is not None else None,
        dequantised=trace.dequantised,
        licence=licence,
        citation=citation,
    )


def _recording(at_s: Floats, pairs: npt.NDArray[np.int64]) -> Recording:
    at_us = np.round(at_s * 1e6).astype(np.int64)
    return Recording(
        tuple(np.diff(at_us, prepend=0).tolist()), tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist())
    )


def fit_constant_rate(at_s: Floats, *, bursty_gaps: bool) -> Arrivals:
    """A constant rate, with exponential or Gamma gaps: what load testers usually assume."""
    span_s = float(at_s[-1])
    shape = gamma_gap_shape(np.diff(at_s)) if bursty_gaps else 1.0
    return Arrivals(span_s, (len(at_s) / span_s,), 0.0, span_s, None, shape, 0.0)


def gamma_gap_shape(gaps: Floats) -> float:
    """Maximum-likelihood shape of Gamma gaps: ln k - digamma(k) = ln(mean) - mean(ln), by bisection.

    Gaps of zero, which a clock of few digits makes, count as half the smallest other gap.
    """
    positive = gaps[gaps > 0]
    gaps = np.maximum(gaps, positive.min() / 2)
    wanted = math.log(float(gaps.mean())) - float(np.log(gaps).mean())
    low, high = 1e-3, 1e3
    for _ in range(80):
        middle = math.sqrt(low * high)
        step = middle * 1e-5
        digamma = (math.lgamma(middle + step) - math.lgamma(middle - step)) / (2 * step)
        low, high = (middle, high) if math.log(middle) - digamma > wanted else (low, middle)
    return round(low, 4)


def operational_gaps(at_s: Floats, arrivals: Arrivals) -> Floats:
    """Gaps after a change of time by the rates alone: of unit mean, whatever the rates do."""
    edges = np.arange(len(arrivals.rates_per_s) + 1) * arrivals.coarse_window_s
    cumulative = np.concatenate(([0.0], np.cumsum(np.array(arrivals.rates_per_s) * arrivals.coarse_window_s)))
    return np.diff(np.interp(at_s[at_s <= edges[-1]], edges, cumulative))


def empirical_gap_quantiles(at_s: Floats, arrivals: Arrivals, knots: int = 257) -> tuple[float, ...]:
    """Evenly spaced quantiles of the trace's unit-mean gaps in operational time."""
    gaps = operational_gaps(at_s, arrivals)
    quantiles = np.quantile(gaps, np.linspace(0, 1, knots))
    # Interpolation between knots moves the mean a little; it must stay 1 or the rate would drift.
    mean = float((quantiles[1:] + quantiles[:-1]).mean() / 2)
    return tuple(round(float(value) / mean, 6) for value in quantiles)


def choose_coarse_window(at_s: Floats) -> float:
    """The shortest window with a median of 100 requests that leaves 20 windows."""
    fitting = [w for w in _COARSE_S if at_s[-1] / w >= _MIN_WINDOWS] or [_COARSE_S[0]]
    for window in fitting:
        if np.median(_counts(at_s, window)) >= _MIN_MEDIAN_COUNT:
            return window
    return fitting[-1]


def choose_fine_windows(rate_per_s: float, coarse_s: float) -> list[float]:
    """Windows that divide the coarse one at least ten times and hold 2 to 30 requests."""
    dividing = [w for w in _FINE_S if coarse_s / w >= 10 and (coarse_s / w).is_integer()]
    dividing = dividing or [coarse_s / 10]
    holding = [w for w in dividing if _FINE_MIN_COUNT <= rate_per_s * w <= 30]
    return holding or [dividing[-1]]


def fit_arrivals(at_s: Floats, coarse_s: float) -> Arrivals:
    """Rates, modulator and gap shape."""
    counts = _counts(at_s, coarse_s)
    rates, shrink = shrunk_rates(counts, coarse_s)
    plain = Arrivals(
        coarse_window_s=coarse_s,
        rates_per_s=tuple(round(float(rate), 6) for rate in rates),
        shrink=round(shrink, 4),
        fine_window_s=coarse_s,
        modulator=None,
        gap_shape=1.0,
        gate_z=0.0,
    )
    modulated = _fit_modulator(at_s, plain, counts / coarse_s)
    return msgspec.structs.replace(modulated, gap_shape=_fit_shape(at_s, modulated))


def shrunk_rates(counts: Floats, window_s: float) -> tuple[Floats, float]:
    """Window rates pulled towards their mean so that their variance is that of the rate alone.

    With I the counts' dispersion, n_j - mean is scaled by sqrt((I - 1)/I); I of 1 or less is a
    constant rate.
    """
    mean = counts.mean()
    index = counts.var(ddof=1) / mean if mean > 0 and len(counts) > 1 else 0.0
    factor = math.sqrt((index - 1) / index) if index > 1 else 0.0
    return (mean + factor * (counts - mean)) / window_s, factor


def _fit_modulator(at_s: Floats, plain: Arrivals, raw_rates: Floats) -> Arrivals:
    """The fine window whose modulator follows the trace's dispersion best, and what was fitted there.

    A longer window is preferred unless a shorter one is clearly better: it is the smoother model.
    """
    fitted = []
    for fine_s in reversed(choose_fine_windows(float(raw_rates.mean()), plain.coarse_window_s)):
        modulator, gate = modulator_at(at_s, raw_rates, plain.coarse_window_s, fine_s)
        fitted.append(msgspec.structs.replace(plain, fine_window_s=fine_s, modulator=modulator, gate_z=round(gate, 2)))
    if fitted[0].modulator is None:
        return fitted[0]
    results = [model for model in fitted if model.modulator is not None]
    # A correlation of 0 says that the window is longer than the bursts: what is inside is lost.
    results = [model for model in results if model.modulator is not None and model.modulator.rho > 0] or results
    errors = [_curve_error(at_s, model) for model in results]
    best = min(errors)
    return next(model for model, error in zip(results, errors, strict=True) if error <= best + _CLEARLY_BETTER)


def _curve_error(at_s: Floats, model: Arrivals) -> float:
    """Mean absolute log ratio of simulated to observed dispersion at 1 and 10 s."""
    errors = []
    for window_s in (1.0, 10.0):
        observed = dispersion(at_s, window_s)
        if observed:
            errors.append(abs(math.log(float(_simulated_dispersions(model, window_s).mean()) / observed)))
    return float(np.mean(errors)) if errors else 0.0


def modulator_at(at_s: Floats, rates: Floats, coarse_s: float, fine_s: float) -> tuple[ModulatorFit | None, float]:
    """Test and fit the modulator on windows of `fine_s`; None where z is 3 or less.

    mu_i = R_j w;  D = sum (n_i - mu_i)^2/mu_i / df,  df = N (q-1)/q,  z = (D-1) sqrt(df/2)
    1/a  = [q/(q-1) sum (n_i - mu_i)^2 - sum mu_i] / sum mu_i^2
    rho  = median over h of [a (sum (n_i-mu_i)(n_{i+h}-mu_{i+h}) + sum mu_i/q) / sum mu_i mu_{i+h}]^(1/h)
    """
    q = round(coarse_s / fine_s)
    windows = len(rates)
    counts = _counts(at_s, fine_s)[: windows * q]
    counts = np.pad(counts, (0, windows * q - len(counts))).reshape(windows, q)
    mu = np.repeat((rates * fine_s)[:, None], q, axis=1)
    used = mu[:, 0] > 0
    counts, mu = counts[used], mu[used]
    residual = counts - mu
    freedom = mu.size * (q - 1) / q
    z = float((((residual**2 / mu).sum() / freedom) - 1) * math.sqrt(freedom / 2))
    inverse_a = float((q / (q - 1) * (residual**2).sum() - mu.sum()) / (mu**2).sum())
    if z <= _GATE_Z or inverse_a <= 0:
        return None, z
    a = 1 / inverse_a
    roots = []
    for lag in _LAGS:
        if lag >= q:
            break
        product = (residual[:, :-lag] * residual[:, lag:]).sum()
        correlation = a * (product + mu[:, :-lag].sum() / q) / (mu[:, :-lag] * mu[:, lag:]).sum()
        roots.append(math.copysign(abs(correlation) ** (1 / lag), correlation))
    rho = min(max(float(np.median(roots)), 0.0), _MAX_RHO)
    return ModulatorFit(a=round(a, 4), rho=round(rho, 4), z=round(z, 2)), z


def _fit_shape(at_s: Floats, model: Arrivals) -> float:
    """The gap shape whose dispersion at 1 s is the trace's; 1 where that is within 2 %, or the noise, already."""
    observed = dispersion(at_s, 1.0)
    shapes = [round(0.2 + 0.1 * step, 1) for step in range(12)]
    if not observed:
        # Too short to tell, or of equal gaps, to which the most regular shape comes nearest.
        return 1.0 if observed is None else shapes[-1]
    results = {shape: _simulated_dispersions(msgspec.structs.replace(model, gap_shape=shape), 1.0) for shape in shapes}
    errors = {shape: abs(math.log(float(values.mean()) / observed)) for shape, values in results.items()}
    noise = 2 * float(np.log(results[1.0]).std(ddof=1)) / math.sqrt(len(results[1.0]))
    return 1.0 if errors[1.0] <= max(math.log(1.02), noise) else min(shapes, key=errors.__getitem__)


def _simulated_dispersions(model: Arrivals, window_s: float) -> Floats:
    """Dispersion of four seeded simulations."""
    simulations = (simulate(model, np.random.default_rng(seed)) for seed in range(4))
    return np.array([dispersion(at_s, window_s) or 1.0 for at_s in simulations])


def fit_marks(at_s: Floats, pairs: npt.NDArray[np.int64], coarse_s: float) -> Marks:
    """Cluster lengths into classes and count each window's mix of them.

    k-means on (log input, log output), started at quantiles of the output; a window's mix is
    smoothed with the whole trace's by a Dirichlet weight of 10 requests.
    """
    features = np.log1p(pairs.astype(np.float64))
    features = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-9)
    labels = _k_means(features, _LENGTH_CLASSES)
    classes = [_cells(pairs[labels == number]) for number in range(_LENGTH_CLASSES)]
    windows = np.minimum((at_s / coarse_s).astype(np.int64), int(at_s[-1] // coarse_s))
    table = np.zeros((int(windows.max()) + 1, _LENGTH_CLASSES))
    np.add.at(table, (windows, labels), 1)
    overall = table.sum(axis=0) / table.sum()
    mix = (table + _DIRICHLET * overall) / (table.sum(axis=1, keepdims=True) + _DIRICHLET)
    used = [number for number, cells in enumerate(classes) if cells]
    return Marks(
        classes=tuple(classes[number] for number in used),
        mix=tuple(tuple(round(float(share), 5) for share in row[used]) for row in mix),
    )


def _k_means(features: Floats, classes: int) -> npt.NDArray[np.int64]:
    order = np.argsort(features[:, 1], kind="stable")
    starts = order[((np.arange(classes) + 0.5) / classes * len(order)).astype(np.int64)]
    centres = features[starts]
    labels = np.zeros(len(features), dtype=np.int64)
    for _ in range(50):
        distances = ((features[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        fresh = distances.argmin(axis=1)
        if (fresh == labels).all():
            break
        labels = fresh
        for number in range(classes):
            if (labels == number).any():
                centres[number] = features[labels == number].mean(axis=0)
    return labels


def _cells(pairs: npt.NDArray[np.int64]) -> tuple[Cell, ...]:
    """A two-dimensional histogram: bands of equal mass by input, each cut into parts of equal mass by output.

    Equal mass keeps what is common fine and lets what is rare be coarse; a cell's range is that of
    its own members.
    """
    if len(pairs) == 0:
        return ()
    bands = max(1, min(_LENGTH_BINS, int(math.sqrt(len(pairs) / _MIN_IN_CELL))))
    by_input = pairs[np.argsort(pairs[:, 0], kind="stable")]
    cells = []
    for band in np.array_split(by_input, bands):
        for part in np.array_split(band[np.argsort(band[:, 1], kind="stable")], bands):
            low, high = part.min(axis=0), part.max(axis=0)
            cells.append((int(low[0]), int(high[0]), int(low[1]), int(high[1]), len(part)))
    return tuple(cells)


def _counts(at_s: Floats, window_s: float) -> Floats:
    """Requests in each window from 0 on; the last, cut one is left out unless it is the only one."""
    windows = max(1, int(at_s[-1] // window_s))
    counts = np.bincount((at_s / window_s).astype(np.int64), minlength=windows)[:windows]
    return counts.astype(np.float64)
