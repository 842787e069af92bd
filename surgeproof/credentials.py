"""Headers that may hold secrets: read from the environment, checked, passed on to child processes.

They are not part of a scenario, are passed by environment variable only, and are never stored.
"""

import base64
import binascii
import re
from collections.abc import Mapping

import msgspec

from surgeproof.errors import ConfigError

_HEADERS_VARIABLE = "SURGEPROOF_HEADERS"
KEY_COMMAND_VARIABLE = "SURGEPROOF_API_KEY_COMMAND"


class Secrets(msgspec.Struct, frozen=True):
    """Request headers with their values, and a command that prints an API key: not to be logged, stored or shown."""

    headers: dict[str, str] = {}
    api_key_command: str | None = None

    @classmethod
    def from_environment(cls, environ: dict[str, str]) -> "Secrets":
        """What a parent process passed on, and the API key: `OPENAI_API_KEY`, unless a command makes it."""
        headers: dict[str, str] = {}
        command = environ.get(KEY_COMMAND_VARIABLE) or None
        key = environ.get("OPENAI_API_KEY")
        if key and command is None:
            headers["Authorization"] = f"Bearer {key.strip()}"
        if inherited := environ.get(_HEADERS_VARIABLE):
            try:
                headers |= msgspec.json.decode(inherited, type=dict[str, str])
            except msgspec.DecodeError as exc:
                raise ConfigError(f"{_HEADERS_VARIABLE} is not a JSON object of texts") from exc
        return check_headers(headers, command)

    def to_environment(self) -> dict[str, str]:
        """What a child process needs to send the same headers."""
        command = {} if self.api_key_command is None else {KEY_COMMAND_VARIABLE: self.api_key_command}
        return {_HEADERS_VARIABLE: msgspec.json.encode(self.headers).decode()} | command


def authorization(headers: Mapping[str, str]) -> str:
    """The value of the header that holds the API key; empty without one."""
    return next((value for name, value in headers.items() if name.lower() == "authorization"), "")


def expires_at_s(key: str) -> float | None:
    """When a key ends, s since 1970: a JSON Web Token tells it as `exp` (RFC 7519); None for other keys."""
    parts = key.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None


def check_headers(headers: dict[str, str], api_key_command: str | None = None) -> Secrets:
    """Headers without the blanks around their values, which come with copied keys; others that would corrupt a request.

    Raises:
        ConfigError: a name is not a token, or a value holds a line break or a character beyond Latin-1.
    """
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ConfigError(f"header name {name!r} is not valid")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ConfigError(f"header {name} follows from the body of each request and cannot be given")
        if any(char in value for char in "\r\n\0") or not _is_latin1(value):
            raise ConfigError(f"the value of header {name} contains a line break or a non-Latin-1 character")
    return Secrets({name: value.strip(" \t") for name, value in headers.items()}, api_key_command)


def _is_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True
