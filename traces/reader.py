"""Reads a trace file into points in order of time, and reports what it skipped and changed.

The file is streamed through one of `formats`. A malformed row stops the reading with file, row and
reason, unless the caller asked to skip such rows; then they are counted like every other drop. A
clock grid (a collector that rounds time stamps) is undone by default and reported.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from surgeproof.errors import TraceError
from surgeproof.records import BLOCK_TOKENS, NS_PER_MS, NS_PER_S, TracePoint
from surgeproof.traces.clock_grid import dequantise, detect_grid_ns
from surgeproof.traces.compression import is_parquet, text_lines
from surgeproof.traces.formats import (
    FORMATS,
    BadValueError,
    ColumnMap,
    Dropped,
    Malformed,
    MappedLines,
    Parsed,
    Row,
    TraceFormat,
)
from surgeproof.traces.formats.column_map import UNITS_NS
from surgeproof.traces.formats.rows import MALFORMED, MAX_SPAN_NS

_EXAMPLES_KEPT = 5
_UNIT_FLAGS = "run --trace-unit, traces --unit"
_MIN_ROWS = 20
_DOUBTFUL_LOW_RATE_PER_S = 0.01
"""A trace with a lower rate, a request in two minutes, is more likely one in milliseconds, read as seconds."""
_DOUBTFUL_RATE_PER_S = 100.0
"""A trace with a higher rate is more likely one in seconds, read as milliseconds."""


class Trace:
    """The points of one file and the report of how they were read.

    Attributes:
        points: sorted by time; the first is at 0.
        dropped: number of rows left out, by reason.
        examples: the first few malformed rows, as sentences.
        out_of_order: rows whose time stamp lay before that of the row above.
        blank_lines: lines that hold nothing.
        repeated: rows that repeat an earlier row exactly; they are kept.
        grid_ns: step of the clock grid found, None where there is none.
        dequantised: whether the grid was undone.
        block_tokens: tokens of a block that a hash id names, by the format.
        delayed: rows that come a time after the answer before, whose own time is not known.
        unit_note: what to check where the unit of the times is doubtful.
    """

    def __init__(self, source: str, format_name: str) -> None:
        self.source = source
        self.format_name = format_name
        self.points: list[TracePoint] = []
        self.dropped: dict[str, int] = {}
        self.examples: list[str] = []
        self.out_of_order = 0
        self.blank_lines = 0
        self.repeated = 0
        self.grid_ns: int | None = None
        self.dequantised = False
        self.block_tokens = BLOCK_TOKENS
        self.delayed = 0
        self.unit_note: str | None = None


def read_trace(
    path: Path,
    format_name: str = "auto",
    *,
    columns: str | None = None,
    skip_invalid: bool = False,
    undo_grid: bool = True,
    seed: int = 0,
    unit: str | None = None,
) -> Trace:
    """Read a trace.

    Args:
        path: the file.
        format_name: a name of `FORMATS`, or `auto`.
        columns: a column map for a table of any form (`formats.mapped`), in place of a format.
        skip_invalid: count malformed rows instead of stopping at the first.
        undo_grid: spread time stamps over the step of a detected clock grid.
        seed: seed of that spreading.
        unit: of numbers of time where the format's own is wrong, a name of `UNITS_NS`.

    Raises:
        TraceError: the file cannot be opened or recognised, a row is malformed, or none is usable.
    """
    trace = Trace(str(path), "mapped")
    rows = []
    before = None
    seen: set[int] = set()
    for parsed in _parsed(path, format_name, columns, trace, unit):
        if isinstance(parsed, Row):
            trace.delayed += parsed.delayed
            if not parsed.delayed:
                trace.out_of_order += before is not None and parsed.at_ns < before
                before = parsed.at_ns
            said = hash(parsed[1:])
            trace.repeated += said in seen
            seen.add(said)
            rows.append(parsed)
        else:
            _leave_out(trace, path, parsed, skip_invalid=skip_invalid)
    if not rows:
        dropped = ", ".join(f"{count} {reason}" for reason, count in trace.dropped.items()) or "no rows at all"
        raise TraceError(f"{path}: no usable row ({dropped})")
    rows.sort(key=lambda row: row.at_ns)
    _place(trace, rows, undo_grid=undo_grid, seed=seed)
    return trace


def _parsed(
    path: Path, format_name: str, columns: str | None, trace: Trace, unit: str | None = None
) -> Iterator[Parsed]:
    """The file's rows in its own order; notes the format's name and the blank lines."""
    column_map = parse_columns(columns) if columns else None
    if column_map is not None and unit is not None:
        raise TraceError("name the unit of the times in the column map: at=COLUMN,..,unit=ms")
    if column_map is not None and is_parquet(path, "trace"):
        yield from _parquet_rows(path, column_map)
        return
    lines = _numbered_lines(path, trace)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: the file is empty")
    trace_format = MappedLines(column_map) if column_map else format_for(path, format_name, first[1])
    trace.format_name, trace.block_tokens = trace_format.name, trace_format.block_tokens
    parsed = trace_format.parse(chain([first], lines))
    if unit is not None:
        if trace_format.unit_ns is None:
            raise TraceError(f"{path}: the times of format {trace_format.name} have a fixed unit; leave {unit!r} out")
        yield from _in_unit(parsed, UNITS_NS[unit] / trace_format.unit_ns)
    elif trace_format.unit_ns in (NS_PER_MS, NS_PER_S):
        yield from _checked_unit(parsed, path, trace, trace_format.unit_ns)
    else:
        yield from parsed


def _in_unit(rows: Iterator[Parsed], factor: float) -> Iterator[Parsed]:
    """Rows whose times were read in a unit of which the right one is `factor`."""
    for row in rows:
        if isinstance(row, Row):
            think_s = None if row.think_s is None else row.think_s * factor
            yield row._replace(at_ns=round(row.at_ns * factor), think_s=think_s)
        else:
            yield row


def _checked_unit(rows: Iterator[Parsed], path: Path, trace: Trace, unit_ns: int) -> Iterator[Parsed]:
    """Rows in milliseconds that do not look like seconds, and the other way round: at rates that no endpoint has.

    Raises:
        TraceError: the times have fractions, and the rate is above 100 requests a second.
    """
    count = fractions = first_ns = last_ns = 0
    for row in rows:
        if isinstance(row, Row):
            first_ns = row.at_ns if count == 0 else min(first_ns, row.at_ns)
            last_ns = max(last_ns, row.at_ns)
            count += 1
            fractions += row.at_ns % NS_PER_MS != 0
        yield row
    span_s = (last_ns - first_ns) / NS_PER_S
    if count < 2 or span_s <= 0:
        return
    if unit_ns == NS_PER_S:
        if count >= _MIN_ROWS and count / span_s < _DOUBTFUL_LOW_RATE_PER_S:
            doubt = f"{count} requests in {span_s:.3g} s if its times are seconds"
            trace.unit_note = f"{doubt}; if they are milliseconds, name their unit ({_UNIT_FLAGS} ms)"
        return
    if count / span_s <= _DOUBTFUL_RATE_PER_S:
        return
    doubt = f"{count} requests in {span_s:.3g} s if its times are milliseconds"
    if fractions:
        raise TraceError(f"{path}: {doubt}, and they have fractions: name their unit ({_UNIT_FLAGS} s, or ms)")
    trace.unit_note = f"{doubt}; if they are seconds, name their unit ({_UNIT_FLAGS} s)"


def parse_columns(text: str) -> ColumnMap:
    """Read a column map.

    Raises:
        TraceError: it is not one.
    """
    try:
        return ColumnMap.parse(text)
    except BadValueError as exc:
        raise TraceError(f"--columns: {exc}") from exc


def _parquet_rows(path: Path, columns: ColumnMap) -> Iterator[Parsed]:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as exc:
        raise TraceError("Parquet files need: pip install 'surgeproof[ui]'") from exc
    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield columns.row(number, values)
    except (OSError, ValueError) as exc:
        raise TraceError(f"{path} cannot be read as Parquet: {exc}") from exc


def _place(trace: Trace, rows: list[Row], *, undo_grid: bool, seed: int) -> None:
    """Put the sorted rows on the run's axis, its clock grid undone where asked."""
    at_ns = np.array([row.at_ns for row in rows], dtype=np.int64)
    trace.grid_ns = detect_grid_ns(at_ns)
    if trace.grid_ns is not None and undo_grid:
        at_ns = dequantise(at_ns, trace.grid_ns, np.random.default_rng(seed))
        trace.dequantised = True
    order = np.argsort(at_ns, kind="stable")
    start = int(at_ns[order[0]])
    if int(at_ns[order[-1]]) - start > MAX_SPAN_NS:
        raise TraceError(
            f"{trace.source}: the trace spans {(int(at_ns[order[-1]]) - start) / NS_PER_S:.3g} s: "
            "a time stamp is wrong, or the time unit is not the expected one"
        )
    for index in order:
        row = rows[index]
        trace.points.append(
            TracePoint(
                at_ns=int(at_ns[index]) - start,
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                row=row.line,
                hash_ids=row.hash_ids,
                request_class=row.request_class,
                session=row.session,
                think_s=row.think_s,
            )
        )


