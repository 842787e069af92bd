"""Server-sent events: bytes in, events out.

An incremental parser after the WHATWG event-stream grammar. It knows no socket, no clock and no
JSON; whoever feeds it knows when the bytes arrived. Two deliberate additions: a field named
`error` (old llama.cpp servers) is handed on as an event of that name, and `close` returns a last
event that the body's end cut off before its blank line, because real servers leave it out.

    stream  = [ BOM ] *event
    event   = *( comment / field ) end-of-line
    comment = ":" *any-char end-of-line
    field   = name [ ":" [ space ] *any-char ] end-of-line
    end-of-line = CR LF / CR / LF
"""

_BOM = b"\xef\xbb\xbf"
DEFAULT_MAX_EVENT_BYTES = 64 * 1024 * 1024


SseEvent = tuple[bytes | None, bytes]
"""One dispatched event: its name (None for the default) and the joined data bytes."""


class EventTooLongError(Exception):
    """An event grew past the parser's limit; the stream cannot be followed any further."""


class SseParser:
    """Feeds on reads of any size and returns the events they complete.

    Args:
        max_event_bytes: longest event that is held in memory.
    """

    __slots__ = ("_at_start", "_held", "_held_bytes", "_max", "_skip_lf")

    def __init__(self, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._skip_lf = False
        self._at_start = True

    @property
    def is_between_events(self) -> bool:
        """Whether nothing is held of an event that has begun."""
        return not (self._held or self._skip_lf)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take one read and return the events that it completes, in order.

        Raises:
            EventTooLongError: an event is longer than `max_event_bytes`.
        """
        if self._at_start:
            data = self._without_bom(data)
        return self._feed(data)

    def _feed(self, data: bytes) -> list[SseEvent]:
        if not self._held and not self._skip_lf and _is_one_plain_event(data):
            return [(None, data[6:-2])]
        if self._skip_lf and data:
            # A CR has already ended the line; the LF of a CRLF cut between two reads is no second end.
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return []
        pending = self._held
        if b"\n\n" not in data and not (pending and data[0] == 10 and pending[-1][-1] == 10):
            self._hold(data)
            return []
        if pending:
            data = b"".join((*pending, data))
            pending.clear()
            self._held_bytes = 0
        blocks = data.split(b"\n\n")
        tail = blocks.pop()
        if tail:
            self._hold(tail)
        events: list[SseEvent] = []
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block:
                if len(block) > 6:
                    events.append((None, block[6:]))
            else:
                events += _events_of(block)
        return events

    def close(self) -> list[SseEvent]:
        """The body has ended: return what the missing blank line held back."""
        block = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return _events_of(block)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self._max:
            raise EventTooLongError(f"an event is longer than {self._max} bytes")

    def _without_bom(self, data: bytes) -> bytes:
        """Drop a byte-order mark at the very start, even one cut between reads."""
        head = b"".join((*self._held, data))
        if len(head) < 3 and _BOM.startswith(head):
            self._held = [head] if head else []
            return b""
        self._held = []
        self._at_start = False
        return head[3:] if head.startswith(_BOM) else head


def _is_one_plain_event(data: bytes) -> bool:
    """Most reads are one whole event of one line; for them there is a short way."""
    size = len(data)
    return data[:6] == b"data: " and size > 8 and data.find(b"\n") == size - 2 and data[-1] == 10 and b"\r" not in data


def _events_of(block: bytes) -> list[SseEvent]:
    """Parse the lines before one blank line; comments and unknown fields yield nothing."""
    name: bytes | None = None
    data: list[bytes] = []
    events: list[SseEvent] = []
    for line in block.split(b"\n"):
        field, colon, value = line.partition(b":")
        if not field:
            continue
        if colon and value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            events.append((b"error", value))
    joined = b"\n".join(data)
    if joined:
        events.append((name, joined))
    return events
