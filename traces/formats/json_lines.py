"""What all JSONL formats share: one object a line, recognised by its fields, each a row or a reason. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from surgeproof.records import BLOCK_TOKENS
from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.rows import (
    BadValueError,
    Dropped,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    json_object,
    usable,
)


class JsonLines(ABC):
    """A format of JSON lines; each one names its fields and reads one object.

    Attributes:
        name: of the format.
        columns: what an object looks like, for messages.
        marks: fields that identify the format; the first object must have all of them.
    """

    name = ""
    columns = ""
    marks: tuple[str, ...] = ()
    unit_ns: int | None = None
    block_tokens = BLOCK_TOKENS

    def recognises(self, first_line: str) -> bool:
        """Whether the first object has the format's fields."""
        try:
            value = json_object(first_line)
        except BadValueError:
            return False
        return all(mark in value for mark in self.marks)

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One object a line."""
        for number, line in lines:
            try:
                row = self.row(number, json_object(line))
            except (BadValueError, ValueError, RecursionError) as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row) if isinstance(row, Row) else row

    @abstractmethod
    def row(self, number: int, value: JsonObject) -> Row | Dropped:
        """Read one object.

        Raises:
            BadValueError: a field is missing or wrong.
        """
