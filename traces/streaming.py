"""Describes a table of any length in constant memory: `inspect_trace`'s figures from chunks of columns.

The rows stay in the file's own order: a clock grid is reported and not undone, and gaps are those of
neighbouring rows; where rows are out of order, which is counted, a smaller file is read exactly by
`reader`. Needs pandas.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from surgeproof.dispersion import dispersion_of_counts
from surgeproof.errors import TraceError
from surgeproof.records import NS_PER_S
from surgeproof.traces.clock_grid import GridTally
from surgeproof.traces.compression import CORRUPT, is_parquet, open_bytes, open_text
from surgeproof.traces.formats import ColumnMap
from surgeproof.traces.formats.rows import MALFORMED, MAX_SPAN_NS, MAX_TOKENS, ZERO_INPUT, ZERO_OUTPUT
from surgeproof.traces.inspection import DISPERSION_WINDOWS_S, QUANTILES, TraceFacts

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LARGE_BYTES = 64 << 20
"""Files from this size on are streamed."""
COLUMN_MAPS = {
    "azure": ColumnMap("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ColumnMap("Timestamp", "Request tokens", "Response tokens"),
}
_CHUNK_ROWS = 500_000
_WAY_OUT = "Fix the rows, or skip such rows with --skip-invalid."


class StreamedInspection:
    """Tallies that grow with the trace's span and its distinct lengths, not with its rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.out_of_order = 0
        self.blank_lines = 0
        self.dropped: Counter[str] = Counter()
        self._grid = GridTally()
        self._first_ns: int | None = None
        self._last_ns = 0
        self._end_ns = 0
        self._per_second = np.zeros(0, dtype=np.int64)
        self._gap_sum_s = self._gap_square_s = 0.0
        self._gaps = 0
        self._lengths: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def add(self, at_ns: Ints, inputs: Ints, outputs: Ints) -> None:
        """Usable rows in the file's order; shapes (n,)."""
        if len(at_ns) == 0:
            return
        if self._first_ns is None:
            self._first_ns = int(at_ns.min())
            gaps = np.diff(at_ns)
        else:
            gaps = np.diff(at_ns, prepend=self._last_ns)
        self.rows += len(at_ns)
        self.out_of_order += int((gaps < 0).sum())
        forward = gaps[gaps >= 0]
        self._grid.add(forward)
        gaps_s = forward / NS_PER_S
        self._gaps += len(gaps_s)
        self._gap_sum_s += float(gaps_s.sum())
        self._gap_square_s += float((gaps_s**2).sum())
        self._last_ns = int(at_ns[-1])
        self._end_ns = max(self._end_ns, int(at_ns.max()))
        if self._end_ns - self._first_ns > MAX_SPAN_NS:
            raise TraceError(
                f"the trace spans {(self._end_ns - self._first_ns) / NS_PER_S:.3g} s: a time stamp is far off, "
                "or the time unit is not the expected one"
            )
        self._count(np.maximum(at_ns - self._first_ns, 0) // NS_PER_S)
        for tally, column in zip(self._lengths, (inputs, outputs), strict=True):
            values, counts = np.unique(column, return_counts=True)
            tally.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _count(self, seconds: Ints) -> None:
        counts = np.bincount(seconds)
        if len(counts) > len(self._per_second):
            self._per_second = np.pad(self._per_second, (0, len(counts) - len(self._per_second)))
        self._per_second[: len(counts)] += counts

    def result(self, source: str, format_name: str) -> TraceFacts:
        """The figures of all rows so far."""
        span_s = (self._end_ns - (self._first_ns or 0)) / NS_PER_S
        mean = self._gap_sum_s / self._gaps if self._gaps else 0.0
        variance = max(0.0, self._gap_square_s / self._gaps - mean**2) if self._gaps else 0.0
        grid = self._grid.result()
        return TraceFacts(
            source=source,
            format=format_name,
            rows=self.rows,
            dropped=dict(self.dropped),
            malformed_examples=(),
            out_of_order=self.out_of_order,
            blank_lines=self.blank_lines,
            repeated=None,
            span_s=round(span_s, 3),
            mean_rate_per_s=(self.rows - 1) / span_s if span_s > 0 else None,
            gap_cv=variance**0.5 / mean if mean > 0 else None,
            dispersion={f"{window}s": self._dispersion(window, span_s) for window in DISPERSION_WINDOWS_S},
            input_tokens=_lengths(self._lengths[0]),
            output_tokens=_lengths(self._lengths[1]),
            clock_grid_s=grid / NS_PER_S if grid is not None else None,
            dequantised=False,
        )

    def _dispersion(self, window_s: int, span_s: float) -> float | None:
        windows = int(span_s // window_s)
        if windows < 2:
            return None
        counts = self._per_second[: windows * window_s]
        return dispersion_of_counts(
            np.pad(counts, (0, windows * window_s - len(counts))).reshape(windows, window_s).sum(axis=1)
        )


def _lengths(tally: Counter[int]) -> dict[str, float]:
    values = np.array(sorted(tally), dtype=np.int64)
    counts = np.array([tally[value] for value in values.tolist()], dtype=np.int64)
    below = np.cumsum(counts)
    ranks = np.maximum(1, np.ceil(np.array(list(QUANTILES.values())) * below[-1])).astype(np.int64)
    result = values[np.searchsorted(below, ranks)]
    return {name: int(value) for name, value in zip(QUANTILES, result, strict=True)} | {
        "mean": round(float((values * counts).sum() / below[-1]), 2)
    }


def inspect_table(path: Path, columns: ColumnMap, format_name: str, *, skip_invalid: bool = False) -> TraceFacts:
    """Describe a CSV or Parquet table.

    Raises:
        TraceError: pandas is missing, the file or a column cannot be read, or a row is malformed.
    """
    result = StreamedInspection()
    before = 0 if is_parquet(path, "trace") else 1  # the header
    for frame in _chunks(path, columns):
        at_ns, timed = _times_ns(frame[columns.at], columns)
        inputs, outputs = _tokens(frame[columns.input]), _tokens(frame[columns.output])
        good = timed & (inputs >= 0) & (outputs >= 0)
        blank = np.zeros(len(frame), dtype=bool) if good.all() else frame.isna().all(axis=1).to_numpy()
        bad = ~good & ~blank
        if bad.any() and not skip_invalid:
            row = before + 1 + int(bad.argmax())
            values = ", ".join(map(str, frame.iloc[int(bad.argmax())].tolist()))
            raise TraceError(f"{path}, row {row}: cannot read {values}. {_WAY_OUT}")
        before += len(frame)
        result.blank_lines += int(blank.sum())
        reasons = {
            MALFORMED: bad,
            ZERO_OUTPUT: good & (outputs == 0),
            ZERO_INPUT: good & (outputs > 0) & (inputs == 0),
        }
        result.dropped += Counter({reason: int(rows.sum()) for reason, rows in reasons.items()})
        usable = good & (inputs > 0) & (outputs > 0)
        result.add(at_ns[usable], inputs[usable], outputs[usable])
    if result.blank_lines and not is_parquet(path, "trace"):
        # The columns that are read do not tell a blank line from a row without time and lengths.
        blank_lines = _blank_lines(path)
        empty = result.blank_lines - blank_lines
        if empty > 0 and not skip_invalid:
            raise TraceError(f"{path}: {empty} rows have neither a time nor token counts. {_WAY_OUT}")
        result.blank_lines = blank_lines
        result.dropped += Counter({MALFORMED: max(0, empty)})
    if result.rows == 0:
        raise TraceError(f"{path}: no usable row ({dict(result.dropped) or 'no rows at all'})")
    return result.result(str(path), format_name)


def _chunks(path: Path, columns: ColumnMap) -> Iterator[Any]:
    try:
        import pandas as pd
    except ModuleNotFoundError as exc:
        raise TraceError(f"{path} is large; streaming it needs: pip install 'surgeproof[ui]'") from exc
    wanted = [columns.at, columns.input, columns.output]
    try:
        if is_parquet(path, "trace"):
            import pyarrow.parquet as parquet

            table = parquet.ParquetFile(path)
            lost = [name for name in wanted if name not in table.schema_arrow.names]
            if lost:
                raise TraceError(f"{path}: no column {', '.join(lost)}; it has {', '.join(table.schema_arrow.names)}")
            for batch in table.iter_batches(_CHUNK_ROWS, columns=wanted):
                yield batch.to_pandas()
            return
        with (
            open_text(path) as file,
            pd.read_csv(
                file, usecols=wanted, chunksize=_CHUNK_ROWS, skip_blank_lines=False, low_memory=False
            ) as reader,
        ):
            yield from reader
    except (OSError, ValueError, *CORRUPT) as exc:
        raise TraceError(f"{path}: {exc}") from exc


def _blank_lines(path: Path) -> int:
    with open_bytes(path) as file:
        return sum(1 for line in file if not line.strip())


def _tokens(column: Any) -> Ints:
    """Counts; -1 where a value is not a count."""
    import pandas as pd

    if column.dtype.kind == "i":
        counts = np.asarray(column.to_numpy(), dtype=np.int64)
        return np.where(counts <= MAX_TOKENS, counts, -1)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) & (np.abs(numbers) <= MAX_TOKENS)
    return np.where(whole, np.nan_to_num(numbers, posinf=-1, neginf=-1), -1).astype(np.int64)


def _times_ns(column: Any, columns: ColumnMap) -> tuple[Ints, Mask]:
    """Times in ns and which of them are times: numbers of the unit, or ISO texts."""
    import pandas as pd

    if column.dtype.kind == "M":
        stamps = pd.to_datetime(column, utc=True).dt.tz_localize(None).to_numpy(dtype="datetime64[ns]")
        return stamps.astype(np.int64), ~np.isnat(stamps)
    if column.dtype.kind not in "iuf" and pd.to_numeric(column.head(100), errors="coerce").isna().all():
        moments = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True).dt.tz_localize(None)
        if columns.zone != "UTC":
            # Where a text names no offset, what was read as UTC is a time of the zone: its first, where there are two.
            here = ~column.astype(str).str.contains(r":\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)$", regex=True, na=False)
            local = moments[here].dt.tz_localize(
                columns.zone, ambiguous=np.ones(int(here.sum()), dtype=bool), nonexistent=pd.Timedelta(hours=1)
            )
            moments = moments.mask(here, local.dt.tz_convert("UTC").dt.tz_localize(None))
        stamps = moments.to_numpy(dtype="datetime64[ns]")
        return stamps.astype(np.int64), ~np.isnat(stamps)
    if column.dtype.kind in "iu":
        values = np.asarray(column.to_numpy(), dtype=np.float64)
        near = np.abs(values) * columns.unit_ns < 2.0**62
        return np.where(near, column.to_numpy(), 0).astype(np.int64) * columns.unit_ns, near
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    good = np.isfinite(numbers) & (np.abs(numbers) * columns.unit_ns < 2.0**62)
    return np.round(np.where(good, numbers, 0.0) * columns.unit_ns).astype(np.int64), good
