"""OpenTelemetry spans of generative AI as OTLP JSON: a batch a line (the file exporter), or one document.

A span counts when it names token usage (semantic conventions for generative AI; the older names
`prompt_tokens` and `completion_tokens` too). Other spans of the same trace are left out by name.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from surgeproof.records import BLOCK_TOKENS
from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.rows import (
    NOT_A_GENERATION,
    BadValueError,
    Dropped,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    field,
    json_object,
    moment_ns,
    tokens,
    usable,
)

NO_USAGE = "no_token_usage"
_OTHER_OPERATIONS = ("embeddings", "execute_tool", "invoke_agent", "create_agent", "retrieval")


class Span(NamedTuple):
    """A generation: the row that it is, when it ended on the same axis, ns, and its trace."""

    row: Row
    end_ns: int
    trace: str


class OtelJson:
    """Reads `resourceSpans`."""

    name = "otel"
    columns = '{"resourceSpans": [{"scopeSpans": [{"spans": [..]}]}]}'
    unit_ns: int | None = None
    block_tokens = BLOCK_TOKENS

    def recognises(self, first_line: str) -> bool:
        """By the outermost field."""
        return first_line.strip() == "{" or first_line.lstrip("{ \t").startswith('"resourceSpans"')

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One batch a line; a document over many lines is read as one batch."""
        for found in self.spans(lines):
            yield found.row if isinstance(found, Span) else found

    def spans(self, lines: Iterable[NumberedLine]) -> Iterator[Span | Dropped | Malformed]:
        """The same with the end and the trace of each generation."""
        lines = iter(lines)
        first = next(lines, None)
        if first is None:
            return
        if not _is_whole(first[1]):
            text = "\n".join(line for _, line in chain([first], lines))
            lines, first = iter(()), (first[0], text)
        for number, line in chain([first], lines):
            try:
                batch = json_object(line)
                for span in _spans(batch):
                    yield _row(number, span)
            except BadValueError as exc:
                yield Malformed(number, str(exc))


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _spans(batch: JsonObject) -> Iterator[JsonObject]:
    try:
        for resource in field(batch, "resourceSpans"):
            for scope in resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans") or ():
                yield from scope.get("spans") or ()
    except (AttributeError, TypeError) as exc:
        raise BadValueError(f"the batch is not of OTLP's form ({exc})") from exc


def _row(number: int, span: JsonObject) -> Span | Dropped | Malformed:
    try:
        facts = {item["key"]: _value(item.get("value") or {}) for item in span.get("attributes") or ()}
        if not any(str(key).startswith("gen_ai.") for key in facts):
            return Dropped(number, NOT_A_GENERATION)
        if facts.get("gen_ai.operation.name") in _OTHER_OPERATIONS:
            return Dropped(number, NOT_A_GENERATION)
        inputs = facts.get("gen_ai.usage.input_tokens", facts.get("gen_ai.usage.prompt_tokens"))
        outputs = facts.get("gen_ai.usage.output_tokens", facts.get("gen_ai.usage.completion_tokens"))
        if inputs is None or outputs is None:
            return Dropped(number, NO_USAGE)
        session = facts.get("gen_ai.conversation.id")
        at_ns = moment_ns("startTimeUnixNano", field(span, "startTimeUnixNano"), 1)
        row = usable(
            Row(
                number,
                at_ns,
                tokens("gen_ai.usage.input_tokens", inputs),
                tokens("gen_ai.usage.output_tokens", outputs),
                session=str(session) if session else None,
            )
        )
        if not isinstance(row, Row):
            return row
        end_ns = moment_ns("endTimeUnixNano", span.get("endTimeUnixNano", at_ns), 1)
        return Span(row, end_ns, str(span.get("traceId") or session or ""))
    except BadValueError as exc:
        return Malformed(number, str(exc))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        return Malformed(number, f"a span is not of OTLP's form ({exc!r})")


def _value(value: JsonObject) -> Any:
    """OTLP's tagged value; 64-bit integers travel as text."""
    return next((content for key, content in value.items() if key.endswith("Value")), None)
