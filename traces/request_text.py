"""The text of a request's body: of its messages, or of its prompt. Pure."""

from typing import Any

from surgeproof.strict_json import JsonObject

_TEXT_KEYS = ("content", "text")


def text_of(body: JsonObject) -> str:
    """All text of a request, joined; that of images and tools is not text."""
    found: list[str] = []
    for key in ("system", "messages", "prompt", "input", "query", "documents"):
        _gather(body.get(key), found)
    return " ".join(found)


def token_ids_of(body: JsonObject) -> int | None:
    """Number of token ids, of a prompt that is given as such."""
    prompt = body.get("prompt", body.get("input"))
    is_ids = isinstance(prompt, list) and bool(prompt) and all(isinstance(token, int) for token in prompt)
    return len(prompt) if is_ids and isinstance(prompt, list) else None


def _gather(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, list):
        for item in value:
            _gather(item, found)
    elif isinstance(value, dict):
        for key in _TEXT_KEYS:
            _gather(value.get(key), found)
