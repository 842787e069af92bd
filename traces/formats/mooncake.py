"""Mooncake: JSONL with `timestamp` (ms), `input_length`, `output_length` and prefix-chained `hash_ids`.

Also the forms that other load testers write: a later turn of a session may have a `delay` (ms after the answer
before) in place of its time, a request its `text_input` in place of its length.
"""

from collections.abc import Iterable, Iterator

from surgeproof.records import NS_PER_MS, NS_PER_S
from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.json_lines import JsonLines
from surgeproof.traces.formats.rows import (
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    estimated_tokens,
    field,
    hash_ids,
    name_of,
    offset_ns,
    tokens,
)


class MooncakeJsonl(JsonLines):
    """Reads Mooncake's traces and those that others write in its form."""

    name = "mooncake"
    columns = '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}'
    marks = ("timestamp",)
    unit_ns: int | None = NS_PER_MS

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One object a line; a turn without a time comes its delay after the turn before, until that is answered."""
        reached_ns: dict[str | None, int] = {}
        for parsed in super().parse(lines):
            yield _placed(parsed, reached_ns) if isinstance(parsed, Row) else parsed

    def row(self, number: int, value: JsonObject) -> Row:
        """One request; that of a delayed turn is at its delay."""
        delayed = value.get("timestamp") is None and "delay" in value
        name = "delay" if delayed else "timestamp"
        at_ns = offset_ns(name, field(value, name), NS_PER_MS)
        return Row(
            number,
            at_ns,
            _input_tokens(value),
            tokens("output_length", field(value, "output_length")),
            hash_ids=hash_ids(value.get("hash_ids")),
            session=name_of(value.get("session_id")),
            think_s=at_ns / NS_PER_S if delayed else None,
            delayed=delayed,
        )


def _input_tokens(value: JsonObject) -> int:
    """The prompt's length; estimated where the row holds the prompt itself."""
    text = value.get("text_input")
    if value.get("input_length") is None and isinstance(text, str):
        return estimated_tokens(text)
    return tokens("input_length", field(value, "input_length"))


def _placed(row: Row, reached_ns: dict[str | None, int]) -> Row | Malformed:
    if row.delayed:
        if row.session is None or row.session not in reached_ns:
            return Malformed(row.line, "a delay, but no turn of its session_id before it")
        row = row._replace(at_ns=reached_ns[row.session] + row.at_ns)
    reached_ns[row.session] = row.at_ns
    return row
