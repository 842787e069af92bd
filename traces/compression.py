"""Opens a trace file as bytes or text, whatever it is compressed with; told by its first bytes, not by its name."""

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from surgeproof.errors import TraceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CORRUPT = (EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError)
"""What reading a cut or damaged compressed file raises, beside OSError."""
_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": zstd.open,
}
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf": "a 7z archive"}


def is_parquet(path: Path, kind: str) -> bool:
    """Whether a file begins as Parquet files do.

    Args:
        path: the file.
        kind: what it is, for messages: trace or dataset.

    Raises:
        TraceError: it cannot be opened.
    """
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as exc:
        raise TraceError(f"cannot read {kind} {path}: {exc.strerror or exc}") from exc


def text_lines(path: Path, kind: str) -> Iterator[str]:
    """The lines of a text, whatever it is compressed with.

    Raises:
        TraceError: it cannot be read, is cut off, or is no text.
    """
    try:
        with open_text(path) as file:
            yield from file
    except UnicodeDecodeError as exc:
        raise TraceError(f"{path}: not UTF-8 text ({exc})") from exc
    except CORRUPT as exc:
        raise TraceError(f"{path}: the compressed file is cut off or damaged ({exc})") from exc
    except OSError as exc:
        raise TraceError(f"cannot read {kind} {path}: {exc.strerror or exc}") from exc


def open_bytes(path: Path) -> IO[bytes]:
    """The file's content without compression (gzip, bzip2, xz, zstd).

    Raises:
        TraceError: it is an archive of files.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        start = file.read(8)
    for mark, what in _ARCHIVES.items():
        if start.startswith(mark):
            raise TraceError(f"{path} is {what}: unpack it first")
    opened: IO[bytes] = next((opener for mark, opener in _OPENERS.items() if start.startswith(mark)), _plain)(path)
    return opened


def open_text(path: Path) -> IO[str]:
    """The file's content as text: UTF-8, or UTF-16 where it begins with that mark.

    Raises:
        TraceError: it is an archive of files.
        OSError: it cannot be opened.
    """
    content = open_bytes(path)
    with content:
        start = content.read(2)
    is_utf16 = start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return io.TextIOWrapper(open_bytes(path), encoding="utf-16" if is_utf16 else "utf-8-sig")


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")
