"""Looks at an endpoint before any load: does it answer, and what does its list of models say? Plain HTTP by httpx2.

The list is a hint: keys that may not list, aliases that are not listed and lists of other models are common, so a model
that the user names is used all the same, with a note. Only an endpoint that cannot be reached ends the run here.
"""

import json
import os
import re
import socket
import ssl
import time
from typing import Any
from urllib.parse import urljoin

import msgspec

from surgeproof.credentials import Secrets
from surgeproof.errors import ConfigError, EndpointError
from surgeproof.loadgen.content_encoding import CodingError, decoder_for
from surgeproof.loadgen.request_form import endpoint_headers
from surgeproof.loadgen.target import Target, replaced
from surgeproof.redaction import Redactor, secrets_of_headers
from surgeproof.scenario import TargetConfig
from surgeproof.strict_json import JsonObject

_TIMEOUT_S = 5.0
_TOTAL_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 8 << 20
_QUOTED_CHARS = 160
_NAMES_SHOWN = 20
_NAME_KEYS = ("id", "name", "model")
_PATIENCE_S = 30.0
"""How long a list may take where it alone can say which model there is."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "record layer failure", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""What OpenSSL says of a port that answers without TLS."""


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint that answers.

    Attributes:
        notes: what a user should know of its list of models.
    """

    base_url: str
    model: str
    max_model_len: int | None = None
    notes: tuple[str, ...] = ()


class _Listing(msgspec.Struct, frozen=True):
    """The models that an endpoint lists; without any, `problem` says why."""

    models: list[JsonObject] = []
    problem: str = ""


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
    """Check that the endpoint answers, and determine the model: the named one, else the first that is listed.

    Raises:
        ConfigError: the URL, a proxy or a certificate cannot be used.
        EndpointError: it cannot be reached, or no model is named and none is listed.
    """
    base_url = base_url_of(config)
    target = Target(base_url, endpoint_headers(config.endpoint, secrets.headers), config.tls)
    wanted = [*config.models] or ([config.model] if config.model else [])
    redact = Redactor(secrets_of_headers(secrets.headers))
    listing = _ask(target, redact, _TIMEOUT_S if wanted else max(_TIMEOUT_S, _PATIENCE_S))
    if not listing.models:
        if not wanted:
            raise EndpointError(
                f"endpoint {base_url} lists no models: {listing.problem}. Name one with --model, and check that the "
                "base URL is complete; it usually ends in /v1"
            )
        note = f"the endpoint's models are not known ({listing.problem}); the run goes on with {', '.join(wanted)}"
        return Endpoint(base_url, wanted[0], notes=(note,))
    names = [str(model["id"]) for model in listing.models]
    shown = ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")
    notes = [
        f"the endpoint does not list the model {name!r} (it lists {shown}); the run goes on with it"
        for name in wanted
        if name not in names
    ]
    chosen = wanted[0] if wanted else names[0]
    limit = listing.models[names.index(chosen)].get("max_model_len") if chosen in names else None
    return Endpoint(base_url, chosen, limit if isinstance(limit, int) else None, tuple(notes))


def _ask(target: Target, redact: Redactor, timeout_s: float) -> _Listing:
    """Ask for the list of models, on the way that the load will take.

    Raises:
        EndpointError: the endpoint cannot be reached.
    """
    import httpx2

    proxy = target.proxy.geturl() if target.proxy else None
    try:
        with httpx2.Client(
            timeout=httpx2.Timeout(timeout_s, connect=_TIMEOUT_S),
            verify=target.tls_context or False,
            proxy=proxy,
            trust_env=False,
        ) as client:
            status, headers, body = _get(
                client, f"{target.base_url}/models", replaced({"Accept-Encoding": "identity"}, target.headers)
            )
    except httpx2.ReadTimeout:
        return _Listing(problem=f"no answer from /models within {timeout_s:g} s")
    except (CodingError, _UnusableListError) as exc:
        return _Listing(problem=str(exc))
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, ValueError) as exc:
        raise EndpointError(f"endpoint {target.base_url} is not reachable: {_why(target, redact(str(exc)))}") from exc
    return _listing(target, status, headers, redact(body.decode("utf-8", "replace")))


class _UnusableListError(Exception):
    """The list is too long, or takes too long."""


def _listing(target: Target, status: int, headers: Any, text: str) -> _Listing:
    models = _models(text) if status == 200 else []
    if models:
        return _Listing(models)
    if location := headers.get("location"):
        location = urljoin(f"{target.base_url}/models", location).removesuffix("/").removesuffix("/models")
        return _Listing(problem=f"/models redirects to {location} (HTTP {status}): is that the right --base-url?")
    if status == 400 and target.scheme == "http" and _speaks_tls(target):
        raise EndpointError(f"endpoint {target.base_url} speaks TLS: write https:// in place of http://")
    hint = ": set OPENAI_API_KEY or give --header" if status in (401, 403) and not target.headers else ""
    said = _quoted(text)
    return _Listing(problem=f"HTTP {status} from /models{f', {said}' if said else ''}{hint}")


def _get(client: Any, url: str, headers: dict[str, str]) -> tuple[int, Any, bytes]:
    """Status, headers and body, within bounds: a list of models is small and comes at once."""
    deadline_s = time.monotonic() + _TOTAL_TIMEOUT_S
    body = bytearray()
    with client.stream("GET", url, headers=headers) as reply:
        # Ours stops where a few bytes decode to gigabytes.
        decode = decoder_for(reply.headers.get("content-encoding", "")) or bytes
        for part in reply.iter_raw():
            body += decode(part)
            if len(body) > _MAX_BODY_BYTES:
                raise _UnusableListError(f"/models answers with more than {_MAX_BODY_BYTES >> 20} MB")
            if time.monotonic() > deadline_s:
                raise _UnusableListError(f"/models takes longer than {_TOTAL_TIMEOUT_S:g} s")
        return reply.status_code, reply.headers, bytes(body)


def _models(text: str) -> list[JsonObject]:
    """Entries with a name below `id`, from the form of the list that OpenAI has, or others; none from other texts."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return []
    listed = answer.get("data", answer.get("models")) if isinstance(answer, dict) else answer
    entries = [{"id": one} if isinstance(one, str) else one for one in listed] if isinstance(listed, list) else []
    named = [entry | {"id": _name_of(entry)} for entry in entries if isinstance(entry, dict)]
    return [entry for entry in named if entry["id"]]


