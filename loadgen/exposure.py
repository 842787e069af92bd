"""Who may reach a Locust that sends our load: loopback alone, unless a token or a login protects it."""

from typing import Any

from surgeproof.errors import ConfigError
from surgeproof.loadgen.spec import TOKEN_VARIABLE

LOOPBACK = "127.0.0.1"
_LOOPBACKS = (LOOPBACK, "localhost", "::1", "[::1]")


def check_port(host: str, *, is_master: bool, has_token: bool) -> None:
    """Refuse a port between master and workers that strangers could use.

    Raises:
        ConfigError: other hosts could give orders or records to this process.
    """
    if host in _LOOPBACKS or has_token:
        return
    remedy = f"set the same {TOKEN_VARIABLE} for the master and its workers"
    if is_master:
        raise ConfigError(f"--master-bind-host {host}: whoever reaches the port could join the load; {remedy}")
    raise ConfigError(
        f"--master-host {host}: whoever answers there could send this worker's API key anywhere; {remedy}"
    )


def check_page(options: Any) -> None:
    """Refuse a page that strangers could use.

    Raises:
        ConfigError: other hosts could start loads.
    """
    page = not (options.headless or options.worker)
    if page and options.web_host not in _LOOPBACKS and not options.web_login:
        raise ConfigError(
            f"--web-host {options.web_host}: whoever reaches the page could start loads with your API key; leave it at "
            f"{LOOPBACK} (and use an SSH tunnel), or give --web-login"
        )


def guard_page(app: Any) -> None:
    """Refuse what other pages of the same browser send to Locust's page: their forms, and names that they rebind."""
    from flask import abort, request

    def same_origin() -> None:
        host = request.host.rpartition(":")[0] or request.host
        if request.remote_addr in _LOOPBACKS and host not in _LOOPBACKS:
            abort(403, "this page answers to its own address only")
        origin = request.headers.get("Origin")
        if request.method != "GET" and origin is not None and origin.partition("://")[2] != request.host:
            abort(403, "the request comes from another page")

    app.before_request(same_origin)
