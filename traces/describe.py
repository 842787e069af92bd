"""Describes a trace file: read whole and repaired where it is small, streamed where it is large."""

from pathlib import Path

from surgeproof.traces.compression import is_parquet
from surgeproof.traces.inspection import TraceFacts, inspect_trace
from surgeproof.traces.reader import first_line, format_for, parse_columns, read_trace
from surgeproof.traces.streaming import COLUMN_MAPS, LARGE_BYTES, inspect_table


def describe_file(
    path: Path,
    format_name: str = "auto",
    *,
    columns: str | None = None,
    skip_invalid: bool = False,
    undo_grid: bool = True,
    large_bytes: int = LARGE_BYTES,
    unit: str | None = None,
) -> TraceFacts:
    """Rate, gaps, dispersion, lengths and clock of a trace.

    Args:
        path: the file.
        format_name: a name of `FORMATS`, or `auto`.
        columns: a column map, in place of a format.
        skip_invalid: count malformed rows instead of stopping at the first.
        undo_grid: spread time stamps over a detected clock grid; not done where the file is streamed.
        large_bytes: size from which on a table is streamed.
        unit: of numbers of time where the format's own is wrong.

    Raises:
        TraceError: the file cannot be read or recognised, or a row is malformed.
    """
    if _size(path) >= large_bytes and unit is None:
        column_map = parse_columns(columns) if columns is not None else None
        name = (
            "mapped"
            if column_map or is_parquet(path, "trace")
            else format_for(path, format_name, first_line(path)).name
        )
        column_map = column_map or COLUMN_MAPS.get(name)
        # Objects of JSON have no columns to stream: they are read one by one.
        if column_map is not None and (is_parquet(path, "trace") or not first_line(path).startswith("{")):
            return inspect_table(path, column_map, name, skip_invalid=skip_invalid)
    trace = read_trace(path, format_name, columns=columns, skip_invalid=skip_invalid, undo_grid=undo_grid, unit=unit)
    return inspect_trace(trace)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
