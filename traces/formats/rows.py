"""What every parser yields, and the checks that all formats share."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

NumberedLine = tuple[int, str]

ZERO_OUTPUT = "zero_output_tokens"
ZERO_INPUT = "zero_input_tokens"


class Row(NamedTuple):
    """A usable row: line number, time on the file's axis (ns), lengths, and what else it tells."""

    line: int
    at_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    request_class: str | None = None


class Dropped(NamedTuple):
    """A well-formed row that cannot be replayed, left out under a named reason."""

    line: int
    reason: str


class Malformed(NamedTuple):
    """A row that cannot be read; `problem` names the field, the value and what was expected."""

    line: int
    problem: str


Parsed = Row | Dropped | Malformed


class TraceFormat(Protocol):
    """One file format."""

    name: str
    columns: str

    def recognises(self, first_line: str) -> bool:
        """Whether a file that begins with this line is of this format."""
        ...

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """Read numbered lines, the header included."""
        ...


class BadValueError(ValueError):
    """A field of a row is wrong; the text becomes the row's problem."""


def tokens(name: str, value: Any) -> int:
    """Read a token count: a whole number that is not negative."""
    try:
        number = float(value)
    except (TypeError, ValueError) as exc:
        raise BadValueError(f"{name} is {value!r}, not a number") from exc
    if not math.isfinite(number) or number < 0 or number != int(number):
        raise BadValueError(f"{name} is {value!r}, not a count of tokens")
    return int(number)


def offset_ns(name: str, value: Any, unit_ns: int) -> int:
    """Read a time since the trace's start: finite and not negative."""
    try:
        number = float(value)
    except (TypeError, ValueError) as exc:
        raise BadValueError(f"{name} is {value!r}, not a time") from exc
    if not math.isfinite(number) or number < 0:
        raise BadValueError(f"{name} is {value!r}, not a time since the start")
    return value * unit_ns if isinstance(value, int) else round(number * unit_ns)


def usable(row: Row) -> Row | Dropped:
    """Name the reason why a well-formed row cannot be sent, if there is one."""
    if row.output_tokens == 0:
        return Dropped(row.line, ZERO_OUTPUT)
    if row.input_tokens == 0:
        return Dropped(row.line, ZERO_INPUT)
    return row


def csv_fields(line: str) -> list[str]:
    """Split one CSV line; traces hold no line breaks inside quotes."""
    return next(csv.reader([line]), [])


def json_object(line: str) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        BadValueError: the line is not one.
    """
    try:
        value = json.loads(line)
    except ValueError as exc:
        raise BadValueError(f"not valid JSON ({exc}): {line[:80]!r}") from exc
    if not isinstance(value, dict):
        raise BadValueError(f"not a JSON object: {line[:80]!r}")
    return value


def field(row: dict[str, Any], name: str) -> Any:
    """A field that must be there; the error lists those that are."""
    if name not in row:
        raise BadValueError(f"no field {name!r}; the row has {', '.join(sorted(row)) or 'none'}")
    return row[name]
