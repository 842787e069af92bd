"""HTTP/1.1 replies without sockets: bytes with their stamp in, calls to a reader and an action out.

httptools handles the framing; the reader interprets the body. The owner of the socket feeds what
it read, and does what the returned action says. One object serves all replies of a connection, one
after the other.

    state   on bytes                                on end of stream
    IDLE    ends nothing: no request was sent       ends nothing
    HEAD    HEAD, or BODY once the head is whole    FAULT disconnect
    BODY    body to the reader; DONE at its end     end of a body without length, else FAULT disconnect
    DONE    a second reply: the connection must go  ends nothing

Interim replies (1xx) leave the state at HEAD. Bytes that are not HTTP are a FAULT before DONE, and
after it a reason not to keep the connection.
"""

from enum import Enum, auto
from typing import Protocol

import httptools

from surgeproof.outcomes import Outcome

MAX_FRAMING_BYTES = 1 << 20
_SPENT_PARSER = httptools.HttpResponseParser(None)


class ReplyReader(Protocol):
    """The receiver of a reply; `stream.StreamReader` under load."""

    saw_done: bool
    stop_reading: bool

    def on_head(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        """The head is whole; names are in lower case."""
        ...

    def on_body(self, data: bytes, at_ns: int, not_before_ns: int | None = None) -> None:
        """One read's share of the body, framing removed."""
        ...

    def on_end(self, at_ns: int) -> None:
        """The body has ended as its framing says."""
        ...


class State(Enum):
    """Where a reply is."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    DONE = auto()


class Action(Enum):
    """What the owner of the socket does after a read.

    CONTINUE: read on. LAST_EVENT: read on, but not for long: the reader saw the stream's last event and
    only the framing's end is missing. KEEP: the reply is over, the connection can carry another.
    CLOSE: the reply is over, drop the connection. FAULT: the reply failed for the reason in `fault`.
    """

    CONTINUE = auto()
    LAST_EVENT = auto()
    KEEP = auto()
    CLOSE = auto()
    FAULT = auto()


# Access to an enum's member costs more than all else that is done with it here, for every read.
_CONTINUE, _DONE = Action.CONTINUE, State.DONE


class HttpReply:
    """The replies of one connection.

    Attributes:
        state: where the current reply is.
        received: whether any byte of the current reply has come.
        fault: outcome and message after `Action.FAULT`.
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self.received = False
        self.fault: tuple[Outcome, str] = (Outcome.MALFORMED, "")
        self._reader: ReplyReader | None = None
        self._parser = httptools.HttpResponseParser(self)
        # What gateways send and other clients accept: a length beside chunks, line ends without CR, blanks after sizes.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._at_ns = 0
        self._not_before_ns: int | None = None
        self._keep_alive = False
        self._last_event_reported = False
        self._framing_bytes = 0

    def begin(self, reader: ReplyReader) -> None:
        """A request was sent, whose reply is for `reader`."""
        self.state = State.HEAD
        self.received = False
        self._reader = reader
        self._headers = {}
        self._last_event_reported = False
        self._framing_bytes = 0

    def feed(self, data: bytes, at_ns: int, not_before_ns: int | None = None) -> Action:
        """Process the bytes of one read, with the arrival time of the last, and before which none had come."""
        self._at_ns, self._not_before_ns = at_ns, not_before_ns
        self.received = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return self._invalid("the server switched protocols")
        except httptools.HttpParserError as exc:
            return self._invalid(f"the reply is not HTTP/1.1: {exc}")
        reader, pieces = self._reader, self._pieces
        if reader is None:
            return Action.CLOSE
        if not pieces:
            # Heads, interim replies, extensions of chunks, trailers: the parser keeps what is not yet whole.
            self._framing_bytes += len(data)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                return self._fault(
                    Outcome.MALFORMED, f"over {MAX_FRAMING_BYTES >> 10} kB of headers and framing without any body"
                )
        else:
            self._framing_bytes = 0
            # One read may hold many chunks of the body: the reader gets them as the one arrival that they were.
            reader.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces), at_ns, not_before_ns)
            pieces.clear()
        if self.state is _DONE or reader.stop_reading or reader.saw_done:
            return self._after_last(reader)
        return _CONTINUE

    def end(self, at_ns: int) -> Action:
        """The other side has closed the connection."""
        reader = self._reader
        if reader is None or self.state in (State.IDLE, State.DONE):
            return Action.CLOSE
        if self.state is State.BODY and self._ends_with_connection():
            self.state = State.DONE
            reader.on_end(at_ns)
            return Action.CLOSE
        if self.received:
            return self._fault(Outcome.DISCONNECT, "the connection was closed before the reply had ended")
        return self._fault(Outcome.DISCONNECT, "no response: the connection was closed before the first byte")

    def release(self) -> None:
        """Break the reference cycle with the parser: the load runs with garbage collection off."""
        self._parser = _SPENT_PARSER
        self._reader = None

    def _ends_with_connection(self) -> bool:
        framed = "chunked" in self._headers.get("transfer-encoding", "").lower()
        return not framed and "content-length" not in self._headers

    def _after_last(self, reader: ReplyReader) -> Action:
        """The reply is over, or the reader has seen enough of it."""
        if self.state is State.DONE:
            self.state = State.IDLE
            reader.on_end(self._at_ns)
            return Action.KEEP if self._keep_alive else Action.CLOSE
        if reader.stop_reading:
            return Action.CLOSE
        if self._last_event_reported:
            return Action.CONTINUE
        self._last_event_reported = True
        return Action.LAST_EVENT

    def _invalid(self, message: str) -> Action:
        """Invalid HTTP: drop the connection after a whole reply, fail an unfinished one."""
        self._keep_alive = False
        reader, body = self._reader, b"".join(self._pieces)
        self._pieces.clear()
        if reader is not None and body:
            reader.on_body(body, self._at_ns, self._not_before_ns)
        if reader is not None and self.state is State.DONE:
            return self._after_last(reader)
        return self._fault(Outcome.MALFORMED, message)

    def _fault(self, outcome: Outcome, message: str) -> Action:
        self.fault = (outcome, message)
        return Action.FAULT

    # -- callbacks of httptools -----------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field; repeated ones are joined as HTTP says."""
        if self.state is State.DONE:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        before = self._headers.get(key)
        self._headers[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self.state is State.DONE:
            # A second reply to one request: the first one counts, the connection cannot be trusted.
            self._keep_alive = False
            return
        status = self._parser.get_status_code()
        if status < 200 or self._reader is None:
            return
        self.state = State.BODY
        coding = self._headers.get("transfer-encoding", "chunked").strip().lower()
        if coding not in ("chunked", "identity"):
            # For the reader a transfer coding is a coding of the content: something to undo first.
            self._headers["content-encoding"] = coding.removesuffix("chunked").strip(", ")
        self._reader.on_head(status, self._headers, self._at_ns)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, framing removed."""
        if self.state is not _DONE:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The reply has ended as its framing says."""
        if self.state is State.DONE:
            return
        if self._parser.get_status_code() >= 200:
            self.state = State.DONE
            # llhttp knows this only inside the callback.
            self._keep_alive = self._parser.should_keep_alive()
        else:
            self._headers = {}
