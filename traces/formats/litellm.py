"""LiteLLM's log of calls: one JSON object a line, as its proxy writes it (StandardLoggingPayload).

Needed are `startTime` (epoch seconds or ISO), `prompt_tokens` and `completion_tokens`; failed calls
and calls that generate no text are left out under a name.
"""

from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.json_lines import JsonLines
from surgeproof.traces.formats.rows import NOT_A_GENERATION, Dropped, Row, field, moment_ns, tokens

FAILED = "failed_request"
NO_USAGE = "no_token_usage"
_GENERATING = (
    "completion",
    "text_completion",
    "responses",
    "anthropic_messages",
    "generate_content",
    "generate_content_stream",
)


class LiteLlmJsonl(JsonLines):
    """Reads the objects that LiteLLM's file, S3 and GCS loggers write."""

    name = "litellm"
    columns = '{"startTime": seconds or ISO, "prompt_tokens": n, "completion_tokens": n[, "status": "success"]}'
    marks = ("startTime", "prompt_tokens")

    def row(self, number: int, value: JsonObject) -> Row | Dropped:
        """One call."""
        kind = str(value.get("call_type") or "completion").removeprefix("a")
        if kind not in _GENERATING and f"a{kind}" not in _GENERATING:
            return Dropped(number, NOT_A_GENERATION)
        if value.get("status", "success") != "success":
            return Dropped(number, FAILED)
        if value.get("prompt_tokens") is None or value.get("completion_tokens") is None:
            return Dropped(number, NO_USAGE)
        session = value.get("session_id") or value.get("trace_id")
        return Row(
            number,
            moment_ns("startTime", field(value, "startTime")),
            tokens("prompt_tokens", field(value, "prompt_tokens")),
            tokens("completion_tokens", field(value, "completion_tokens")),
            session=str(session) if session else None,
        )
