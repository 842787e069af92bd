"""Writes a trace for other tools, in Mooncake's form; repaired clocks are written as repaired."""

import json
from collections.abc import Iterable, Iterator

from surgeproof.records import NS_PER_MS, TracePoint


def mooncake_lines(points: Iterable[TracePoint]) -> Iterator[str]:
    """One JSON object a line: `timestamp` in ms, lengths, and hash ids and session where they are known."""
    for point in points:
        row: dict[str, object] = {
            "timestamp": _number(point.at_ns / NS_PER_MS),
            "input_length": point.input_tokens,
            "output_length": point.output_tokens,
        }
        if point.hash_ids:
            row["hash_ids"] = list(point.hash_ids)
        if point.session is not None:
            row["session_id"] = point.session
        yield json.dumps(row)


def _number(value: float) -> int | float:
    """Whole milliseconds as Mooncake writes them; fractions are kept."""
    return int(value) if value.is_integer() else round(value, 6)
