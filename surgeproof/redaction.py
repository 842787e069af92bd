"""Keeps secrets out of what is stored and printed: URLs without their passwords, texts without known secrets. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

REDACTED = "[redacted]"
_MASK = "***"
_MIN_LENGTH = 8
"""Shorter secrets are parts of ordinary words: of those only URLs are cleared, where their place is known."""
_SECRET_NAMES = ("pass", "pwd", "secret", "token", "key", "credential")
_SECRET_VARIABLES = (
    "OPENAI_API_KEY", "SURGEPROOF_API_KEY_COMMAND", "SURGEPROOF_AGENT_TOKEN", "SURGEPROOF_CLUSTER_TOKEN",
)  # fmt: skip
_URL_VARIABLES = ("SURGEPROOF_DB", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Redactor:
    """Replaces known secrets in texts, as they are and as URLs write them.

    Args:
        secrets: the values; those of under eight characters are left out.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in (secret, quote(secret, safe=""), unquote(secret))}
        # The longest first: one secret may be a part of another.
        self._forms = sorted((form for form in forms if len(form) >= _MIN_LENGTH), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without any of them."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        return text

    def learn(self, secrets: Iterable[str]) -> None:
        """Replace these from now on, too."""
        self._forms = Redactor([*self._forms, *secrets])._forms


def secrets_of_headers(headers: Mapping[str, str]) -> list[str]:
    """The values of request headers, credentials without their scheme too."""
    values = [value.strip() for value in headers.values()]
    return values + [value.partition(" ")[2].strip() for value in values]


def secrets_of_process(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """What a command was given to keep: keys, header values and passwords of URLs, in arguments and variables."""
    found = [environ[name].strip() for name in _SECRET_VARIABLES if environ.get(name)]
    # An argument's value stands after `=` or is the next one.
    following = [*arguments[1:], ""]
    for argument, after in zip(arguments, following, strict=True):
        name, equals, value = argument.partition("=")
        if name in ("--api-key", "--api-key-command"):
            found.append((value if equals else after).strip())
        elif name == "--header":
            pair = value if equals else after
            found += secrets_of_headers({"": pair.partition("=")[2]})
        found += secrets_of_url(argument)
    for name in _URL_VARIABLES:
        for spelling in (name, name.lower()):
            found += secrets_of_url(environ.get(spelling, ""))
    return found


def secrets_of_url(url: str) -> list[str]:
    """User information and secret parameters of a URL; nothing for other texts."""
    if "://" not in url:
        return []
    try:
        parts = urlsplit(url[url.index("://") - len(url.split("://")[0].rpartition("=")[2]) :])
    except ValueError:
        return []
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    parameters = [value for name, value in parse_qsl(parts.query) if _is_secret_name(name)]
    return [value for value in (password or user, *parameters) if value]


def shown_url(url: str) -> str:
    """A URL with a mask in place of its password and of secret parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("@")[2]
    userinfo, at, host = parts.netloc.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if at:
        host = f"{user}:{_MASK}@{host}" if colon else f"{_MASK}@{host}"
    query = parts.query
    if any(_is_secret_name(name) for name, _ in parse_qsl(query)):
        pairs = [(name, _MASK if _is_secret_name(name) else value) for name, value in parse_qsl(query)]
        query = urlencode(pairs, safe="*/:")
    if (host, query) == (parts.netloc, parts.query):
        return url
    return urlunsplit((parts.scheme, host, parts.path, query, parts.fragment))


def without_userinfo(url: str) -> str:
    """A URL without user and password."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _is_secret_name(name: str) -> bool:
    return any(part in name.lower() for part in _SECRET_NAMES)
