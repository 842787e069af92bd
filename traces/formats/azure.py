"""Azure LLM inference traces: CSV with TIMESTAMP (UTC, up to 100 ns), ContextTokens, GeneratedTokens."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from surgeproof.records import NS_PER_S
from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    csv_fields,
    tokens,
    usable,
)


class AzureCsv:
    """Reads the 2023 and 2024 files."""

    name = "azure"
    columns = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def recognises(self, first_line: str) -> bool:
        """By the header."""
        return csv_fields(first_line)[:3] == self.columns.split(",")

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One row a line after the header."""
        for number, line in lines:
            values = csv_fields(line)
            if values[:3] == self.columns.split(","):
                continue
            try:
                if len(values) < 3:
                    raise BadValueError(f"{len(values)} columns instead of 3")
                at_ns = timestamp_ns(values[0])
                row = Row(number, at_ns, tokens("ContextTokens", values[1]), tokens("GeneratedTokens", values[2]))
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)


def timestamp_ns(text: str) -> int:
    """ISO date and time as ns since the epoch, all digits of the fraction kept; UTC without an offset."""
    head, dot, rest = text.partition(".")
    digits = rest.rstrip("Zz")
    for sign in "+-":
        digits = digits.partition(sign)[0]
    zone = rest[len(digits) :] if dot else ""
    try:
        moment = datetime.fromisoformat(head + zone)
        fraction_ns = int(digits.ljust(9, "0")[:9]) if digits else 0
    except ValueError as exc:
        raise BadValueError(f"TIMESTAMP is {text!r}, not a date and time") from exc
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * NS_PER_S + fraction_ns
