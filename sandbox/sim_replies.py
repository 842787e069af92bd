"""What the simulated server is asked and what it answers, in the form of each API. Pure.

A word of the prompt is a token, and so is every 28 by 28 pixels of a picture. Answers are words of a fixed order, so
that the words of an answer are known before it is generated.
"""

import time
from base64 import b64decode
from typing import Any, Protocol

import msgspec

from surgeproof.strict_json import JsonObject

_WORDS = ("time", "load", "the", "queue", "fast", "wave", "step", "answer", "calm", "river", "stone", "light")
_PATCH = 28
_PNG_SIZE = slice(16, 24)
_VECTOR = (0.1, -0.2, 0.3, 0.4)


class Reply(Protocol):
    """The answer to one request, of a known number of tokens."""

    def begin(self) -> bytes:
        """What a stream says before its first token."""
        ...

    def delta(self, number: int) -> bytes:
        """One token, from 1."""
        ...

    def tail(self, cached_tokens: int) -> bytes:
        """The end of a stream."""
        ...

    def whole(self, cached_tokens: int) -> JsonObject:
        """The answer to a request that did not ask for a stream."""
        ...


class Asked(msgspec.Struct, frozen=True):
    """A request as the engine sees it.

    Attributes:
        prompts: words of each prompt; several of an embeddings or a rerank request.
        limit: tokens to generate.
    """

    prompts: list[list[str]]
    limit: int


def answer_words(limit: int) -> list[str]:
    """The words of an answer."""
    return [_WORDS[number % len(_WORDS)] for number in range(1, limit + 1)]


def _word(number: int) -> str:
    return ("" if number == 1 else " ") + _WORDS[number % len(_WORDS)]


def _text(limit: int) -> str:
    return "".join(_word(number) for number in range(1, limit + 1))


def whole_number(body: JsonObject, name: str, default: int, least: int = 0) -> int:
    """A whole number of a request, or its default.

    Raises:
        ValueError: it is something else, or too small or large.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value


def read_request(path: str, body: JsonObject) -> Asked:
    """What a request asks.

    Raises:
        ValueError: it has not the form of its API.
    """
    if path.endswith("/embeddings"):
        texts = body.get("input")
        several = texts if isinstance(texts, list) else [texts]
        return Asked([_words_of(text, "input") for text in several], 1)
    if path.endswith("/rerank"):
        documents, query = body.get("documents"), _words_of(body.get("query"), "query")
        if not isinstance(documents, list) or not documents:
            raise ValueError("documents must be a list that is not empty")
        return Asked([query + _words_of(document, "documents") for document in documents], 1)
    if path.endswith(("/chat/completions", "/messages")):
        words = [*_message_words([{"content": body.get("system")}]), *_message_words(body.get("messages"))]
    elif path.endswith("/responses"):
        given = body.get("input")
        words = given.split() if isinstance(given, str) else _message_words(given, "input")
    else:
        words = _words_of(body.get("prompt"), "prompt")
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    limit = next((found for name in names if (found := whole_number(body, name, 0))), 16)
    if not isinstance(body.get("stream_options") or {}, dict):
        raise ValueError("stream_options must be an object")  # noqa: TRY004 - it becomes a 400
    return Asked([words], limit)


def _words_of(text: Any, name: str) -> list[str]:
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a string")  # noqa: TRY004 - it becomes a 400
    return text.split()


def _message_words(messages: Any, name: str = "messages") -> list[str]:
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ValueError(f"{name} must be a list of objects that is not empty")
    words: list[str] = []
    for message in messages:
        content = message.get("content", message.get("output"))
        for part in content if isinstance(content, list) else [{"text": content}]:
            words += str(part.get("text") or part.get("content") or "").split()
            words += ["<pixels>"] * _patches(part)
    return words


def _patches(part: JsonObject) -> int:
    """Tokens of a picture that is sent as a PNG."""
    image = part.get("image_url")
    url = image.get("url", "") if isinstance(image, dict) else str(image or "")
    data = part["source"].get("data", "") if isinstance(part.get("source"), dict) else url.partition("base64,")[2]
    head = b64decode(data[:32])[_PNG_SIZE] if len(data) >= 32 else b""
    if len(head) < 8:
        return 0
    width, height = int.from_bytes(head[:4]), int.from_bytes(head[4:])
    return -(-width // _PATCH) * -(-height // _PATCH)


def reply_of(path: str, body: JsonObject, model: str, number: int, asked: Asked) -> Reply:
    """The answer in the form of the API that a path names."""
    tokens = sum(map(len, asked.prompts))
    if path.endswith("/responses"):
        return ResponsesReply(model, number, tokens, asked.limit)
    if path.endswith("/messages"):
        return MessagesReply(model, number, tokens, asked.limit)
    if path.endswith("/embeddings"):
        return EmbeddingsReply(model, len(asked.prompts), tokens)
    if path.endswith("/rerank"):
        return RerankReply(model, len(asked.prompts), tokens)
    return CompletionReply(body, model, number, tokens, asked.limit, chat=path.endswith("/chat/completions"))


class CompletionReply:
    """Chat and text completions, as vLLM sends them: a role chunk, deltas, a finish chunk, usage when asked for."""

    def __init__(self, body: JsonObject, model: str, number: int, tokens: int, limit: int, *, chat: bool) -> None:
        self._chat, self._tokens, self._limit = chat, tokens, limit
        self._usage_wanted = bool((body.get("stream_options") or {}).get("include_usage"))
        kind = "chat.completion.chunk" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        self._head: JsonObject = {
            "id": f"{prefix}-sim-{number}", "object": kind, "created": int(time.time()), "model": model,
        }  # fmt: skip

    def _event(self, choices: list[JsonObject], **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode(self._head | {"choices": choices} | more) + b"\n\n"

    def begin(self) -> bytes:
        """The first chunk of a chat, which holds no token."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def delta(self, number: int) -> bytes:
        """One token."""
        text = _word(number)
        part: JsonObject = {"delta": {"content": text}} if self._chat else {"text": text}
        return self._event([{"index": 0, **part, "logprobs": None, "finish_reason": None}])

    def tail(self, cached_tokens: int) -> bytes:
        """Finish, usage and the end."""
        part: JsonObject = {"delta": {}} if self._chat else {"text": ""}
        out = self._event([{"index": 0, **part, "logprobs": None, "finish_reason": "length"}])
        if self._usage_wanted:
            out += self._event([], usage=self._usage(cached_tokens))
        return out + b"data: [DONE]\n\n"

    def _usage(self, cached_tokens: int) -> JsonObject:
        return {
            "prompt_tokens": self._tokens,
            "completion_tokens": self._limit,
            "total_tokens": self._tokens + self._limit,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }

    def whole(self, cached_tokens: int) -> JsonObject:
        """The answer to a request that did not ask for a stream."""
        text = _text(self._limit)
        part = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        kind = "chat.completion" if self._chat else "text_completion"
        choice = {"index": 0, **part, "finish_reason": "length"}
        return self._head | {"object": kind, "choices": [choice], "usage": self._usage(cached_tokens)}


