"""What every parser yields, and the checks that all formats share."""

import csv
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from surgeproof.records import NS_PER_S
from surgeproof.strict_json import JsonObject

NumberedLine = tuple[int, str]

MALFORMED = "malformed"
ZERO_OUTPUT = "zero_output_tokens"
ZERO_INPUT = "zero_input_tokens"
NOT_A_GENERATION = "not_a_generation"
MAX_TOKENS = 2**31 - 1
MAX_SPAN_NS = 2 * 366 * 86_400 * NS_PER_S
"""A trace that spans more has a time stamp that is far off, or another unit."""
_MAX_LINES = 10_000  # of one row, whose quoted field holds line breaks
_MAX_NS = 2**62  # the year 2116
_CHARS_PER_TOKEN = 4
_COMMA_FRACTION = re.compile(r"(:\d\d),(?=\d)")  # ISO 8601 allows 00:00:00,250


class Row(NamedTuple):
    """A usable row: line number, time on the file's axis (ns), lengths, and optional fields.

    `session` names the conversation that a request belongs to; `think_s` is how long its user
    waited after the answer before. `continues` is the session of the turn before, where the trace names turns;
    `delayed` says that only `think_s` is known and `at_ns` is the earliest time that it allows.
    """

    line: int
    at_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    request_class: str | None = None
    session: str | None = None
    think_s: float | None = None
    continues: str | None = None
    delayed: bool = False


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
    """One file format.

    Attributes:
        unit_ns: unit of its numbers of time; None where they are dates, or a field names its unit.
        block_tokens: tokens of a block that a hash id names.
    """

    name: str
    columns: str
    unit_ns: int | None
    block_tokens: int

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
    if isinstance(value, bool):
        raise BadValueError(f"{name} is {value!r}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise BadValueError(f"{name} is {str(value)[:40]!r}, not a number") from exc
    if not math.isfinite(number) or not 0 <= number <= MAX_TOKENS or number != int(number):
        raise BadValueError(f"{name} is {str(value)[:40]!r}, not a count of tokens up to {MAX_TOKENS}")
    return int(number)


def offset_ns(name: str, value: Any, unit_ns: int) -> int:
    """Read a time since the trace's start: finite and not negative."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise BadValueError(f"{name} is {str(value)[:40]!r}, not a time") from exc
    if isinstance(value, bool) or not math.isfinite(number) or not 0 <= number * unit_ns < _MAX_NS:
        raise BadValueError(f"{name} is {str(value)[:40]!r}, not a time since the start")
    return value * unit_ns if isinstance(value, int) else round(number * unit_ns)


def moment_ns(name: str, value: Any, unit_ns: int = NS_PER_S, zone: str = "UTC") -> int:
    """Read a moment: a number in `unit_ns`, or an ISO date and time, in `zone` where it names no offset.

    All digits of an ISO fraction are kept, up to nanoseconds.
    """
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, int | float) or _is_number(value):
        try:
            number = Decimal(str(value))
            if number.is_finite() and abs(number * unit_ns) < _MAX_NS:
                return round(number * unit_ns)
        except ArithmeticError:
            pass
        raise BadValueError(f"{name} is {str(value)[:40]!r}, not a time")
    text = _COMMA_FRACTION.sub(r"\1.", str(value).strip())
    head, dot, rest = text.partition(".")
    digits = re.match(r"\d*", rest).group() if dot else ""  # type: ignore[union-attr]
    try:
        moment = datetime.fromisoformat(head + rest[len(digits) :])
        fraction_ns = int(digits.ljust(9, "0")[:9]) if digits else 0
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone))
        at_ns = int(moment.timestamp()) * NS_PER_S + fraction_ns
    except (ValueError, OverflowError, ZoneInfoNotFoundError) as exc:
        raise BadValueError(f"{name} is {str(value)[:40]!r}, not a date and time") from exc
    if abs(at_ns) >= _MAX_NS:
        raise BadValueError(f"{name} is {str(value)[:40]!r}, out of range")
    return at_ns


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def estimated_tokens(text: str) -> int:
    """Tokens of an English text without its tokenizer: one for four characters, rounded up."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def usable(row: Row) -> Row | Dropped:
    """Name the reason why a well-formed row cannot be sent, if there is one."""
    if row.output_tokens == 0:
        return Dropped(row.line, ZERO_OUTPUT)
    if row.input_tokens == 0:
        return Dropped(row.line, ZERO_INPUT)
    return row


def csv_fields(line: str) -> list[str]:
    """Split one CSV line."""
    return next(csv.reader([line]), [])


def csv_records(lines: Iterable[NumberedLine]) -> Iterator[tuple[int, list[str]] | Malformed]:
    """Rows of a CSV table with the number of their first line; a quoted field may go over several lines.

    Where quotes never balance, their first line is malformed and those after it are rows of their own.
    """
    csv.field_size_limit(MAX_TOKENS)  # a column of prompts is longer than the default
    source, put_back = iter(lines), deque[NumberedLine]()

    def following() -> NumberedLine | None:
        return put_back.popleft() if put_back else next(source, None)

    while (first := following()) is not None:
        number, line = first
        if '"' not in line:
            yield number, line.split(",")
            continue
        lines_read, quotes = [first], line.count('"')
        while quotes % 2 and len(lines_read) < _MAX_LINES and (more := following()) is not None:
            lines_read.append(more)
            quotes += more[1].count('"')
        try:
            fields = next(csv.reader(["\n".join(text for _, text in lines_read)]), []) if quotes % 2 == 0 else None
        except csv.Error:
            fields = None
        if fields is None:
            yield Malformed(number, f"a quoted field has no end, or a quote is in the wrong place: {line[:80]!r}")
            put_back.extendleft(reversed(lines_read[1:]))
        else:
            yield number, fields


def json_object(line: str) -> JsonObject:
    """Read one JSON object.

    Raises:
        BadValueError: the line is not one.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise BadValueError(f"not valid JSON ({exc}): {line[:80]!r}") from exc
    if not isinstance(value, dict):
        raise BadValueError(f"not a JSON object: {line[:80]!r}")
    return value


def name_of(value: Any) -> str | None:
    """A name, of a session say; None where there is none."""
    return None if value in (None, "") else str(value)


def hash_ids(value: Any) -> tuple[int, ...]:
    """Read ids of prefix-chained blocks: whole numbers of 64 bits, or none."""
    if value is not None and not isinstance(value, list | tuple):
        raise BadValueError(f"hash_ids are {str(value)[:40]!r}, not a list")
    ids = tuple(value or ())
    if not all(isinstance(block, int) and not isinstance(block, bool) and abs(block) < 2**63 for block in ids):
        raise BadValueError(f"hash_ids are {str(value)[:40]!r}, not 64-bit integers")
    return ids


def field(row: JsonObject, name: str) -> Any:
    """A field that must be there; the error lists those that are."""
    if name not in row:
        raise BadValueError(f"no field {name!r}; the row has {', '.join(sorted(row)) or 'none'}")
    return row[name]
