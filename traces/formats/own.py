"""Surgeproof's own JSONL: `at_s`, `input_tokens`, `output_tokens`, and what else a row may tell.

Optional are `request_class`, `hash_ids` (prefix-chained blocks), `session` and `think_s` (seconds
after the session's answer before).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from surgeproof.records import NS_PER_S, REQUEST_CLASSES
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


class SurgeproofJsonl:
    """Reads what a user writes by hand or from a log of their own."""

    name = "surgeproof"
    columns = '{"at_s": seconds, "input_tokens": n, "output_tokens": n[, "request_class": "P0", "session": "a"]}'

    def recognises(self, first_line: str) -> bool:
        """By the field `at_s` of the first object."""
        try:
            return "at_s" in json_object(first_line)
        except BadValueError:
            return False

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One object a line."""
        for number, line in lines:
            try:
                value = json_object(line)
                request_class = value.get("request_class")
                if request_class is not None and request_class not in REQUEST_CLASSES:
                    known = ", ".join(REQUEST_CLASSES)
                    raise BadValueError(f"request_class is {request_class!r}; known are {known}")
                row = Row(
                    number,
                    offset_ns("at_s", field(value, "at_s"), NS_PER_S),
                    tokens("input_tokens", field(value, "input_tokens")),
                    tokens("output_tokens", field(value, "output_tokens")),
                    hash_ids=hash_ids(value.get("hash_ids")),
                    request_class=request_class,
                    session=_session(value),
                    think_s=_think_s(value),
                )
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)


def _session(value: dict[str, Any]) -> str | None:
    session = value.get("session")
    return None if session in (None, "") else str(session)


def _think_s(value: dict[str, Any]) -> float | None:
    if value.get("think_s") is None:
        return None
    return offset_ns("think_s", value["think_s"], NS_PER_S) / NS_PER_S
