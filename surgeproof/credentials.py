"""Headers that may hold secrets: read from the environment, checked, passed on to child processes.

They are not part of a scenario, are passed by environment variable only, and are never stored.
"""

import re

import msgspec

from surgeproof.errors import ConfigError

_HEADERS_VARIABLE = "SURGEPROOF_HEADERS"


class Secrets(msgspec.Struct, frozen=True):
    """Request headers with their values, which must not be logged, stored or shown."""

    headers: dict[str, str] = {}

    @classmethod
    def from_environment(cls, environ: dict[str, str]) -> "Secrets":
        """The API key (`OPENAI_API_KEY`) and the headers that a parent process passed on."""
        headers: dict[str, str] = {}
        key = environ.get("OPENAI_API_KEY")
        if key:
            headers["Authorization"] = f"Bearer {key.strip()}"
        if inherited := environ.get(_HEADERS_VARIABLE):
            try:
                headers |= msgspec.json.decode(inherited, type=dict[str, str])
            except msgspec.DecodeError as exc:
                raise ConfigError(f"{_HEADERS_VARIABLE} is not a JSON object of texts") from exc
        return check_headers(headers)

    def to_environment(self) -> dict[str, str]:
        """What a child process needs to send the same headers."""
        return {_HEADERS_VARIABLE: msgspec.json.encode(self.headers).decode()}


def check_headers(headers: dict[str, str]) -> Secrets:
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
    return Secrets({name: value.strip(" \t") for name, value in headers.items()})


def _is_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True
