"""EvalScope's workload traces: JSONL with `timestamp`, the request's `body`, and `completion_tokens`.

Prompts are not kept: only how long they are, which without a tokenizer is estimated as a token for
four characters of text.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from surgeproof.traces.formats.rows import (
    BadValueError,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    estimated_tokens,
    field,
    json_object,
    moment_ns,
    tokens,
    usable,
)


class EvalScopeJsonl:
    """Reads `workload_trace` files."""

    name = "evalscope"
    columns = '{"timestamp": seconds or ISO, "body": {request}[, "completion_tokens": n]}'

    def recognises(self, first_line: str) -> bool:
        """By time and body."""
        try:
            value = json_object(first_line)
        except BadValueError:
            return False
        return "timestamp" in value and "body" in value

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One object a line."""
        for number, line in lines:
            try:
                value = json_object(line)
                body = field(value, "body")
                body = json.loads(body) if isinstance(body, str) else body
                if not isinstance(body, dict):
                    raise BadValueError("body is not a request")
                told = (value.get("completion_tokens"), body.get("max_completion_tokens"), body.get("max_tokens"))
                outputs = next((count for count in told if count is not None), None)
                if outputs is None:
                    raise BadValueError("neither completion_tokens nor max_tokens says how long the answer is")
                row = Row(
                    number,
                    moment_ns("timestamp", field(value, "timestamp")),
                    _prompt_tokens(body),
                    tokens("completion_tokens", outputs),
                )
            except (BadValueError, ValueError, RecursionError) as exc:
                yield Malformed(number, str(exc))
            else:
                yield usable(row)


def _prompt_tokens(body: dict[str, Any]) -> int:
    """Of a prompt of token ids their number; of text an estimate."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    return estimated_tokens(_text(body))


def _text(body: dict[str, Any]) -> str:
    """All text of a request's messages or prompt."""
    found: list[str] = []

    def gather(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                gather(item)
        elif isinstance(value, dict):
            for key in ("content", "text"):
                gather(value.get(key))

    gather(body.get("messages"))
    gather(body.get("prompt"))
    return " ".join(found)
