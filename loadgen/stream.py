"""Stamped body reads in, one set of stream facts out: first token, last token, usage, outcome.

Pure: it is given the status, headers, body bytes and their arrival times, and never looks at a clock
or a socket. The definitions are those of docs/metrics.md. A reply that is not a stream (plain JSON, an
error page) is understood too, so that every request ends in exactly one outcome.
"""

import json
from operator import sub
from typing import Any

import msgspec

from surgeproof.loadgen.answer import AnswerText, Choices
from surgeproof.loadgen.buffering import MergedRead, came_in_few_reads
from surgeproof.loadgen.content_encoding import CodingError, Decode, decoder_for
from surgeproof.loadgen.plain_body import (
    EXCERPT_CHARS,
    BodyKind,
    BodyTooLongError,
    PlainBody,
    clean,
    excerpt,
    kind_of_bytes,
    kind_of_reply,
)
from surgeproof.loadgen.reply_forms import ReplyForm
from surgeproof.loadgen.sse import DEFAULT_MAX_EVENT_BYTES, EventTooLongError, SseEvent, SseParser
from surgeproof.loadgen.stream_chunk import (
    Output,
    Usage,
    choices_of,
    error_text,
    gave_up,
    has_usage,
    is_error,
    output_of,
)
from surgeproof.loadgen.token_form import TokenForm, plain_content
from surgeproof.outcomes import Outcome, first_of, http_error
from surgeproof.strict_json import JsonObject

_MAX_ERROR_CHARS = 4 * EXCERPT_CHARS
_decode_json = msgspec.json.Decoder().decode


