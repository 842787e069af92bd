"""HTTP content codings, decoded read by read: gzip, deflate, br, zstd. Pure; knows no socket."""

import sys
import zlib
from collections.abc import Callable

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Decode = Callable[[bytes], bytes]

MAX_READ_BYTES = 16 << 20
"""What one read, of 64 kB at most, may decode to: text shrinks to a twentieth, not to a thousandth."""
MAX_REPLY_BYTES = 1 << 30


class CodingError(Exception):
    """The body's content coding is unknown, or its bytes are not of that coding."""


def decoder_for(content_encoding: str) -> Decode | None:
    """Return a function that decodes successive reads, None for the identity.

    Args:
        content_encoding: the header's value, codings in the order they were applied.

    Raises:
        CodingError: a coding is unknown; the message names it.
    """
    codings = [name.strip().lower() for name in content_encoding.split(",")]
    steps = [_step(name) for name in reversed(codings) if name not in ("", "identity", "none", "utf-8")]
    if not steps:
        return None

    total = 0

    def decode(data: bytes) -> bytes:
        nonlocal total
        for step in steps:
            data = step(data)
        total += len(data)
        if total > MAX_REPLY_BYTES:
            raise CodingError(f"the body decodes to more than {MAX_REPLY_BYTES >> 20} MB")
        return data

    return decode


def _too_much() -> CodingError:
    return CodingError(f"one read of the body decodes to more than {MAX_READ_BYTES >> 20} MB")


def _step(name: str) -> Decode:
    if name in ("gzip", "x-gzip"):
        return _ZlibStep(31, name)
    if name == "deflate":
        return _DeflateStep()
    if name == "br":
        return _guard(_BrotliStep(), name, brotli.error)
    if name == "zstd":
        return _guard(_ZstdStep(), name, zstd.ZstdError)
    raise CodingError(f"content coding {name!r} is not supported")


def _guard(step: Decode, name: str, error: type[Exception]) -> Decode:
    def guarded(data: bytes) -> bytes:
        try:
            return step(data)
        except (error, EOFError) as exc:
            raise CodingError(f"the body is not valid {name}: {exc}") from exc

    return guarded


class _ZlibStep:
    """One zlib container; a gzip body may hold several members in a row."""

    def __init__(self, wbits: int, name: str) -> None:
        self._wbits, self._name = wbits, name
        self._inflate = zlib.decompressobj(wbits)
        self._members = 0

    def __call__(self, data: bytes) -> bytes:
        out = []
        while data:
            if self._inflate.eof:
                self._inflate, self._members = zlib.decompressobj(self._wbits), self._members + 1
            try:
                out.append(self._inflate.decompress(data, MAX_READ_BYTES))
            except zlib.error as exc:
                if self._members:
                    # Padding after a whole member is no part of the answer.
                    break
                raise CodingError(f"the body is not valid {self._name}: {exc}") from exc
            if self._inflate.unconsumed_tail or sum(map(len, out)) > MAX_READ_BYTES:
                raise _too_much()
            data = self._inflate.unused_data
        return b"".join(out)


class _BrotliStep:
    """A brotli stream."""

    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def __call__(self, data: bytes) -> bytes:
        out: bytes = self._stream.process(data, output_buffer_limit=MAX_READ_BYTES)
        if not self._stream.can_accept_more_data():
            raise _too_much()
        return out


class _ZstdStep:
    """Zstandard frames, any number in a row (RFC 8878)."""

    def __init__(self) -> None:
        self._frame = zstd.ZstdDecompressor()

    def __call__(self, data: bytes) -> bytes:
        out = []
        while data:
            if self._frame.eof:
                self._frame = zstd.ZstdDecompressor()
            out.append(self._frame.decompress(data, MAX_READ_BYTES))
            if not (self._frame.eof or self._frame.needs_input) or sum(map(len, out)) > MAX_READ_BYTES:
                raise _too_much()
            data = self._frame.unused_data if self._frame.eof else b""
        return b"".join(out)


class _DeflateStep:
    """`deflate` means zlib by the standard and raw deflate in many servers: the first two bytes decide."""

    def __init__(self) -> None:
        self._head = b""
        self._step: _ZlibStep | None = None

    def __call__(self, data: bytes) -> bytes:
        if self._step is None:
            self._head += data
            if len(self._head) < 2:
                return b""
            is_zlib = self._head[0] & 0x0F == 8 and int.from_bytes(self._head[:2], "big") % 31 == 0
            self._step = _ZlibStep(15 if is_zlib else -15, "deflate")
            data, self._head = self._head, b""
        return self._step(data)
