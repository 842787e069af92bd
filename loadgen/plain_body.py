"""Bodies that are not event streams: a whole JSON completion, an error, markup or a stream of another kind. Pure.

The kind is known from the status and content type, otherwise from the first visible byte.
"""

from enum import Enum, auto

EXCERPT_CHARS = 300
_OTHER_TYPES = frozenset(
    {"text/html", "application/xhtml+xml", "application/x-ndjson", "application/ndjson", "application/jsonl",
     "application/json-lines", "application/stream+json"}
)  # fmt: skip
"""Markup, and streams that are not server-sent events."""
MAX_BODY_BYTES = 64 * 1024 * 1024
_EXCERPT_BYTES = 4 * EXCERPT_CHARS


class BodyKind(Enum):
    """What a body is; only `EVENTS` has arrival times of tokens."""

    UNKNOWN = auto()
    EVENTS = auto()
    JSON = auto()
    ERROR = auto()
    OTHER = auto()


class BodyTooLongError(Exception):
    """A plain body is longer than anyone would send as an answer."""


def kind_of_reply(status: int, content_type: str) -> BodyKind:
    """What the head says of the body."""
    if not 200 <= status < 300:
        return BodyKind.ERROR
    if content_type in _OTHER_TYPES:
        return BodyKind.OTHER
    return BodyKind.UNKNOWN


def kind_of_bytes(head: bytes) -> BodyKind:
    """What the first visible byte says of the body; UNKNOWN where there is none yet."""
    visible = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not visible:
        return BodyKind.UNKNOWN
    if visible in (b"{", b"["):
        return BodyKind.JSON
    return BodyKind.OTHER if visible == b"<" else BodyKind.EVENTS


class PlainBody:
    """What has arrived of a body that is no stream; of errors and markup only the beginning is kept."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []

    def add(self, data: bytes, kind: BodyKind) -> None:
        """Take in one read.

        Raises:
            BodyTooLongError: the body is longer than `MAX_BODY_BYTES`.
        """
        before, self.size = self.size, self.size + len(data)
        if kind in (BodyKind.ERROR, BodyKind.OTHER):
            if before < _EXCERPT_BYTES:
                self._parts.append(data)
        elif self.size > MAX_BODY_BYTES:
            raise BodyTooLongError(f"a plain body is longer than {MAX_BODY_BYTES} bytes")
        else:
            self._parts.append(data)

    def take(self) -> bytes:
        """All that was kept; nothing is left."""
        data = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return data

    def whole(self) -> bytes:
        """All that was kept."""
        return b"".join(self._parts)

    def excerpt(self) -> str:
        """Its beginning, as text for a message."""
        return excerpt(self.whole()[:_EXCERPT_BYTES])


def excerpt(data: bytes) -> str:
    """The beginning of some bytes, as text for a message."""
    text = data.decode("utf-8", "replace").replace("\0", "").strip()
    return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"


def clean(text: str | None, max_chars: int) -> str:
    """Text that any database takes: no lone surrogates, not longer than `max_chars`."""
    return (text or "").encode("utf-8", "replace").decode()[:max_chars]