class StreamReader:
    """Follows one reply from its head to its end.

    Args:
        max_tokens: tokens asked for; an answer that is longer is flagged.
        fixed_length: the request forbade an early end (`ignore_eos`, `min_tokens`), so a shorter
            answer is flagged too.
        keep_text: keep the answer's text (`text`); off under load.
        max_event_bytes: longest event that is kept in memory.
        reply_form: how another API's replies are read; None for chat and text completions.
        streamed: a stream was asked for.
        items: vectors or scores that were asked for.

    Attributes:
        saw_done: the stream's last event has come.
        merged: reads of several token events that came with an earlier time.
        vague: the last read left open when a first token, or several tokens, came.
        stop_reading: what follows cannot change anything.
        text: empty unless `keep_text`.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        fixed_length: bool = False,
        keep_text: bool = False,
        max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
        reply_form: ReplyForm | None = None,
        streamed: bool = True,
        items: int | None = None,
    ) -> None:
        self.http_status: int | None = None
        self.retry_after_s: float | None = None
        self.request_id: str | None = None
        self.server_timing: str | None = None
        self.headers_at_ns: int | None = None
        self.first_byte_at_ns: int | None = None
        self.first_event_at_ns: int | None = None
        self.first_token_at_ns: int | None = None
        self.first_token_not_before_at_ns: int | None = None
        self.first_answer_at_ns: int | None = None
        self.last_token_at_ns: int | None = None
        self.done_at_ns: int | None = None
        self.events = 0
        self.token_events = 0
        self.body_bytes = 0
        self.merged_reads = 0
        self.arrivals_at_ns: list[int] = []
        self.merged: list[MergedRead] = []
        self.vague = False
        self.usage = Usage()
        self.choices = Choices()
        self.text = AnswerText()
        self.error: str | None = None
        self.warnings: list[str] = []
        self.saw_done = False
        self.stop_reading = False
        self._max_tokens, self._fixed_length = max_tokens, fixed_length
        self._keep_text, self._max_event_bytes = keep_text, max_event_bytes
        self._reply_form, self._streamed, self._items_asked = reply_form, streamed, items
        self.items: int | None = None
        self._problems: set[Outcome] = set()
        self._faulted = False
        self._kind = BodyKind.UNKNOWN
        self._sse: SseParser | None = None
        self._decode: Decode | None = None
        self._plain = PlainBody()
        self._form = TokenForm()
        self._only_plain = False
        self._first_event_tokens: int | None = None
        self._last_event_at_ns: int | None = None
        self._last_read_at_ns = 0
        self._not_before_ns = 0
        self._last_is_token = False
        self._saw_delta = False
        self._reasoned = False
        self._whole_answer = False
        self._location: str | None = None
        self._start_of_body = b""

    # -- what the connection reports --------------------------------------------------------------

    def on_head(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        """The response head is complete. `headers` has lower-case names."""
        self.http_status = status
        self.headers_at_ns = at_ns
        self.request_id = clean(headers.get("x-request-id"), EXCERPT_CHARS) or None
        self.server_timing = clean(headers.get("server-timing"), EXCERPT_CHARS) or None
        self.retry_after_s = _retry_after_s(headers.get("retry-after"))
        self._location = headers.get("location")
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._kind = kind_of_reply(status, content_type)
        if self._kind is BodyKind.ERROR:
            self._problems.add(Outcome.HTTP)
        elif self._kind is BodyKind.OTHER:
            self._problems.add(Outcome.CONTENT_TYPE)
            self.error = f"content type {content_type}"
        try:
            self._decode = decoder_for(headers.get("content-encoding", ""))
        except CodingError as exc:
            self._fail(Outcome.ENCODING, str(exc), at_ns)

    def on_body(self, data: bytes, at_ns: int, not_before_ns: int | None = None) -> None:
        """One read's share of the body, still coded.

        Args:
            data: the bytes.
            at_ns: arrival time of the last of them.
            not_before_ns: before it none of them had come; None where they came together.
        """
        self._not_before_ns = at_ns if not_before_ns is None else not_before_ns
        self.vague = False
        if self.stop_reading or self.saw_done:
            return
        if self.first_byte_at_ns is None:
            self.first_byte_at_ns = at_ns
        self._last_read_at_ns = at_ns
        self.body_bytes += len(data)
        if self._decode is not None:
            try:
                data = self._decode(data)
            except CodingError as exc:
                self._fail(Outcome.ENCODING, str(exc), at_ns)
                return
        sse = self._sse
        if sse is None:
            data = self._begin_body(data)
            sse = self._sse
            if sse is None:
                self._add_plain(data, at_ns)
                return
        if self._only_plain and sse.is_between_events and (texts := self._form.texts(data)):
            tokens = len(texts)
            if self._keep_text:
                self.text.add_answer(b"".join(texts).decode("ascii"))
            self.events += tokens
            self.token_events += tokens
            self.arrivals_at_ns += [at_ns] * tokens
            self._last_event_at_ns = self.last_token_at_ns = at_ns
            if tokens > 1:
                self._note_merged(tokens, at_ns)
            return
        try:
            events = sse.feed(data)
        except EventTooLongError as exc:
            self._fail(Outcome.MALFORMED, str(exc), at_ns)
            return
        if events:
            self._take(events, at_ns)

    def on_end(self, at_ns: int) -> None:
        """The body ended as HTTP framing says it should."""
        if self._sse is not None and not self.saw_done:
            self._take_tail()
        elif self._sse is None:
            self._take_plain()
        if self.done_at_ns is None:
            self.done_at_ns = at_ns

    def on_fault(self, outcome: Outcome, message: str, at_ns: int) -> None:
        """The connection failed: connect, timeout, reset, disconnect or our own resources.

        After a terminal signal the answer is complete; only the close was unclean.
        """
        if self._sse is not None and outcome in (Outcome.RESET, Outcome.DISCONNECT) and not self.saw_done:
            self._take_tail()
        if self.saw_done or self.choices.all_finished:
            self.warn("unclean_close")
            if self.done_at_ns is None:
                self.done_at_ns = self._last_event_at_ns
            return
        if self._sse is None and self._plain.size:
            message = f"{message}; {self._plain.excerpt()}"
        self._fail(outcome, message, at_ns)
        self.done_at_ns = at_ns

    def warn(self, name: str) -> None:
        """Add a warning, once."""
        if name not in self.warnings:
            self.warnings.append(name)

    # -- the result -------------------------------------------------------------------------------

    def outcome(self) -> str:
        """The outcome as it is stored, by the precedence of `outcomes`."""
        problems = set(self._problems)
        if gave_up(self.choices.finish_reason):
            problems.add(Outcome.ABORTED)
        if self._sse is not None and not self.saw_done and not self.choices.all_finished:
            problems.add(Outcome.TRUNCATED)
        if self.token_events == 0 and not self._whole_answer and not self._counted_without_output:
            problems.add(Outcome.EMPTY)
        if not problems:
            return Outcome.OK
        outcome = first_of(problems)
        return http_error(self.http_status or 0) if outcome is Outcome.HTTP else outcome

    @property
    def _counted_without_output(self) -> bool:
        """A clean end with tokens counted, none of which is visible: a stop token alone, say."""
        return self.choices.finish_reason is not None and bool(self.usage.output_tokens)

    def output_tokens(self) -> int | None:
        """The server's count; unknown where it counts none beside output that was seen."""
        counted = self.usage.output_tokens
        return None if counted == 0 and self.token_events else counted

    def tpot_ns(self) -> int | None:
        """Time per output token after the first event, ns; None under two tokens or one arrival.

        The tokens of the first event are taken off where the server counts them, else 1. Reasoning
        tokens that were counted but never streamed are taken off too.
        """
        first, last, tokens = self.first_token_at_ns, self.last_token_at_ns, self.output_tokens()
        if first is None or last is None or last == first or tokens is None or tokens < 2:
            return None
        if len(self.choices.seen) > 1 or self.outcome() != Outcome.OK:
            return None
        if self._first_event_tokens is not None:
            later = tokens - self._first_event_tokens
        else:
            later = tokens - 1 - self._hidden_reasoning_tokens()
        return round((last - first) / later) if later > 0 else None

    def max_gap_ns(self) -> int | None:
        """The longest wait between two arrivals of output, ns."""
        at = self.arrivals_at_ns
        return max(map(sub, at[1:], at)) if len(at) > 1 else None

    def max_gap_least_ns(self) -> int | None:
        """The longest wait between two arrivals of output that is certain, ns.

        Events of a merged read may have come evenly from the arrival before them on, but not before the time at which
        nothing was there.
        """
        at = self.arrivals_at_ns
        if len(at) < 2 or not self.merged:
            return self.max_gap_ns()
        gaps: list[int] = list(map(sub, at[1:], at))
        for read in self.merged:
            if read.first:
                before = at[read.first - 1]
                even = (at[read.first] - before) // read.tokens
                gaps[read.first - 1] = max(read.not_before_ns - before, even)
        return max(gaps)

    def all_warnings(self) -> tuple[str, ...]:
        """Everything a reader of the record should know, by name."""
        if self.outcome() == Outcome.OK:
            tokens, limit = self.output_tokens(), self._max_tokens
            if self.token_events == 0 and not self._whole_answer:
                self.warn("no_output_event")
            if tokens is None and self.usage.output_tokens == 0:
                self.warn("usage_all_zero")
            if tokens is not None and self.token_events > tokens:
                self.warn("more_events_than_tokens")
            if self._kind is BodyKind.EVENTS and self.choices.finish_reason is None:
                self.warn("missing_finish_reason")
            if tokens is not None and limit is not None:
                if tokens > limit * max(1, len(self.choices.seen)):
                    self.warn("output_over_limit")
                elif tokens < limit and self._fixed_length:
                    self.warn("short_output")
            if self.token_events > 1 and self.first_token_at_ns == self.last_token_at_ns:
                self.warn("buffered")
            elif came_in_few_reads(self.arrivals_at_ns, self.merged):
                self.warn("buffered_in_parts")
            if self._hidden_reasoning_tokens():
                self.warn("hidden_reasoning")
        return tuple(self.warnings)

    def _hidden_reasoning_tokens(self) -> int:
        return 0 if self._reasoned else (self.usage.reasoning_tokens or 0)

    # -- bodies that are not streams ----------------------------------------------------------------

    def _begin_body(self, data: bytes) -> bytes:
        """Decide by the first visible byte what the body is; returns what is to be read of it now."""
        if self._kind is not BodyKind.UNKNOWN:
            return data
        start = self._plain.whole() + data
        self._kind = kind_of_bytes(start)
        if self._kind is BodyKind.UNKNOWN:
            return data
        self._plain.take()
        if self._kind is BodyKind.OTHER:
            self._problems.add(Outcome.CONTENT_TYPE)
            self.error = "the body is markup, not a completion"
        elif self._kind is BodyKind.EVENTS:
            self._sse = SseParser(self._max_event_bytes)
            self._start_of_body = start[: 4 * EXCERPT_CHARS]
        return start

    def _add_plain(self, data: bytes, at_ns: int) -> None:
        try:
            self._plain.add(data, self._kind)
        except BodyTooLongError as exc:
            self._fail(Outcome.MALFORMED, str(exc), at_ns)

    def _take_plain(self) -> None:
        """The body was no stream: keep an error's message, or read the whole completion."""
        if self._faulted:
            return
        if self._kind is BodyKind.ERROR:
            text = self._error_said()
            if self._location:
                text = f"redirect to {self._location}; not followed. {text}".strip()
            self.error = text or f"HTTP {self.http_status}"
        elif self._kind is BodyKind.OTHER:
            self.error = f"{self.error}: {self._plain.excerpt()}"
        elif self._kind is BodyKind.JSON:
            body = self._plain.whole()
            try:
                whole = self._parse_leniently(body)
            except ValueError:
                self._problems.add(Outcome.MALFORMED)
                self.error = f"the body is not valid JSON: {excerpt(body)}"
                return
            self._take_whole(whole)

    def _error_said(self) -> str:
        """What the body of an error says: its message where it is an object of a known form, else its beginning."""
        try:
            payload = json.loads(self._plain.whole())
        except (ValueError, RecursionError):
            return self._plain.excerpt()
        return error_text(payload) if isinstance(payload, dict) else self._plain.excerpt()

    def _take_whole(self, whole: Any) -> None:
        if self._streamed:
            self.warn("not_streamed")
        if self._reply_form is not None and isinstance(whole, dict):
            whole = self._reply_form.whole(whole)
        if not isinstance(whole, dict) or is_error(whole):
            self._problems.add(Outcome.SERVER_EVENT if isinstance(whole, dict) else Outcome.MALFORMED)
            self.error = error_text(whole)
            return
        self.usage.take(whole)
        if self._reply_form is not None and self._reply_form.items is not None:
            self._take_items(self._reply_form.items(whole))
        for choice in choices_of(whole):
            output = output_of(choice)
            self._note(output)
            self._whole_answer = self._whole_answer or output.generated

    def _take_items(self, count: int) -> None:
        """An answer of vectors or scores; fewer than were asked for are no answer."""
        self.items = count
        asked = self._items_asked or 1
        self._whole_answer = count >= asked
        if 0 < count < asked:
            self._problems.add(Outcome.TRUNCATED)
            self.error = f"{count} items for {asked} that were asked for"

    # -- events -------------------------------------------------------------------------------------

    def _take(self, events: list[SseEvent], at_ns: int) -> None:
        """Interpret the events of one read; all of them share its arrival time."""
        if self.first_event_at_ns is None:
            self.first_event_at_ns = at_ns
        self._last_event_at_ns = at_ns
        before = self.token_events
        for name, data in events:
            if len(data) < 16 and _is_done(data):
                self.saw_done = True
                self.done_at_ns = at_ns
                self._last_is_token = False
                break
            self.events += 1
            tokens = self.token_events
            self._take_event(name, data, at_ns)
            self._last_is_token = self.token_events > tokens
            if self.saw_done:
                self.done_at_ns = at_ns
                break
        if self.token_events - before > 1:
            self._note_merged(self.token_events - before, at_ns)
        if before == 0 and self.token_events and self.first_token_at_ns == at_ns:
            # The time of a read is that of its last event: exact, where that is the first token.
            alone = self.token_events == 1 and self._last_is_token
            self.first_token_not_before_at_ns = at_ns if alone else self._not_before_ns
            self.vague = self.vague or not alone
        if self.arrivals_at_ns:
            self.last_token_at_ns = self.arrivals_at_ns[-1]

    def settle(self, not_before_ns: int) -> None:
        """More is known of when nothing of the last read had come; to be called after a read that left `vague` set."""
        self.vague = False
        if self.merged and self.merged[-1].not_before_ns == self._not_before_ns:
            self.merged[-1] = self.merged[-1]._replace(not_before_ns=not_before_ns)
        if self.first_token_not_before_at_ns == self._not_before_ns:
            self.first_token_not_before_at_ns = not_before_ns

    def _note_merged(self, tokens: int, at_ns: int) -> None:
        self.merged_reads += 1
        if self._not_before_ns < at_ns:
            self.vague = True
            self.merged.append(MergedRead(len(self.arrivals_at_ns) - tokens, tokens, self._not_before_ns))

    def _take_event(self, name: bytes | None, data: bytes, at_ns: int) -> None:
        if self._only_plain and name is None and (text := self._form.text(data)):
            self._one_more(text.decode("ascii"), at_ns)
            return
        try:
            chunk = _decode_json(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                chunk = self._parse_leniently(data)
            except ValueError:
                if name is None and data.lstrip()[:1] == b":":
                    # A comment that a gateway has wrapped as data.
                    self.warn("comment_as_data")
                else:
                    self._on_bad_event(name, data)
                return
        if self._only_plain and name is None and (content := plain_content(chunk)) is not None:
            self._one_more(content, at_ns)
            self._form.learn(data, content)
        elif name == b"error":
            self._on_server_error(chunk)
        elif isinstance(chunk, dict):
            if self._reply_form is not None:
                # Typed events name their end; what their type says is then said as a chat completion.
                self.saw_done = chunk.get("type") in self._reply_form.last
                chunk = self._reply_form.event(chunk)
            self._on_chunk(chunk, at_ns)
        elif chunk is not None and name is None:
            self.warn("event_is_no_object")
        elif chunk is not None:
            self._on_bad_event(name, data)

    def _one_more(self, text: str, at_ns: int) -> None:
        """One more piece of the only choice's visible answer."""
        self.token_events += 1
        self.arrivals_at_ns.append(at_ns)
        if self._keep_text:
            self.text.add_answer(text)

    def _take_tail(self) -> None:
        """At the body's end: an event without its blank line counts if it is whole, otherwise it was cut.

        It was complete when its last byte was read, however long the end took.
        """
        assert self._sse is not None, "called for streams"
        tail = [(name, data) for name, data in self._sse.close() if _is_done(data) or _is_json(data)]
        if tail:
            self._take(tail, self._last_read_at_ns)
        if self.events == 0 and not self.saw_done and self.error is None and self._start_of_body:
            self.error = f"the body holds no event: {excerpt(self._start_of_body)}"

    def _on_chunk(self, chunk: JsonObject, at_ns: int) -> None:
        if is_error(chunk):
            self._on_server_error(chunk)
            for choice in choices_of(chunk):
                self.choices.note(output_of(choice)._replace(generated=False))
            return
        counted = has_usage(chunk)
        if counted:
            self.usage.take(chunk)
        if Outcome.SERVER_EVENT in self._problems:
            return
        generated = answered = False
        for choice in choices_of(chunk):
            if choice.get("usage"):
                self.usage.take(choice)
            output = output_of(choice)
            if "delta" in choice:
                self._saw_delta = True
            elif self._saw_delta and self.token_events:
                # After deltas, a whole message repeats what they said.
                output = output._replace(generated=False, text="", reasoning="", tool_arguments="")
            self._note(output)
            generated = generated or output.generated
            answered = answered or bool(output.text)
        if generated:
            self._on_token(at_ns, answered=answered, counted=counted)

    def _note(self, output: Output) -> None:
        self.choices.note(output)
        self._reasoned = self._reasoned or output.reasoned
        if self._keep_text:
            self.text.add(output)

    def _on_token(self, at_ns: int, *, answered: bool, counted: bool) -> None:
        """An event with output; `counted` when the same chunk has the number of tokens so far."""
        self.token_events += 1
        self.arrivals_at_ns.append(at_ns)
        if self.first_token_at_ns is None:
            self.first_token_at_ns = at_ns
            if counted and self.usage.output_tokens:
                self._first_event_tokens = self.usage.output_tokens
        if answered and self.first_answer_at_ns is None:
            self.first_answer_at_ns = at_ns
        # From the first visible text on, one more piece of the only choice changes nothing but the counts.
        self._only_plain = self.first_answer_at_ns is not None and self.choices.seen == {0}

    # -- errors -------------------------------------------------------------------------------------

    def _on_server_error(self, payload: Any) -> None:
        self._problems.add(Outcome.SERVER_EVENT)
        self._only_plain = False
        self._form.forget()
        if self.error is None:
            self.error = error_text(payload)

    def _on_bad_event(self, name: bytes | None, data: bytes) -> None:
        if name == b"error":
            self._on_server_error(data.decode("utf-8", "replace"))
        elif name in (None, b"", b"message"):
            # Events of other names are not for us, as for every EventSource.
            self._problems.add(Outcome.MALFORMED)
            if self.error is None:
                self.error = f"an event is not a JSON object: {excerpt(data)}"

    def _fail(self, outcome: Outcome, message: str, at_ns: int) -> None:
        if not self._faulted:
            self._faulted = True
            self._problems.add(outcome)
            self.error = clean(message if self.error is None else f"{self.error}; {message}", _MAX_ERROR_CHARS)
        self.stop_reading = True
        if self.done_at_ns is None:
            self.done_at_ns = at_ns

    def _parse_leniently(self, data: bytes) -> Any:
        """The second try: NaN, lone surrogates and bad UTF-8 must not lose a token.

        Raises:
            ValueError: it is not JSON at all.
        """
        try:
            return json.loads(data)
        except UnicodeDecodeError:
            value = json.loads(data.decode("utf-8", "replace"))
            self.warn("invalid_utf8")
            return value
        except RecursionError as exc:
            raise ValueError("nested too deeply") from exc


def _is_done(data: bytes) -> bool:
    return data.strip(b' \t"') == b"[DONE]"


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _retry_after_s(value: str | None) -> float | None:
    """Retry-After in seconds; a date is ignored (the status says that the request was shed)."""
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e9 else None
