"""Any table whose columns the user names: CSV with a header, JSONL with (dotted) fields, Parquet.

    at=COLUMN,input=COLUMN,output=COLUMN[,session=COLUMN][,class=COLUMN][,unit=s|ms|us|ns]

Times are numbers in the unit (seconds by default) or ISO date and times, those without an offset
in the zone that was named.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from surgeproof.records import BLOCK_TOKENS, NS_PER_MS, NS_PER_S, REQUEST_CLASSES
from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    csv_records,
    json_object,
    moment_ns,
    tokens,
    usable,
)

UNITS_NS = {"s": NS_PER_S, "ms": NS_PER_MS, "us": 1000, "ns": 1}
_NEEDED = ("at", "input", "output")
_KNOWN = (*_NEEDED, "session", "class", "unit", "zone")


class ColumnMap(msgspec.Struct, frozen=True):
    """Which column means what."""

    at: str
    input: str
    output: str
    session: str | None = None
    request_class: str | None = None
    unit_ns: int = NS_PER_S
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str) -> "ColumnMap":
        """Read the user's text.

        Raises:
            BadValueError: a part is unknown, or a needed one is missing.
        """
        parts = dict(part.partition("=")[::2] for part in text.split(",") if part.strip())
        parts = {key.strip(): value.strip() for key, value in parts.items()}
        unknown = [key for key in parts if key not in _KNOWN]
        missing = [key for key in _NEEDED if not parts.get(key)]
        if unknown or missing:
            what = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
            raise BadValueError(f"{what}; write at=COLUMN,input=COLUMN,output=COLUMN[,session=..,class=..,unit=ms]")
        if parts.get("unit", "s") not in UNITS_NS:
            raise BadValueError(f"unit {parts['unit']!r}; known are {', '.join(UNITS_NS)}")
        try:
            ZoneInfo(parts.get("zone", "UTC"))
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise BadValueError(f"unknown time zone {parts['zone']!r}") from exc
        return cls(
            parts["at"], parts["input"], parts["output"], parts.get("session"), parts.get("class"),
            UNITS_NS[parts.get("unit", "s")], parts.get("zone", "UTC"),
        )  # fmt: skip

    def row(self, number: int, values: Mapping[str, Any]) -> Parsed:
        """One row of the table."""
        try:
            request_class = self._held(values, self.request_class)
            if request_class is not None and request_class not in REQUEST_CLASSES:
                raise BadValueError(
                    f"{self.request_class} is {request_class!r}; known are {', '.join(REQUEST_CLASSES)}"
                )
            session = self._held(values, self.session)
            return usable(
                Row(
                    number,
                    moment_ns(self.at, self._needed(values, self.at), self.unit_ns, self.zone),
                    tokens(self.input, self._needed(values, self.input)),
                    tokens(self.output, self._needed(values, self.output)),
                    request_class=request_class,
                    session=str(session) if session is not None else None,
                )
            )
        except BadValueError as exc:
            return Malformed(number, str(exc))

    def _needed(self, values: Mapping[str, Any], path: str) -> Any:
        result = _at_path(values, path)
        if result is None or result == "":
            raise BadValueError(f"no {path}; the row has {', '.join(map(str, values)) or 'nothing'}")
        return result

    def _held(self, values: Mapping[str, Any], path: str | None) -> Any:
        result = _at_path(values, path) if path else None
        return None if result == "" else result


class MappedLines:
    """CSV or JSONL by a column map; a line that begins with a brace is JSON."""

    name = "mapped"
    columns = "named by --columns"
    unit_ns: int | None = None
    block_tokens = BLOCK_TOKENS

    def __init__(self, columns: ColumnMap) -> None:
        self._map = columns

    def recognises(self, first_line: str) -> bool:  # noqa: ARG002
        """Never: this format is used only with --columns."""
        return False

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One row an object of JSON, or a row of CSV after its header."""
        numbered = iter(lines)
        first = next(numbered, (1, ""))
        rows = self._json_rows if first[1].startswith("{") else self._csv_rows
        yield from rows(chain([first], numbered))

    def _json_rows(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        for number, line in lines:
            try:
                values = json_object(line)
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield self._map.row(number, values)

    def _csv_rows(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        header: list[str] = []
        for record in csv_records(lines):
            if isinstance(record, Malformed):
                yield record
                continue
            number, fields = record
            if not header:
                header = fields
                lost = [name for name in (self._map.session, self._map.request_class) if name and name not in header]
                if lost:
                    yield Malformed(number, f"no column {', '.join(lost)}; the header has {', '.join(header)}")
            elif len(fields) != len(header):
                yield Malformed(number, f"{len(fields)} columns instead of {len(header)}")
            else:
                yield self._map.row(number, dict(zip(header, fields, strict=True)))


def _at_path(values: Mapping[str, Any], path: str) -> Any:
    """A field by its name, or by a dotted path into objects."""
    if path in values:
        return values[path]
    result: Any = values
    for name in path.split("."):
        result = result.get(name) if isinstance(result, Mapping) else None
    return result
