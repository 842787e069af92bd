"""An endpoint: where its sockets go and what every request to it carries.

Reads the base URL, the environment's proxies and the certificates; resolves the host once. It opens
no connection and needs no event loop.
"""

import socket
import ssl
from base64 import b64encode
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from surgeproof.errors import ConfigError, EndpointError
from surgeproof.proxies import proxy_for
from surgeproof.scenario import TlsOptions


class Target:
    """An endpoint: where its sockets go and what every request to it carries.

    Args:
        base_url: as OpenAI clients take it, usually ending in `/v1`.
        headers: sent with each request in place of ours of the same name, which an empty value drops; values may be
            secrets and are never logged.
        tls: certificate options.
        environ_proxies: use the environment's proxies (`surgeproof.proxies`).

    Raises:
        ConfigError: the URL or a certificate file cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        headers: dict[str, str] | None = None,
        tls: TlsOptions | None = None,
        *,
        environ_proxies: bool = True,
    ) -> None:
        parts = _split_url(base_url)
        self.base_url = base_url.rstrip("/")
        self.scheme = parts.scheme
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path.rstrip("/")
        bracketed = f"[{self.host}]" if ":" in self.host else self.host
        default_port = self.port == (443 if self.scheme == "https" else 80)
        self.host_header = bracketed if default_port else f"{bracketed}:{self.port}"
        self.authority = f"{bracketed}:{self.port}"
        self.headers = dict(headers or {})
        self.proxy = proxy_for(parts) if environ_proxies else None
        self.tls_context = _tls_context(tls or TlsOptions()) if self.scheme == "https" else None
        self.addresses: list[tuple[int, Any]] = []
        self.include_usage = True

    def resolve(self) -> None:
        """Look the host up, once; the addresses are kept for the whole run.

        Raises:
            EndpointError: the name is unknown.
        """
        host, port = (self.proxy.hostname or "", self.proxy.port or 80) if self.proxy else (self.host, self.port)
        try:
            result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise EndpointError(f"cannot resolve host {host!r} of {self.base_url}: {exc}") from exc
        self.addresses = [(int(family), address) for family, _, _, _, address in result]

    def prefer(self, address: tuple[int, Any]) -> None:
        """Try the address that answered first from now on."""
        if self.addresses[0] != address:
            self.addresses.remove(address)
            self.addresses.insert(0, address)

    def request_bytes(self, path: str, body: bytes, extra: dict[str, str], *, reuse: bool) -> bytes:
        """Head and body in one piece, to be sent in one write."""
        prefix = f"http://{self.host_header}" if self.proxy and self.scheme == "http" else ""
        headers = {
            "Host": self.host_header,
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "surgeproof",
            "Content-Length": str(len(body)),
        }
        if not reuse:
            headers["Connection"] = "close"
        if self.proxy and self.scheme == "http":
            headers |= proxy_authorization(self.proxy)
        headers = replaced(headers | extra, self.headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {prefix}{self.path}{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def replaced(headers: dict[str, str], by: dict[str, str]) -> dict[str, str]:
    """Headers with those of a user in place of ours of the same name, whatever its case; an empty value drops one."""
    names = {name.lower() for name in by}
    kept = {name: value for name, value in headers.items() if name.lower() not in names}
    return kept | {name: value for name, value in by.items() if value}


def _split_url(base_url: str) -> SplitResult:
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError as exc:
        raise ConfigError(f"base URL {base_url!r} is not valid: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"base URL {base_url!r} must look like http://HOST:PORT/v1 or https://HOST/v1")
    if port == 0:
        raise ConfigError(f"base URL {base_url!r} has port 0")
    if parts.query or parts.fragment:
        raise ConfigError(f"base URL {base_url!r} has a query; give the address up to /v1 only")
    if parts.username is not None:
        raise ConfigError("the base URL contains a user name: give credentials by OPENAI_API_KEY or --header")
    if not base_url.isascii() or any(char <= " " for char in base_url):
        raise ConfigError(f"base URL {base_url!r} holds a character that must be percent-encoded")
    return parts


def proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    """The proxy's own credentials, from its address."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + b64encode(pair.encode()).decode()}


def _tls_context(options: TlsOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.client_cert:
            context.load_cert_chain(options.client_cert, options.client_key)
    except (OSError, ssl.SSLError) as exc:
        given = filter(None, (options.ca_file, options.client_cert, options.client_key))
        names = ", ".join(given) or "the places of this host and its environment (SSL_CERT_FILE, SSLKEYLOGFILE)"
        raise ConfigError(f"cannot load certificates from {names}: {exc}") from exc
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
