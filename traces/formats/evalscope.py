"""EvalScope's workload traces: JSONL with `timestamp`, the request's `body`, and `completion_tokens`.

Prompts are not kept: only how long they are, which without a tokenizer is estimated as a token for
four characters of text.
"""

import json

from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.json_lines import JsonLines
from surgeproof.traces.formats.rows import BadValueError, Row, estimated_tokens, field, moment_ns, tokens
from surgeproof.traces.request_text import text_of, token_ids_of


class EvalScopeJsonl(JsonLines):
    """Reads `workload_trace` files."""

    name = "evalscope"
    columns = '{"timestamp": seconds or ISO, "body": {request}[, "completion_tokens": n]}'
    marks = ("timestamp", "body")

    def row(self, number: int, value: JsonObject) -> Row:
        """One request."""
        body = field(value, "body")
        body = json.loads(body) if isinstance(body, str) else body
        if not isinstance(body, dict):
            raise BadValueError("body is not a request")
        counts = (value.get("completion_tokens"), body.get("max_completion_tokens"), body.get("max_tokens"))
        outputs = next((count for count in counts if count is not None), None)
        if outputs is None:
            raise BadValueError("neither completion_tokens nor max_tokens gives the answer's length")
        return Row(
            number,
            moment_ns("timestamp", field(value, "timestamp")),
            _prompt_tokens(body),
            tokens("completion_tokens", outputs),
        )


def _prompt_tokens(body: JsonObject) -> int:
    """Of a prompt of token ids their number; of text an estimate."""
    count = token_ids_of(body)
    return estimated_tokens(text_of(body)) if count is None else count
