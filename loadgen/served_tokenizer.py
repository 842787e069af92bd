"""Prompt lengths by the server's own tokenizer: its `/tokenize`, where it has one.

Four forms are known: vLLM counts chat messages with their template, or a `prompt`, as SGLang and LiteLLM do; llama.cpp
takes `content`, OpenVINO `text`. Nothing is generated.
"""

from collections.abc import Callable
from typing import Any

import httpx2

from surgeproof.credentials import Secrets
from surgeproof.errors import EndpointError
from surgeproof.loadgen.prompt_lengths import PromptLengths, lengths_of, sample_words
from surgeproof.loadgen.request_form import endpoint_headers
from surgeproof.loadgen.target import Target
from surgeproof.scenario import TargetConfig
from surgeproof.strict_json import JsonObject

_TIMEOUT_S = 10.0
_TEXT_FIELDS = ("prompt", "content", "text")


def served_lengths(config: TargetConfig, base_url: str, model: str, secrets: Secrets) -> PromptLengths:
    """Ask the server how long our words are.

    Raises:
        EndpointError: it has no `/tokenize` of a known form.
    """
    target = Target(base_url, endpoint_headers(config.endpoint, secrets.headers), config.tls)
    words = sample_words()
    once, twice = " ".join(words), " ".join([*words, *words])
    urls = [f"{target.base_url.removesuffix('/v1')}/tokenize", f"{target.base_url}/tokenize"]
    forms: list[Callable[[str], JsonObject]] = [] if config.endpoint == "completions" else [_chat]
    forms += [_Text(field) for field in _TEXT_FIELDS]
    with httpx2.Client(
        timeout=_TIMEOUT_S,
        verify=target.tls_context or False,
        proxy=target.proxy.geturl() if target.proxy else None,
        trust_env=False,
        headers=target.headers,
    ) as client:
        for form in forms:
            for url in dict.fromkeys(urls):
                counts = [_count(client, url, {"model": model} | form(text)) for text in (once, twice)]
                if None not in counts and (lengths := lengths_of(len(words), *filter(None, counts))):
                    return lengths
    raise EndpointError(
        f"endpoint {base_url} has no /tokenize that we know (vLLM, SGLang, llama.cpp, OpenVINO): give "
        "--tokenizer FOLDER, or the figures that surgeproof probe shows"
    )


def _chat(text: str) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}]}


class _Text:
    """A body with the text below one field."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __call__(self, text: str) -> JsonObject:
        return {self._field: text}


def _count(client: httpx2.Client, url: str, body: JsonObject) -> int | None:
    """Tokens of a text; None where the answer does not tell."""
    try:
        reply = client.post(url, json=body)
        answer: Any = reply.json() if reply.status_code == 200 else None
    except (httpx2.HTTPError, ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    count, tokens = answer.get("count"), answer.get("tokens")
    if isinstance(count, int) and not isinstance(count, bool):
        return count
    return len(tokens) if isinstance(tokens, list) else None
