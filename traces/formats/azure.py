"""Azure LLM inference traces: CSV with TIMESTAMP (UTC, up to 100 ns), ContextTokens, GeneratedTokens."""

from collections.abc import Iterable, Iterator

from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    csv_fields,
    moment_ns,
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
                at_ns = moment_ns("TIMESTAMP", values[0])
                row = Row(number, at_ns, tokens("ContextTokens", values[1]), tokens("GeneratedTokens", values[2]))
            except BadValueError as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)
