"""Which proxy leads to a host, by the environment's variables: one answer for everything that we connect to.

HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in either case, as curl reads them; NO_PROXY also takes networks
(10.0.0.0/8). The standard library reads the variables.
"""

import ipaddress
import urllib.request
from urllib.parse import SplitResult, urlsplit

from surgeproof.errors import ConfigError


def proxy_for(parts: SplitResult) -> SplitResult | None:
    """The proxy for a URL; None for a direct connection.

    Raises:
        ConfigError: the variable names a proxy of another kind, such as SOCKS.
    """
    host = parts.hostname or ""
    proxies = urllib.request.getproxies_environment()
    variable = parts.scheme if proxies.get(parts.scheme) else "all"
    address = proxies.get(variable)
    if not address or _is_excepted(host, parts.port, proxies.get("no", "")):
        return None
    try:
        proxy = urlsplit(address if "//" in address else f"http://{address}")
        is_usable = proxy.scheme == "http" and bool(proxy.hostname) and proxy.port != 0
    except ValueError as exc:
        raise ConfigError(f"{variable.upper()}_PROXY is not an address such as http://HOST:PORT: {exc}") from exc
    if not is_usable:
        raise ConfigError(
            f"{variable.upper()}_PROXY names a {proxy.scheme or 'nameless'} proxy, and only http://HOST:PORT is "
            f"supported: change it, or except the endpoint with NO_PROXY={host}"
        )
    return proxy


def _is_excepted(host: str, port: int | None, no_proxy: str) -> bool:
    """Whether NO_PROXY names the host, a domain that it is in, or a network, each with or without a port."""
    entries = no_proxy.lower().replace(",", " ").split()
    return "*" in entries or any(_names(entry, host.lower(), port) for entry in entries)


def _names(entry: str, host: str, port: int | None) -> bool:
    name, colon, entry_port = entry.rpartition(":")
    # An IPv6 address has colons of its own, and brackets where a port follows.
    if colon and entry_port.isdigit() and (name.endswith("]") or ":" not in name):
        if entry_port != str(port):
            return False
    else:
        name = entry
    name = name.strip("[]").removeprefix("*").removeprefix(".")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return host == name or host.endswith(f".{name}")
