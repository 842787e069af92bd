"""Mooncake: JSONL with `timestamp` (ms), `input_length`, `output_length` and prefix-chained `hash_ids`."""

from surgeproof.records import NS_PER_MS
from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.json_lines import JsonLines
from surgeproof.traces.formats.rows import Row, field, hash_ids, name_of, offset_ns, tokens


class MooncakeJsonl(JsonLines):
    """Reads Mooncake's traces and those that others write in its form."""

    name = "mooncake"
    columns = '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}'
    marks = ("timestamp",)

    def row(self, number: int, value: JsonObject) -> Row:
        """One request."""
        return Row(
            number,
            offset_ns("timestamp", field(value, "timestamp"), NS_PER_MS),
            tokens("input_length", field(value, "input_length")),
            tokens("output_length", field(value, "output_length")),
            hash_ids=hash_ids(value.get("hash_ids")),
            session=name_of(value.get("session_id")),
        )
