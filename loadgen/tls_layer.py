"""TLS without sockets: encrypted bytes in, plain bytes out, and the other way round. Pure over `ssl`."""

import ssl

_READ_BYTES = 65536


class TlsError(Exception):
    """The handshake or the stream failed; the text says why."""


class TlsClosedError(Exception):
    """The other side has ended the stream in an orderly way."""


class TlsLayer:
    """The client's side of one TLS connection.

    Args:
        context: certificates and options.
        host: name that the certificate must be for.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def receive(self, data: bytes) -> None:
        """Take in bytes of the socket."""
        self._incoming.write(data)

    def receive_end(self) -> None:
        """The socket has ended."""
        self._incoming.write_eof()

    def pending(self) -> bytes:
        """Bytes that are to be written to the socket."""
        return self._outgoing.read()

    def handshake(self) -> bool:
        """Go on with the handshake as far as the bytes allow; True when it is complete.

        Raises:
            TlsError: it failed, or the certificate was refused.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, OSError, ValueError) as exc:
            raise TlsError(str(exc)) from exc
        return True

    def write(self, data: bytes) -> None:
        """Encrypt; the result is `pending`."""
        self._tls.write(data)

    def read(self) -> bytes | None:
        """The next plain bytes; None when more must be received first.

        Raises:
            TlsClosedError: the stream has ended.
            TlsError: it is damaged.
        """
        try:
            plain = self._tls.read(_READ_BYTES)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError as exc:
            raise TlsClosedError from exc
        except (ssl.SSLError, OSError) as exc:
            raise TlsError(str(exc)) from exc
        if not plain:
            raise TlsClosedError
        return plain

    def is_open(self) -> bool:
        """Whether the stream has ended: its end may come in the same read as the end of a reply."""
        try:
            return self.read() is None
        except (TlsClosedError, TlsError):
            return False
