"""Describes a trace: rate, gaps, dispersion, lengths, clock. Pure; fed with a `Trace`."""

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.dispersion import dispersion
from surgeproof.traces.reader import Trace

DISPERSION_WINDOWS_S = (1, 10, 60, 300)
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in figures; None where there is no such figure.

    Attributes:
        dropped: rows left out, by reason.
        repeated: rows that repeat another one exactly; not counted where the file is streamed.
        gap_cv: coefficient of variation of the gaps; 1 for Poisson arrivals.
        dispersion: index of dispersion of counts, by window.
        input_tokens, output_tokens: quantiles and mean.
        clock_grid_s: step of the clock grid that was detected.
        dequantised: whether it was undone.
        unit_note: what to check where the unit of the times is doubtful.
    """

    source: str
    format: str
    rows: int
    dropped: dict[str, int]
    malformed_examples: tuple[str, ...]
    out_of_order: int
    blank_lines: int
    repeated: int | None
    span_s: float
    mean_rate_per_s: float | None
    gap_cv: float | None
    dispersion: dict[str, float | None]
    input_tokens: dict[str, float]
    output_tokens: dict[str, float]
    clock_grid_s: float | None
    dequantised: bool
    unit_note: str | None = None


def inspect_trace(trace: Trace) -> TraceFacts:
    """Describe a trace."""
    at_s = np.array([point.at_ns for point in trace.points], dtype=np.float64) / 1e9
    gaps = np.diff(at_s)
    span = float(at_s[-1])
    inputs = np.array([point.input_tokens for point in trace.points])
    outputs = np.array([point.output_tokens for point in trace.points])
    mean_gap = gaps.mean() if len(gaps) else 0.0
    return TraceFacts(
        source=trace.source,
        format=trace.format_name,
        rows=len(trace.points),
        dropped=trace.dropped,
        malformed_examples=tuple(trace.examples),
        out_of_order=trace.out_of_order,
        blank_lines=trace.blank_lines,
        repeated=trace.repeated,
        span_s=round(span, 3),
        mean_rate_per_s=len(gaps) / span if span > 0 else None,
        gap_cv=float(gaps.std() / mean_gap) if mean_gap > 0 else None,
        dispersion={f"{window}s": dispersion(at_s, window) for window in DISPERSION_WINDOWS_S},
        input_tokens=_lengths(inputs),
        output_tokens=_lengths(outputs),
        clock_grid_s=trace.grid_ns / 1e9 if trace.grid_ns is not None else None,
        dequantised=trace.dequantised,
        unit_note=trace.unit_note,
    )


def _lengths(values: npt.NDArray[np.int64]) -> dict[str, float]:
    quantiles = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    return {name: int(value) for name, value in zip(QUANTILES, quantiles, strict=True)} | {
        "mean": round(float(values.mean()), 2)
    }