def _leave_out(trace: Trace, path: Path, parsed: Dropped | Malformed, *, skip_invalid: bool) -> None:
    if isinstance(parsed, Dropped):
        reason = parsed.reason
    else:
        sentence = f"{path}, row {parsed.line}: {parsed.problem}"
        if not skip_invalid:
            raise TraceError(f"{sentence}. Fix the row, or skip such rows with --skip-invalid.")
        reason = MALFORMED
        if len(trace.examples) < _EXAMPLES_KEPT:
            trace.examples.append(f"row {parsed.line}: {parsed.problem}")
    trace.dropped[reason] = trace.dropped.get(reason, 0) + 1


def first_line(path: Path) -> str:
    """The first line that is not blank.

    Raises:
        TraceError: the file cannot be read, or is empty.
    """
    result = next(_numbered_lines(path, Trace(str(path), "")), None)
    if result is None:
        raise TraceError(f"{path}: the file is empty")
    return result[1]


def _numbered_lines(path: Path, trace: Trace) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their number in the file; a byte-order mark is no text."""
    for number, line in enumerate(text_lines(path, "trace"), 1):
        if text := line.strip():
            yield number, text
        else:
            trace.blank_lines += 1


def format_for(path: Path, name: str, first_line: str) -> TraceFormat:
    """A format by name, or the one whose kind of line this is.

    Raises:
        TraceError: there is no such format, or the line is of none.
    """
    if name != "auto":
        for known in FORMATS:
            if known.name == name:
                return known
        raise TraceError(f"unknown trace format {name!r}; known are {', '.join(f.name for f in FORMATS)}")
    for known in FORMATS:
        if known.recognises(first_line):
            return known
    forms = "; ".join(f"{known.name}: {known.columns}" for known in FORMATS)
    raise TraceError(f"{path}: the first line matches no known format: {first_line[:100]!r}. Known are {forms}")