def _typed(kind: str, **fields: Any) -> bytes:
    """An event with its type as its name, too."""
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind} | fields) + b"\n\n"


class ResponsesReply:
    """OpenAI's responses, with its typed events."""

    def __init__(self, model: str, number: int, tokens: int, limit: int) -> None:
        self._tokens, self._limit = tokens, limit
        self._head: JsonObject = {"id": f"resp_sim_{number}", "object": "response", "model": model}
        self._place = {"item_id": f"msg_sim_{number}", "output_index": 0, "content_index": 0}

    def begin(self) -> bytes:
        """Events that hold no token."""
        item = {"id": self._place["item_id"], "type": "message", "role": "assistant", "content": []}
        return (
            _typed("response.created", response=self._head | {"status": "in_progress", "output": []})
            + _typed("response.output_item.added", output_index=0, item=item)
            + _typed("response.content_part.added", **self._place, part={"type": "output_text", "text": ""})
        )

    def delta(self, number: int) -> bytes:
        """One token."""
        return _typed("response.output_text.delta", **self._place, delta=_word(number))

    def tail(self, cached_tokens: int) -> bytes:
        """The whole text once more, and the response with its usage."""
        done = _typed("response.output_text.done", **self._place, text=_text(self._limit))
        return done + _typed("response.incomplete", response=self.whole(cached_tokens))

    def whole(self, cached_tokens: int) -> JsonObject:
        """The response."""
        content = [{"type": "output_text", "text": _text(self._limit)}]
        usage = {
            "input_tokens": self._tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens},
            "output_tokens": self._limit,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._tokens + self._limit,
        }
        return self._head | {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [{"type": "message", "role": "assistant", "content": content}],
            "usage": usage,
        }


class MessagesReply:
    """Anthropic's messages, with its typed events."""

    def __init__(self, model: str, number: int, tokens: int, limit: int) -> None:
        self._tokens, self._limit = tokens, limit
        self._head: JsonObject = {"id": f"msg_sim_{number}", "type": "message", "role": "assistant", "model": model}

    def begin(self) -> bytes:
        """Events that hold no token."""
        message = self._head | {"content": [], "stop_reason": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        block = {"type": "text", "text": ""}
        return (
            _typed("message_start", message=message)
            + _typed("content_block_start", index=0, content_block=block)
            + _typed("ping")
        )

    def delta(self, number: int) -> bytes:
        """One token."""
        return _typed("content_block_delta", index=0, delta={"type": "text_delta", "text": _word(number)})

    def tail(self, cached_tokens: int) -> bytes:
        """Why it ended, and its usage."""
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        return (
            _typed("content_block_stop", index=0)
            + _typed("message_delta", delta=delta, usage=self._usage(cached_tokens))
            + _typed("message_stop")
        )

    def whole(self, cached_tokens: int) -> JsonObject:
        """The message."""
        content = [{"type": "text", "text": _text(self._limit)}]
        return self._head | {"content": content, "stop_reason": "max_tokens", "usage": self._usage(cached_tokens)}

    def _usage(self, cached_tokens: int) -> JsonObject:
        return {
            "input_tokens": self._tokens - cached_tokens,
            "cache_read_input_tokens": cached_tokens,
            "output_tokens": self._limit,
        }


class _ItemsReply:
    """Vectors or scores: whole, never streamed."""

    def __init__(self, model: str, count: int, tokens: int) -> None:
        self._model, self._count, self._tokens = model, count, tokens

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def delta(self, number: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def tail(self, cached_tokens: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""


class EmbeddingsReply(_ItemsReply):
    """A short vector for each text."""

    def whole(self, cached_tokens: int) -> JsonObject:  # noqa: ARG002
        """The vectors."""
        data = [{"object": "embedding", "index": number, "embedding": list(_VECTOR)} for number in range(self._count)]
        usage = {"prompt_tokens": self._tokens, "total_tokens": self._tokens}
        return {"object": "list", "model": self._model, "data": data, "usage": usage}


class RerankReply(_ItemsReply):
    """A score for each document."""

    def whole(self, cached_tokens: int) -> JsonObject:  # noqa: ARG002
        """The scores, the best first."""
        results = [{"index": n, "relevance_score": 1 / (n + 1)} for n in range(self._count)]
        return {"model": self._model, "results": results, "usage": {"total_tokens": self._tokens}}
