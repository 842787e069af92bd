"""How a connection is opened: a non-blocking socket to one address, kernel stamps, the proxy's tunnel."""

import _socket
import contextlib
import errno
import fcntl
import os
import resource
import socket
import sys
from typing import Any

import httptools

from surgeproof.loadgen.target import Target, proxy_authorization

HAS_KERNEL_STAMPS = sys.platform == "linux"
_SO_TIMESTAMPNS = 35
_OTHER_DESCRIPTORS = 64
_MAX_HEAD_BYTES = 1 << 18
RESOURCE_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EADDRINUSE}
)
"""Errors of this host rather than of the endpoint."""


def reserve_descriptors(count: int) -> None:
    """Grow this process's table of descriptors at once: the kernel stops a threaded process for ms each time it grows.

    Args:
        count: sockets that may be open; the process's own limit where that is lower. A process that is forked
            later has a small table again.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = min(count + _OTHER_DESCRIPTORS, soft if soft != resource.RLIM_INFINITY else count) - 1
    with contextlib.suppress(OSError, ValueError):
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, highest))


def start_connecting(family: int, address: Any) -> _socket.socket:
    """A socket that is being connected.

    Raises:
        OSError: it cannot be.
    """
    sock = _socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except OSError:
        sock.close()
        raise
    return sock


def switch_stamps_on(sock: _socket.socket) -> None:
    """Have the kernel stamp what a socket receives, where it can."""
    if HAS_KERNEL_STAMPS:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def keep_stamping_on() -> _socket.socket | None:
    """A stamped socket to keep open: the kernel switches stamping on in the background for the first one."""
    if not HAS_KERNEL_STAMPS:
        return None
    with contextlib.suppress(OSError):
        sock = _socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        switch_stamps_on(sock)
        return sock
    return None


def error_text(code: int) -> str:
    """An errno's name and meaning."""
    return f"{errno.errorcode.get(code, code)}: {strerror(code)}"


def strerror(code: int | None) -> str:
    """An errno's meaning."""
    return os.strerror(code) if code else "unknown"


def tunnel_request(target: Target) -> bytes:
    """What asks the proxy for a tunnel to the endpoint."""
    assert target.proxy is not None, "asked only where there is a proxy"
    lines = {"Host": target.authority, **proxy_authorization(target.proxy)}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"CONNECT {target.authority} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


class TunnelReply:
    """The proxy's answer to CONNECT, which has no body whatever its headers say.

    Attributes:
        status: once the head is whole; None until then.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self._bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> int | None:
        """Take in one read; the status once it is known.

        Raises:
            httptools.HttpParserError: the proxy does not speak HTTP/1.1.
        """
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self.status is None:
                raise
        if self.status is None and self._bytes > _MAX_HEAD_BYTES:
            raise httptools.HttpParserError(f"the head is longer than {_MAX_HEAD_BYTES >> 10} kB")
        return self.status

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self.status is None:
            self.status = self._parser.get_status_code()
