"""Checks, before any load, that the endpoint answers and has the model. Plain HTTP by httpx2."""

import json
import os
import time
from typing import Any

import msgspec

from surgeproof.credentials import Secrets
from surgeproof.errors import ConfigError, EndpointError
from surgeproof.loadgen.content_encoding import CodingError, decoder_for
from surgeproof.loadgen.target import Target
from surgeproof.scenario import TargetConfig
from surgeproof.strict_json import JsonObject

_TIMEOUT_S = 5.0
_TOTAL_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 8 << 20


class Endpoint(msgspec.Struct, frozen=True):
    """A checked endpoint."""

    base_url: str
    model: str
    max_model_len: int | None = None


def base_url_of(target: TargetConfig) -> str:
    """The configured base URL, or the environment's (`OPENAI_BASE_URL`).

    Raises:
        ConfigError: there is none.
    """
    base_url = target.base_url or os.environ.get("OPENAI_BASE_URL")
    if not base_url:
        raise ConfigError("no endpoint: give --base-url http://HOST:PORT/v1 (locust: --host), or set OPENAI_BASE_URL")
    return base_url.rstrip("/")


def check_endpoint(config: TargetConfig, secrets: Secrets) -> Endpoint:
    """Check that the endpoint answers, and determine the model.

    Without a model in the configuration, the only one (or first) of `/models` is taken.

    Raises:
        ConfigError: the URL or a certificate cannot be used.
        EndpointError: it does not answer, refuses the request, or lacks the model.
    """
    import httpx2

    base_url = base_url_of(config)
    target = Target(base_url, secrets.headers, config.tls)
    verify = target.tls_context if target.tls_context is not None else True
    url = f"{base_url}/models"
    try:
        with httpx2.Client(timeout=_TIMEOUT_S, verify=verify) as client:
            status, body = _get(client, url, secrets.headers)
    except (httpx2.HTTPError, httpx2.InvalidURL, CodingError, UnicodeError, ValueError) as exc:
        raise EndpointError(
            f"endpoint {base_url} is not reachable: {exc}. Is the server up, and is the address right?"
        ) from exc
    wanted = next(iter(config.models), config.model)
    if status in (401, 403):
        raise EndpointError(
            f"endpoint {base_url} refuses the request (HTTP {status}): set OPENAI_API_KEY or give --header"
        )
    models = _models(body) if status == 200 else []
    if not models:
        if wanted:
            return Endpoint(base_url, wanted)
        raise EndpointError(
            f"endpoint {base_url} lists no models (HTTP {status} from /models): "
            "name one with --model, and check that the base URL is complete; it usually ends in /v1"
        )
    names = [str(model["id"]) for model in models]
    missing = [name for name in config.models if name not in names]
    if missing:
        raise EndpointError(f"endpoint {base_url} has no model {missing[0]!r}; it has {', '.join(names[:20])}")
    if wanted and wanted not in names:
        shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
        raise EndpointError(f"endpoint {base_url} has no model {wanted!r}; it has {shown}")
    chosen = models[names.index(wanted)] if wanted else models[0]
    limit = chosen.get("max_model_len")
    return Endpoint(base_url, str(chosen["id"]), limit if isinstance(limit, int) else None)


def _get(client: Any, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body, both within bounds: a list of models is small and comes at once.

    Raises:
        ValueError: it is too long, or takes too long.
    """
    deadline_s = time.monotonic() + _TOTAL_TIMEOUT_S
    body = bytearray()
    with client.stream("GET", url, headers={"Accept-Encoding": "identity"} | headers) as reply:
        # Ours stops where a few bytes decode to gigabytes.
        decode = decoder_for(reply.headers.get("content-encoding", "")) or bytes
        for part in reply.iter_raw():
            body += decode(part)
            if len(body) > _MAX_BODY_BYTES:
                raise ValueError(f"/models answers with more than {_MAX_BODY_BYTES >> 20} MB")
            if time.monotonic() > deadline_s:
                raise ValueError(f"/models takes longer than {_TOTAL_TIMEOUT_S:g} s")
        return reply.status_code, bytes(body)


def _models(body: bytes) -> list[JsonObject]:
    try:
        data = json.loads(body).get("data")
    except (ValueError, AttributeError):
        return []
    return [m for m in data if isinstance(m, dict) and "id" in m] if isinstance(data, list) else []
