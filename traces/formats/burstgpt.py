"""BurstGPT: CSV with seconds since the start, in the 6-column (v1) and the 8-column form (v3)."""

from collections.abc import Iterable, Iterator

from surgeproof.records import BLOCK_TOKENS, NS_PER_S
from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    csv_fields,
    csv_records,
    offset_ns,
    tokens,
    usable,
)

_NEEDED = ("Timestamp", "Request tokens", "Response tokens")


class BurstGptCsv:
    """Reads both forms by their header; failed requests have 0 response tokens and are dropped as such."""

    name = "burstgpt"
    columns = "Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log Type"
    unit_ns: int | None = NS_PER_S
    block_tokens = BLOCK_TOKENS

    def recognises(self, first_line: str) -> bool:
        """By the header's three needed columns."""
        header = csv_fields(first_line)
        return all(name in header for name in _NEEDED)

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One row a line after the header."""
        header: list[str] = []
        for record in csv_records(lines):
            if isinstance(record, Malformed):
                yield record
                continue
            number, values = record
            if not header:
                header = values
                continue
            try:
                if len(values) != len(header):
                    raise BadValueError(f"{len(values)} columns instead of {len(header)}")
                at, inputs, outputs = (values[header.index(name)] for name in _NEEDED)
                session = values[header.index("Session ID")] if "Session ID" in header else ""
                row = Row(
                    number,
                    offset_ns("Timestamp", at, NS_PER_S),
                    tokens("Request tokens", inputs),
                    tokens("Response tokens", outputs),
                    session=session or None,
                )
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)
