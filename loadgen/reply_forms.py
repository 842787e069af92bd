"""Events and bodies of the other APIs, said as chat completions: responses, Anthropic messages, embeddings, rerank.

Pure. Each function takes one decoded event or body and returns what a chat completion would have said; what has no
counterpart becomes an empty chunk. So one reader follows every API, with the same stamps, usage and outcomes.
Sources: OpenAI's reference of the streaming events of responses, Anthropic's of the messages API, vLLM's of rerank.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from surgeproof.strict_json import JsonObject

Translate = Callable[[JsonObject], JsonObject]


class ReplyForm(NamedTuple):
    """How replies of one API are read.

    Attributes:
        event: a streamed event as a chunk.
        whole: a body that is not streamed as a chat completion.
        last: types of the event after which nothing comes.
        items: how many items (vectors, scores) a whole body holds, where the answer is these and no text.
    """

    event: Translate
    whole: Translate
    last: frozenset[str] = frozenset()
    items: Callable[[JsonObject], int] | None = None


_REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    "completed": "stop", "max_output_tokens": "length",
}  # fmt: skip
"""Reasons of an end by the name that chat completions have for them; others stay as they are."""


def _chunk(delta: JsonObject | None = None, finish_reason: str | None = None, usage: Any = None) -> JsonObject:
    chunk: JsonObject = {"object": "chat.completion.chunk"}
    if delta is not None or finish_reason is not None:
        reason = _REASONS.get(finish_reason, finish_reason) if finish_reason else None
        chunk["choices"] = [{"index": 0, "delta": delta or {}, "finish_reason": reason}]
    if usage:
        chunk["usage"] = usage
    return chunk


def _completion(message: JsonObject, finish_reason: Any, usage: Any) -> JsonObject:
    reason = _REASONS.get(finish_reason, finish_reason) if isinstance(finish_reason, str) else None
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# -- /v1/responses ----------------------------------------------------------------------------------

_RESPONSE_DELTAS: Mapping[str, Callable[[Any], JsonObject]] = {
    "response.output_text.delta": lambda text: {"content": text},
    "response.refusal.delta": lambda text: {"refusal": text},
    "response.reasoning_text.delta": lambda text: {"reasoning_content": text},
    "response.reasoning_summary_text.delta": lambda text: {"reasoning_content": text},
    "response.function_call_arguments.delta": lambda text: _call(arguments=text),
    "response.mcp_call_arguments.delta": lambda text: _call(arguments=text),
    "response.custom_tool_call_input.delta": lambda text: _call(arguments=text),
}
_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


def _call(name: Any = None, arguments: Any = "") -> JsonObject:
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]}


def _response_event(event: JsonObject) -> JsonObject:
    kind = str(event.get("type"))
    if kind in _RESPONSE_DELTAS:
        return _chunk(_RESPONSE_DELTAS[kind](event.get("delta")))
    if kind == "response.output_item.added":
        item = _mapping(event.get("item"))
        return _chunk(_call(item.get("name"))) if item.get("name") else _chunk()
    if kind in _RESPONSE_ENDS:
        response = _mapping(event.get("response"))
        if response.get("error"):
            return {"error": response["error"]}
        return _chunk({}, _response_reason(response) or kind.partition(".")[2], response.get("usage"))
    if kind.startswith("response."):
        return _chunk()
    return event


def _response_reason(response: JsonObject) -> str | None:
    """Why a response ended: the reason of an incomplete one, else its status."""
    reason = _mapping(response.get("incomplete_details")).get("reason") or response.get("status")
    return str(reason) if reason else None


def _whole_response(body: JsonObject) -> JsonObject:
    if "output" not in body or body.get("error"):
        return body
    items = _objects(body["output"])
    parts = [part for item in items if item.get("type") == "message" for part in _objects(item.get("content"))]
    calls = [{"function": item} for item in items if item.get("type") == "function_call"]
    thoughts = [
        str(part.get("text") or "")
        for item in items
        if item.get("type") == "reasoning"
        for part in (*_objects(item.get("content")), *_objects(item.get("summary")))
    ]
    message = {
        "content": "".join(str(part.get("text") or part.get("refusal") or "") for part in parts),
        "reasoning_content": "".join(thoughts),
        "tool_calls": calls,
    }
    return _completion(message, _response_reason(body), body.get("usage"))


# -- Anthropic's /v1/messages -----------------------------------------------------------------------


def _message_event(event: JsonObject) -> JsonObject:
    kind = event.get("type")
    if kind == "content_block_delta":
        return _chunk(_block_delta(_mapping(event.get("delta"))))
    if kind == "content_block_start":
        block = _mapping(event.get("content_block"))
        return _chunk(_call(block.get("name"))) if block.get("name") else _chunk(_block_delta(block))
    if kind == "message_start":
        return _chunk(usage=_message_usage(_mapping(event.get("message")).get("usage")))
    if kind == "message_delta":
        reason = _mapping(event.get("delta")).get("stop_reason")
        return _chunk({}, str(reason) if reason else None, _message_usage(event.get("usage")))
    if kind in ("message_stop", "content_block_stop", "ping"):
        return _chunk()
    return event


def _block_delta(block: JsonObject) -> JsonObject | None:
    """A piece of text, thinking or tool input; None for what is no output, such as a signature."""
    if block.get("text"):
        return {"content": block["text"]}
    if block.get("thinking"):
        return {"reasoning_content": block["thinking"]}
    if block.get("partial_json"):
        return _call(arguments=block["partial_json"])
    return None


def _message_usage(usage: Any) -> JsonObject:
    """Anthropic counts what came from the cache, and what was written to it, beside the input tokens."""
    counts = _mapping(usage)
    cached = counts.get("cache_read_input_tokens")
    parts = [counts.get("input_tokens"), cached, counts.get("cache_creation_input_tokens")]
    out: JsonObject = {}
    if parts[0] is not None:
        out["prompt_tokens"] = sum(part for part in parts if isinstance(part, int))
    if counts.get("output_tokens") is not None:
        out["completion_tokens"] = counts["output_tokens"]
    if cached is not None:
        out["prompt_tokens_details"] = {"cached_tokens": cached}
    return out


def _whole_message(body: JsonObject) -> JsonObject:
    if body.get("type") != "message":
        return body
    blocks = _objects(body.get("content"))
    message = {
        "content": "".join(str(block.get("text") or "") for block in blocks),
        "reasoning_content": "".join(str(block.get("thinking") or "") for block in blocks),
        "tool_calls": [_call(block["name"])["tool_calls"][0] for block in blocks if block.get("name")],
    }
    return _completion(message, body.get("stop_reason"), _message_usage(body.get("usage")))


# -- /v1/embeddings and rerank ----------------------------------------------------------------------


def _count_items(body: JsonObject) -> int:
    """Vectors (`data`) or scores (`results`)."""
    return len(_objects(body.get("data", body.get("results"))))


def _whole_items(body: JsonObject) -> JsonObject:
    """Rerank has only the total of its tokens, and nothing is generated."""
    usage = _mapping(body.get("usage"))
    if _count_items(body) and "prompt_tokens" not in usage and "total_tokens" in usage:
        return body | {"usage": {"prompt_tokens": usage["total_tokens"]}}
    return body


RESPONSES = ReplyForm(_response_event, _whole_response, _RESPONSE_ENDS)
MESSAGES = ReplyForm(_message_event, _whole_message, frozenset({"message_stop"}))
ITEMS = ReplyForm(lambda event: event, _whole_items, items=_count_items)
