"""The body of a request in the form that its API takes, and the reader of its reply. Pure.

A request is planned as a prompt, as messages or as the body of a dataset's row. Chat completions take these as they
are; for the other APIs messages and pictures are written in their own form. What a row says in an API's own form is
sent as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from surgeproof.loadgen.reply_forms import ITEMS, MESSAGES, RESPONSES, ReplyForm
from surgeproof.loadgen.stream import StreamReader
from surgeproof.scenario import ITEM_ENDPOINTS, ClassWork, TargetConfig
from surgeproof.strict_json import JsonObject

_ANTHROPIC_VERSION = "2023-06-01"


class Api(NamedTuple):
    """One API: its path below the base URL, its field for the answer's limit, and what is particular to its replies."""

    path: str
    limit: str | None
    reply: ReplyForm | None
    usage_option: bool = False


APIS = {
    "chat": Api("/chat/completions", "max_tokens", None, usage_option=True),
    "completions": Api("/completions", "max_tokens", None, usage_option=True),
    "responses": Api("/responses", "max_output_tokens", RESPONSES),
    "messages": Api("/messages", "max_tokens", MESSAGES),
    "embeddings": Api("/embeddings", None, ITEMS),
    "rerank": Api("/rerank", None, ITEMS),
}


def endpoint_headers(endpoint: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that an API needs beside the given ones; Anthropic's takes the key under a name of its own."""
    given = {name.lower(): value for name, value in headers.items()}
    if endpoint != "messages":
        return dict(headers)
    added = {"anthropic-version": _ANTHROPIC_VERSION}
    key = given.get("authorization", "")
    if key.startswith("Bearer "):
        added["x-api-key"] = key.removeprefix("Bearer ")
    return {name: value for name, value in added.items() if name not in given} | dict(headers)


class RequestForm:
    """The JSON body of a request, from a plan or from a given prompt.

    Args:
        target: endpoint options.
        model: name of the model.
        priorities: `priority` value by class, sent only for classes named here.
        models: several models, of which each plan names one; empty for `model` alone.
        by_class: what the requests of a class have of their own.
    """

    def __init__(
        self,
        target: TargetConfig,
        model: str,
        priorities: dict[str, int] | None = None,
        models: tuple[str, ...] = (),
        by_class: Mapping[str, ClassWork] | None = None,
    ) -> None:
        self.target = target
        self._by_class = by_class or {}
        self.models = models or (model,)
        self.priorities = priorities or {}

    def endpoint_of(self, request_class: str | None) -> str:
        """Which API the requests of a class ask."""
        work = self._by_class.get(request_class or "")
        return work.endpoint if work is not None and work.endpoint is not None else self.target.endpoint

    def path_of(self, request_class: str | None) -> str:
        """Its path below the base URL."""
        return APIS[self.endpoint_of(request_class)].path

    def body(
        self, prompt: str, max_tokens: int, request_class: str | None, *, include_usage: bool, model: int = 0
    ) -> JsonObject:
        """The body as plain data, of a prompt."""
        return self.body_of({"prompt": prompt}, max_tokens, request_class, include_usage=include_usage, model=model)

    def body_of(
        self, content: JsonObject, max_tokens: int, request_class: str | None, *, include_usage: bool, model: int = 0
    ) -> JsonObject:
        """The body as plain data, of a dataset's row, whose own fields stay as they are."""
        endpoint = self.endpoint_of(request_class)
        body: JsonObject = {"model": self.models[model]}
        if endpoint in ITEM_ENDPOINTS:
            body |= _asking_for_items(content, endpoint)
        else:
            body |= self._asking_for_text(content, endpoint, max_tokens, include_usage=include_usage)
        if request_class in self.priorities:
            body["priority"] = self.priorities[request_class]
        body |= self.target.extra_body
        if (work := self._by_class.get(request_class or "")) is not None:
            body |= work.extra_body
        for name in (*self.target.omit, *(() if include_usage else ("stream_options",))):
            body.pop(name, None)
        return body

    def _asking_for_text(
        self, content: JsonObject, endpoint: str, max_tokens: int, *, include_usage: bool
    ) -> JsonObject:
        target, api = self.target, APIS[endpoint]
        limit = target.max_tokens_field if api.usage_option else api.limit
        body: JsonObject = {str(limit): max_tokens}
        if target.temperature is not None:
            body["temperature"] = target.temperature
        body |= in_form_of(endpoint, content)
        body["stream"] = target.stream
        if include_usage and api.usage_option and target.stream:
            body["stream_options"] = {"include_usage": True}
        if target.ignore_eos:
            body["ignore_eos"] = True
        return body

    def headers_of(self, request_class: str) -> dict[str, str]:
        """Headers that the requests of a class carry."""
        work = self._by_class.get(request_class)
        return work.headers if work is not None else {}

    def reader(
        self, max_tokens: int, request_class: str | None = None, *, keep_text: bool = False, items: int | None = None
    ) -> StreamReader:
        """What follows the reply to such a request."""
        endpoint = self.endpoint_of(request_class)
        return StreamReader(
            max_tokens,
            fixed_length=self.target.fixes_lengths,
            keep_text=keep_text,
            reply_form=APIS[endpoint].reply,
            streamed=self.target.stream and endpoint not in ITEM_ENDPOINTS,
            items=items,
        )


def in_form_of(endpoint: str, content: JsonObject) -> JsonObject:
    """A prompt, messages or a row's body, as an API for text takes them."""
    content = dict(content)
    if endpoint == "completions":
        return content
    if "prompt" in content and "messages" not in content:
        content["messages"] = [{"role": "user", "content": content.pop("prompt")}]
    if endpoint == "responses" and "input" not in content:
        content["input"] = [_response_item(message) for message in content.pop("messages")]
    if endpoint == "messages":
        content |= _anthropic(content["messages"])
    return content


def _response_item(message: JsonObject) -> JsonObject:
    """A chat message as an input item of the responses API."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": content}
    if not isinstance(content, list):
        return {"role": role, "content": content}
    text = "output_text" if role == "assistant" else "input_text"
    parts = []
    for part in content:
        if part.get("type") == "text":
            parts.append({"type": text, "text": part.get("text")})
        elif part.get("type") == "image_url":
            parts.append({"type": "input_image", "image_url": _url_of(part)})
        else:
            parts.append(part)
    return {"role": role, "content": parts}


def _anthropic(messages: Sequence[JsonObject]) -> JsonObject:
    """Chat messages as Anthropic's API takes them: the system's prompt apart, pictures as a source."""
    system = [str(message.get("content") or "") for message in messages if message.get("role") == "system"]
    turns: list[JsonObject] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "system":
            continue
        if role == "tool":
            result: JsonObject = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": content}
            turns.append({"role": "user", "content": [result]})
            continue
        if isinstance(content, list):
            content = [_anthropic_part(part) for part in content]
        turns.append({"role": role, "content": content})
    return {"messages": turns} | ({"system": "\n\n".join(system)} if system else {})


def _anthropic_part(part: JsonObject) -> JsonObject:
    if part.get("type") != "image_url":
        return part
    url = _url_of(part)
    kind, comma, data = url.removeprefix("data:").partition(";base64,")
    if not comma:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _url_of(part: JsonObject) -> str:
    image = part.get("image_url")
    return str(image.get("url") if isinstance(image, dict) else image)


def _asking_for_items(content: JsonObject, endpoint: str) -> JsonObject:
    """Texts for vectors, or a question with the documents that are to be ranked by it."""
    if "prompt" not in content:
        return content
    rest: dict[str, Any] = {name: value for name, value in content.items() if name != "prompt"}
    prompt = content["prompt"]
    return ({"query": prompt, "documents": [prompt]} if endpoint == "rerank" else {"input": prompt}) | rest


def items_of(content: JsonObject) -> int:
    """Texts of an embeddings request, documents of a rerank; 1 for what asks for text."""
    asked = content.get("documents", content.get("input"))
    # A list of numbers is one text as token ids.
    several = isinstance(asked, list) and not all(isinstance(item, int) for item in asked)
    return len(asked) if several and isinstance(asked, list) else 1


def misfit(endpoint: str, content: JsonObject) -> str | None:
    """Why an API does not take what a row asks, as the rest of a sentence; None where it does."""
    own = {"responses": "input", "embeddings": "input", "rerank": "documents"}.get(endpoint)
    if own in content:
        return None
    if endpoint == "rerank":
        return "has no documents to rank: a row of rerank has query and documents"
    if "documents" in content:
        return f"has documents to rank, which the {endpoint} endpoint does not take: use --endpoint rerank"
    if "input" in content:
        return f"has an input, which the {endpoint} endpoint does not take: use --endpoint responses or embeddings"
    if endpoint in ("completions", "embeddings") and "messages" in content:
        return f"holds messages, which the {endpoint} endpoint does not take: use --endpoint chat"
    if endpoint in ("responses", "messages") and any(_is_function(tool) for tool in content.get("tools") or ()):
        return f"has tools in the form of chat completions, which the {endpoint} endpoint does not take"
    return None


def _is_function(tool: Any) -> bool:
    """A tool as chat completions write it."""
    return isinstance(tool, dict) and "function" in tool