def _name_of(entry: JsonObject) -> str | None:
    """A model's name: OpenAI's field, or one that other servers use."""
    return next((entry[key] for key in _NAME_KEYS if isinstance(entry.get(key), str) and entry[key]), None)


def _quoted(text: str) -> str:
    """What a server said, as far as a person needs it: the message of an error, or the text of a page."""
    try:
        answer = json.loads(text)
        error = answer.get("error", answer.get("detail"))
        text = str(error.get("message", error) if isinstance(error, dict) else error or text)
    except (ValueError, AttributeError, RecursionError):
        is_page = "<html" in text[:1000].lower() or "<!doctype" in text[:1000].lower()
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text[:100_000], flags=re.S | re.I)
        text = f"an HTML page: {text}" if is_page else text
    words = " ".join(text.split())
    return f"{words[:_QUOTED_CHARS]!r}" if words else ""


def _why(target: Target, message: str) -> str:
    """Why a connection failed, with the way out where the cause is known."""
    if target.scheme == "https":
        if any(mark in message for mark in _NOT_TLS):
            return "the port does not speak TLS: write http:// in place of https://"
        if "CERTIFICATE_VERIFY_FAILED" in message:
            reason = message.partition("verify failed: ")[2].partition(" (_ssl")[0] or "it cannot be verified"
            return f"its certificate is not trusted ({reason}): give --ca-file, or --insecure to accept any"
        if "ALERT" in message.upper() and "CERTIFICATE" in message.upper():
            return "it asks for a client certificate: give --client-cert and --client-key"
    elif not target.proxy and "refused" not in message.lower() and _speaks_tls(target):
        return "the port speaks TLS: write https:// in place of http://"
    return f"{message or 'no connection in time'}. Is the server up, and is the address right?"


def _speaks_tls(target: Target) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((target.host, target.port), timeout=_TIMEOUT_S) as sock,
            context.wrap_socket(sock, server_hostname=target.host),
        ):
            return True
    except OSError:
        return False
