"""Surgeproof's own JSONL: `at_s`, `input_tokens`, `output_tokens`, and optional fields.

Optional are `request_class`, `hash_ids` (prefix-chained blocks), `session` and `think_s` (seconds
between the session's previous answer and this request).
"""

from surgeproof.records import NS_PER_S, REQUEST_CLASSES
from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.json_lines import JsonLines
from surgeproof.traces.formats.rows import BadValueError, Row, field, hash_ids, name_of, offset_ns, tokens


class SurgeproofJsonl(JsonLines):
    """Reads what a user writes by hand or from a log of their own."""

    name = "surgeproof"
    columns = '{"at_s": seconds, "input_tokens": n, "output_tokens": n[, "request_class": "P0", "session": "a"]}'
    marks = ("at_s",)

    def row(self, number: int, value: JsonObject) -> Row:
        """One request."""
        request_class = value.get("request_class")
        if request_class is not None and request_class not in REQUEST_CLASSES:
            raise BadValueError(f"request_class is {request_class!r}; known are {', '.join(REQUEST_CLASSES)}")
        return Row(
            number,
            offset_ns("at_s", field(value, "at_s"), NS_PER_S),
            tokens("input_tokens", field(value, "input_tokens")),
            tokens("output_tokens", field(value, "output_tokens")),
            hash_ids=hash_ids(value.get("hash_ids")),
            request_class=request_class,
            session=name_of(value.get("session")),
            think_s=_think_s(value),
        )


def _think_s(value: JsonObject) -> float | None:
    if value.get("think_s") is None:
        return None
    return offset_ns("think_s", value["think_s"], NS_PER_S) / NS_PER_S
