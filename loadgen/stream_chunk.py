"""One decoded chunk of a completion to facts: output, finish reasons, usage, errors. Pure, without state.

Accepts the forms that servers and gateways use: deltas and whole messages, text and typed parts,
reasoning under several names, usage beside or inside a choice, errors inside a 200 stream.
"""

import json
from typing import Any, NamedTuple

from surgeproof.loadgen.plain_body import clean, excerpt
from surgeproof.strict_json import JsonObject

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
_OTHER_OUTPUT_KEYS = ("refusal", "audio", "reasoning_details")
_STATUS_KEYS = ("base_resp", "baseResp")
_GOOD_CODES = (None, 0, "0", "", 200, "200", "ok", "OK", "success", "Success")
_GIVEN_UP = (
    "abort",
    "cancel",
    "error",
    "fail",
    "insufficient",
    "interrupt",
    "overload",
    "timeout",
    "timed_out",
    "unavailable",
)
"""A finish reason that holds one of these is not the answer's own end."""
_ERROR_KEYS = ("errors", "error_code", "error_msg", "error_message")
_ERROR_TEXT_KEYS = (
    "code", "status_code", "type", "error_type", "error_code", "message", "msg", "status_msg", "error_msg", "detail",
)  # fmt: skip
_MAX_TOKENS = 2**53
_MAX_NAME_CHARS = 100


class Output(NamedTuple):
    """What one choice of a chunk adds.

    Attributes:
        choice: its index.
        text: visible answer.
        reasoning: streamed reasoning.
        tool_arguments: of tool calls.
        generated: whether the model generated anything, visible or not.
        reasoned: whether part of it is reasoning.
        finish_reason: why the choice ended, where it did.
    """

    choice: int = 0
    text: str = ""
    reasoning: str = ""
    tool_arguments: str = ""
    generated: bool = False
    reasoned: bool = False
    finish_reason: str | None = None


