"""Mooncake: JSONL with `timestamp` (ms), `input_length`, `output_length` and prefix-chained `hash_ids`."""

from collections.abc import Iterable, Iterator

from surgeproof.records import NS_PER_MS
from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    field,
    hash_ids,
    json_object,
    offset_ns,
    tokens,
    usable,
)


class MooncakeJsonl:
    """Reads Mooncake's traces and those that others write in its form."""

    name = "mooncake"
    columns = '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}'

    def recognises(self, first_line: str) -> bool:
        """By the field `timestamp` of the first object."""
        try:
            return "timestamp" in json_object(first_line)
        except BadValueError:
            return False

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One object a line."""
        for number, line in lines:
            try:
                value = json_object(line)
                row = Row(
                    number,
                    offset_ns("timestamp", field(value, "timestamp"), NS_PER_MS),
                    tokens("input_length", field(value, "input_length")),
                    tokens("output_length", field(value, "output_length")),
                    hash_ids=hash_ids(value.get("hash_ids")),
                    session=None if value.get("session_id") in (None, "") else str(value["session_id"]),
                )
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)
