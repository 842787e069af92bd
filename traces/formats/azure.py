"""Azure LLM inference traces: CSV with TIMESTAMP (UTC, up to 100 ns), ContextTokens, GeneratedTokens."""

from collections.abc import Iterable, Iterator

from surgeproof.records import BLOCK_TOKENS
from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    csv_fields,
    csv_records,
    moment_ns,
    tokens,
    usable,
)


class AzureCsv:
    """Reads the 2023 and 2024 files."""

    name = "azure"
    columns = "TIMESTAMP,ContextTokens,GeneratedTokens"
    unit_ns: int | None = None
    block_tokens = BLOCK_TOKENS

    def recognises(self, first_line: str) -> bool:
        """By the header."""
        return csv_fields(first_line)[:3] == self.columns.split(",")

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One row a line after the header."""
        width = 3
        for record in csv_records(lines):
            if isinstance(record, Malformed):
                yield record
                continue
            number, values = record
            if values[:3] == self.columns.split(","):
                width = len(values)
                continue
            try:
                if len(values) != width:
                    raise BadValueError(f"{len(values)} columns instead of {width}")
                at_ns = moment_ns("TIMESTAMP", values[0])
                row = Row(number, at_ns, tokens("ContextTokens", values[1]), tokens("GeneratedTokens", values[2]))
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)