class Usage:
    """Token counts that the server sent; they are cumulative, so the largest of each counts."""

    __slots__ = ("cached_tokens", "input_tokens", "output_tokens", "reasoning_tokens")

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None

    def take(self, holder: JsonObject) -> None:
        """Read the usage of a chunk or choice, where it has one."""
        usage = holder.get("usage")
        if not isinstance(usage, dict):
            groq = holder.get("x_groq")
            usage = groq.get("usage") if isinstance(groq, dict) else None
            if not isinstance(usage, dict):
                return
        get = usage.get
        output = get("completion_tokens", get("output_tokens"))
        self.output_tokens = _larger(self.output_tokens, output)
        self.input_tokens = _larger(self.input_tokens, get("prompt_tokens", get("input_tokens")))
        details = get("prompt_tokens_details") or get("input_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _larger(self.cached_tokens, details.get("cached_tokens"))
        else:
            cached = get("prompt_cache_hit_tokens", get("cached_tokens"))
            self.cached_tokens = _larger(self.cached_tokens, cached)
        details = get("completion_tokens_details") or get("output_tokens_details")
        if isinstance(details, dict):
            self.reasoning_tokens = _larger(self.reasoning_tokens, details.get("reasoning_tokens"))
            self._add_hidden_reasoning(get("total_tokens"), output)

    def _add_hidden_reasoning(self, total: Any, output: Any) -> None:
        """Some servers count hidden reasoning beside the completion; only their total has all of it."""
        prompt, hidden = self.input_tokens, self.reasoning_tokens
        if prompt is not None and hidden and isinstance(output, int) and total == prompt + output + hidden:
            self.output_tokens = _larger(self.output_tokens, output + hidden)


def choices_of(chunk: JsonObject) -> list[JsonObject]:
    """The choices of a streamed chunk, or of a whole completion."""
    return _dicts(chunk.get("choices"))


def has_usage(chunk: JsonObject) -> bool:
    """Whether a chunk holds usage of its own."""
    return bool(chunk.get("usage") or chunk.get("x_groq"))


def output_of(choice: JsonObject) -> Output:
    """What one choice adds."""
    index = choice.get("index")
    if index.__class__ is not int:
        index = 0
    reason = choice.get("finish_reason")
    finish_reason = clean(str(reason), _MAX_NAME_CHARS) if reason else None
    delta = choice.get("delta")
    if delta is None:
        message = choice.get("message")
        delta = message if isinstance(message, dict) else choice
    if not isinstance(delta, dict):
        return Output(index, finish_reason=finish_reason)
    content = delta.get("content")
    if content is None:
        content = delta.get("text")
    text, reasoned, reasoning = "", False, ""
    if content.__class__ is str:
        text = content
        # The common delta is {"content": ...} alone: nothing else to look for.
        if text and len(delta) == 1:
            return Output(index, text, generated=True, finish_reason=finish_reason)
    elif content:
        text, reasoned = _of_parts(content)
    for key in _REASONING_KEYS:
        value = delta.get(key)
        if value and isinstance(value, str):
            reasoned, reasoning = True, value
            break
    refusal = delta.get("refusal")
    if not text and refusal.__class__ is str:
        # A refusal is what the user gets to read.
        text = refusal
    generated = bool(text) or reasoned or any(delta.get(key) for key in _OTHER_OUTPUT_KEYS)
    called, arguments = _of_tools(delta.get("tool_calls"), delta.get("function_call"))
    return Output(index, text, reasoning, arguments, generated or called, reasoned, finish_reason)


def _of_parts(content: Any) -> tuple[str, bool]:
    """Content as a list of typed parts (Mistral, some gateways): its text, and whether a part is reasoning."""
    texts, reasoned = [], False
    for part in _dicts(content):
        text = part.get("text")
        if isinstance(text, str) and text:
            texts.append(text)
        elif any(part.get(key) for key in _REASONING_KEYS):
            reasoned = True
    return "".join(texts), reasoned


def _of_tools(tools: Any, function: Any) -> tuple[bool, str]:
    """Whether a tool is called, and the arguments so far."""
    called, arguments = False, []
    if tools or function:
        calls = [call.get("function") or call.get("custom") for call in _dicts(tools)]
        for call in _dicts([*calls, function]):
            given = call.get("arguments") or call.get("input")
            called = called or bool(call.get("name") or given)
            if isinstance(given, str):
                arguments.append(given)
    return called, "".join(arguments)


def is_error(chunk: JsonObject) -> bool:
    """Whether a chunk says that the request failed."""
    if any(_status_of(chunk.get(key)) for key in _STATUS_KEYS):
        return True
    error = chunk.get("error")
    if isinstance(error, dict):
        # Some gateways send an error object whose every field is empty or 0 with each good chunk.
        error = any(error.values())
    if error:
        return True
    if chunk.get("choices") or chunk.get("usage"):
        return False
    kind = chunk.get("object") or chunk.get("type")
    if kind == "error" or (kind is None and chunk.get("detail")):
        return True
    code = chunk.get("status_code", chunk.get("status", chunk.get("code")))
    if chunk.get("success") is False or (chunk.get("message") and code not in _GOOD_CODES):
        return True
    return any(chunk.get(key) for key in _ERROR_KEYS) or (isinstance(code, int) and code >= 400)


def _status_of(status: Any) -> Any:
    """The code of a status object beside the choices, if it is that of a failure."""
    code = status.get("status_code", status.get("code")) if isinstance(status, dict) else None
    return code if code not in _GOOD_CODES else None


def gave_up(finish_reason: str | None) -> bool:
    """Whether a server broke an answer off, by the finish reason that it gives."""
    return finish_reason is not None and any(word in finish_reason.lower() for word in _GIVEN_UP)


def error_text(payload: Any) -> str:
    """Code, type and message of an error object in any of the forms seen in the field."""
    error = payload
    if isinstance(payload, dict):
        error = next((payload[key] for key in _STATUS_KEYS if _status_of(payload.get(key))), payload)
    for _ in range(2):
        if isinstance(error, dict) and error.get("error"):
            error = error["error"]
    if isinstance(error, dict):
        outer = payload if isinstance(payload, dict) else {}
        parts = [str(value) for key in _ERROR_TEXT_KEYS if (value := error.get(key, outer.get(key))) not in (None, "")]
        text = " ".join(parts) or json.dumps(error)
    else:
        kind = payload.get("error_type", "") if isinstance(payload, dict) else ""
        text = f"{kind} {error}".strip()
    return excerpt(text.encode("utf-8", "replace"))


def _dicts(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _larger(before: int | None, value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_TOKENS:
        return before
    return value if before is None or value > before else before
