"""Stamped body reads in, one set of stream facts out: first token, last token, usage, outcome.

Pure: it is told the status, headers, body bytes and their arrival times, and never looks at a
clock or a socket. The definitions are those of docs/metrics.md. A reply that is not a stream
(plain JSON, an error page) is understood too, so that every request ends in exactly one outcome.
"""

import json
import re
import struct
from operator import sub
from typing import Any

import msgspec
import numpy as np

from surgeproof.loadgen.coding import CodingError, Decode, decoder_for
from surgeproof.loadgen.sse import DEFAULT_MAX_EVENT_BYTES, EventTooLongError, SseEvent, SseParser

EXCERPT_CHARS = 300
MAX_PLAIN_BODY_BYTES = 64 * 1024 * 1024
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
_OTHER_OUTPUT_KEYS = ("refusal", "audio", "reasoning_details")
_ABORT_REASONS = frozenset({"abort", "aborted", "error", "cancelled", "canceled"})
_ERROR_KEYS = ("error", "errors", "error_code", "error_msg", "error_message")
_MOST_TOKENS = 2**53
_NAME_CHARS = 100
_decode_json = msgspec.json.Decoder().decode
_CONTENT = re.compile(rb'"content"\s*:\s*"')
_is_plain_text = re.compile(rb"[ !#-\[\]-~]+").fullmatch  # ASCII that JSON writes as it is


class StreamReader:
    """Follows one reply from its head to its end.

    Args:
        max_tokens: tokens asked for; an answer that is longer is flagged.
        fixed_length: the request forbade an early end (`ignore_eos`, `min_tokens`), so a shorter
            answer is flagged too.
        keep_text: keep the answer's text (`text`, `reasoning_text`); off under load.
        max_event_bytes: longest event that is held in memory.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        fixed_length: bool = False,
        keep_text: bool = False,
        max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
    ) -> None:
        self.max_tokens = max_tokens
        self.fixed_length = fixed_length
        self.keep_text = keep_text
        self.max_event_bytes = max_event_bytes
        self.http_status: int | None = None
        self.retry_after_s: float | None = None
        self.request_id: str | None = None
        self.server_timing: str | None = None
        self.headers_at_ns: int | None = None
        self.first_byte_at_ns: int | None = None
        self.first_event_at_ns: int | None = None
        self.first_token_at_ns: int | None = None
        self.first_answer_at_ns: int | None = None
        self.last_token_at_ns: int | None = None
        self.done_at_ns: int | None = None
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.events = 0
        self.token_events = 0
        self.body_bytes = 0
        self.merged_reads = 0
        self.arrivals_at_ns: list[int] = []
        self.error: str | None = None
        self.warnings: list[str] = []
        self.saw_done = False
        self.stop_reading = False
        self._fault: str | None = None
        self._mode = "sniff"
        self._sse: SseParser | None = None
        self._decode: Decode | None = None
        self._plain: list[bytes] = []
        self._plain_bytes = 0
        self._last_event_at_ns: int | None = None
        self._first_event_tokens: int | None = None
        self._reasoning_seen = False
        self._server_error = False
        self._malformed = False
        self._location: str | None = None
        self._last_read_at_ns = 0
        self._head_of_body = b""
        self._other_choices = False
        self._texts: dict[int, list[str]] = {}
        self._reasonings: list[str] = []
        self._tool_arguments: list[str] = []
        self.finish_by_choice: dict[int, str] = {}
        self._choices_seen: set[int] = set()
        # What stands before and after the text of a plain token's event; nearly all events of a reply share it.
        self._form: tuple[bytes, bytes] | None = None
        self._form_fits = True

    # -- what the transport tells ---------------------------------------------------------------

    def on_head(self, status: int, headers: dict[str, str], at_ns: int) -> None:
        """The response head is complete. `headers` has lower-case names."""
        self.http_status = status
        self.headers_at_ns = at_ns
        self.request_id = _clean(headers.get("x-request-id"), EXCERPT_CHARS) or None
        self.server_timing = _clean(headers.get("server-timing"), EXCERPT_CHARS) or None
        self.retry_after_s = _retry_after_s(headers.get("retry-after"))
        self._location = headers.get("location")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not 200 <= status < 300:
            self._mode = "error_body"
        elif kind in ("text/html", "application/xhtml+xml"):
            self._mode = "not_ours"
            self.error = f"content type {kind}"
        try:
            self._decode = decoder_for(headers.get("content-encoding", ""))
        except CodingError as exc:
            self._fail("error:encoding", str(exc))

    def on_body(self, data: bytes, at_ns: int) -> None:
        """One read's share of the body, still coded, with its arrival time."""
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
                self._fail("error:encoding", str(exc))
                return
        sse = self._sse
        if sse is None:
            if self._mode == "sniff":
                data = self._sniff(data)
                sse = self._sse
            if sse is None:
                self._collect(data)
                return
        if self._form is not None and sse.is_between_events and (tokens := self._plain_tokens(data)):
            self.events += tokens
            self.token_events += tokens
            self.arrivals_at_ns += [at_ns] * tokens
            self._last_event_at_ns = self.last_token_at_ns = at_ns
            self.merged_reads += tokens > 1
            return
        try:
            events = sse.feed(data)
        except EventTooLongError as exc:
            self._fail("error:malformed", str(exc))
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

    def on_fault(self, outcome: str, message: str, at_ns: int) -> None:
        """The transport gave up: connect, timeout, reset, disconnect or our own resources.

        After a terminal signal the answer is complete; only the close was unclean.
        """
        if self._sse is not None and outcome in ("error:reset", "error:disconnect") and not self.saw_done:
            self._take_tail()
        if self.saw_done or self._all_choices_finished():
            self._warn("unclean_close")
            if self.done_at_ns is None:
                self.done_at_ns = self._last_event_at_ns
            return
        if self._sse is None and self._plain_bytes:
            message = f"{message}; {self._plain_excerpt()}"
        self._fail(outcome, message)
        self.done_at_ns = at_ns

    # -- what came of it ------------------------------------------------------------------------

    def outcome(self) -> str:
        """The outcome class, by the precedence of docs/metrics.md."""
        fault = self._fault
        if fault in ("error:connect", "error:client_resource", "error:timeout"):
            return fault
        if self.http_status is not None and not 200 <= self.http_status < 300:
            return f"error:http_{self.http_status}"
        if self._mode == "not_ours":
            return "error:content_type"
        if fault == "error:encoding":
            return fault
        if self._server_error:
            return "error:server_event"
        if self.finish_reason in _ABORT_REASONS:
            return "error:aborted"
        if fault is not None:
            return fault
        if self._malformed:
            return "error:malformed"
        if self._sse is not None and not self.saw_done and not self._all_choices_finished():
            return "error:truncated"
        if self.token_events == 0 and not (self._mode == "json" and self._has_answer):
            return "error:empty"
        return "ok"

    def tpot_ns(self) -> int | None:
        """Time per output token after the first event, ns; None under two tokens or one arrival.

        The tokens of the first event are taken off where the server tells them, else 1. Reasoning
        tokens that were counted but never streamed are taken off too.
        """
        first, last, tokens = self.first_token_at_ns, self.last_token_at_ns, self.output_tokens
        if first is None or last is None or last == first or tokens is None or tokens < 2:
            return None
        if len(self._choices_seen) > 1 or self.outcome() != "ok":
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

    def all_warnings(self) -> tuple[str, ...]:
        """Everything a reader of the record should know, by name."""
        if self.outcome() == "ok":
            tokens, limit = self.output_tokens, self.max_tokens
            if self._mode == "sse" and self.finish_reason is None:
                self._warn("missing_finish_reason")
            if tokens is not None and limit is not None:
                if tokens > limit * max(1, len(self._choices_seen)):
                    self._warn("output_over_limit")
                elif tokens < limit and self.fixed_length:
                    self._warn("short_output")
            if self.token_events > 1 and self.first_token_at_ns == self.last_token_at_ns:
                self._warn("buffered")
            if self._hidden_reasoning_tokens():
                self._warn("hidden_reasoning")
        return tuple(self.warnings)

    def text(self, choice: int = 0) -> str:
        """The visible answer of one choice; empty unless `keep_text`."""
        return _joined(self._texts.get(choice, []))

    def texts_by_choice(self) -> dict[int, str]:
        """The visible answers of all choices."""
        return {index: _joined(parts) for index, parts in self._texts.items()}

    def reasoning_text(self) -> str:
        """The streamed reasoning; empty unless `keep_text`."""
        return _joined(self._reasonings)

    def tool_arguments(self) -> str:
        """The assembled tool-call arguments; empty unless `keep_text`."""
        return _joined(self._tool_arguments)

    def _all_choices_finished(self) -> bool:
        """Whether every choice that was seen has its finish reason: the terminal signal without `[DONE]`."""
        return bool(self.finish_by_choice) and self._choices_seen <= self.finish_by_choice.keys()

    # -- bodies that are not streams ------------------------------------------------------------

    def _sniff(self, data: bytes) -> bytes:
        """Decide by the first visible byte whether this is JSON or an event stream."""
        head = b"".join((*self._plain, data))
        seen = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not seen:
            return data
        self._plain.clear()
        self._plain_bytes = 0
        if seen[:1] in (b"{", b"["):
            self._mode = "json"
        elif seen[:1] == b"<":
            self._mode = "not_ours"
            self.error = "the body is markup, not a completion"
        else:
            self._mode = "sse"
            self._sse = SseParser(self.max_event_bytes)
            self._head_of_body = head[: 4 * EXCERPT_CHARS]
        return head

    def _collect(self, data: bytes) -> None:
        self._plain_bytes += len(data)
        if self._mode in ("error_body", "not_ours"):
            if self._plain_bytes - len(data) < 4 * EXCERPT_CHARS:
                self._plain.append(data)
        elif self._plain_bytes > MAX_PLAIN_BODY_BYTES:
            self._fail("error:malformed", f"a plain body is longer than {MAX_PLAIN_BODY_BYTES} bytes")
        else:
            self._plain.append(data)

    def _plain_excerpt(self) -> str:
        return _excerpt(b"".join(self._plain)[: 4 * EXCERPT_CHARS])

    def _take_plain(self) -> None:
        """The body was no stream: keep an error's message, or read the whole completion."""
        if self._fault is not None:
            return
        if self._mode == "error_body":
            text = self._plain_excerpt()
            if self._location:
                text = f"redirect to {self._location}; not followed. {text}".strip()
            self.error = text or f"HTTP {self.http_status}"
        elif self._mode == "not_ours":
            self.error = f"{self.error}: {self._plain_excerpt()}"
        elif self._mode == "json":
            body = b"".join(self._plain)
            try:
                whole = _parse(body, self)
            except ValueError:
                self._malformed = True
                self.error = f"the body is not valid JSON: {_excerpt(body)}"
                return
            self._take_whole(whole)

    def _take_whole(self, whole: Any) -> None:
        self._warn("not_streamed")
        self._has_answer = False
        if not isinstance(whole, dict) or self._is_error(whole):
            self._server_error = isinstance(whole, dict)
            self._malformed = not self._server_error
            self.error = _error_text(whole)
            return
        self._take_usage(whole)
        for choice in _dicts(whole.get("choices")):
            index = _int(choice.get("index")) or 0
            self._note_finish(index, choice)
            message = choice.get("message")
            parts = message if isinstance(message, dict) else choice
            answer, other = self._output_of(parts, index)
            self._has_answer = self._has_answer or answer or other

    _has_answer = False

    # -- events ---------------------------------------------------------------------------------

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
                break
            self.events += 1
            self._take_event(name, data, at_ns)
        if self.token_events - before > 1:
            self.merged_reads += 1
        if self.arrivals_at_ns:
            self.last_token_at_ns = self.arrivals_at_ns[-1]

    def _take_event(self, name: bytes | None, data: bytes, at_ns: int) -> None:
        try:
            chunk = _decode_json(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                chunk = _parse(data, self)
            except ValueError:
                self._on_bad_event(name, data)
                return
        if name is None and self._is_plain_token(chunk):
            self.token_events += 1
            self.arrivals_at_ns.append(at_ns)
            if self._form_fits:
                self._learn_form(data, chunk["choices"][0]["delta"]["content"])
        elif name == b"error":
            self._on_server_error(chunk)
        elif isinstance(chunk, dict):
            self._on_chunk(chunk, at_ns)
        elif chunk is not None:
            self._on_bad_event(name, data)

    def _plain_tokens(self, data: bytes) -> int:
        """How many events a read holds if they differ from the last plain token in their text only; else 0.

        JSON would tell the same of each. Read after read is of this kind, and decoding is half of its cost.
        """
        assert self._form is not None
        prefix, suffix = self._form
        if not (data.startswith(prefix) and data.endswith(suffix)):
            return 0
        texts = data[len(prefix) : -len(suffix)].split(suffix + prefix)
        if not (all(texts) and _is_plain_text(b"".join(texts))):
            return 0
        self._form_fits = True
        return len(texts)

    def _learn_form(self, data: bytes, content: str) -> None:
        """Take the chunk of a plain token for the form of those to come.

        A form that no chunk has fitted, since each has an id of its own, is the last one learned.
        """
        found = _CONTENT.search(data)
        if found is None or data.count(b'"content"') != 1 or b"\n" in data:
            return
        start, end = found.end(), found.end() + len(content)
        if data[start : end + 1] == content.encode("ascii", "replace") + b'"':
            self._form_fits = False
            self._form = (b"data: " + data[:start], data[end:] + b"\n\n")

    def _is_plain_token(self, chunk: Any) -> bool:
        """Whether a chunk is one more piece of choice 0's text and tells nothing else.

        Nearly all chunks under load are; they need none of the care of `_on_chunk`.
        """
        if self.first_answer_at_ns is None or self.keep_text or self._server_error or self._other_choices:
            return False
        try:
            choices = chunk["choices"]
            choice = choices[0]
            delta = choice["delta"]
            return (
                len(choices) == 1
                and len(delta) == 1
                and delta["content"].__class__ is str
                and delta["content"] != ""
                and choice["index"] == 0
                and not choice["finish_reason"]
                and "usage" not in chunk
                and "error" not in chunk
                and "usage" not in choice
            )
        except (KeyError, IndexError, TypeError):
            return False

    def _take_tail(self) -> None:
        """At the body's end: an event without its blank line counts if it is whole, else it is the cut.

        It was complete when its last byte was read, however long the end took.
        """
        assert self._sse is not None
        tail = [(name, data) for name, data in self._sse.close() if _is_done(data) or _is_json(data)]
        if tail:
            self._take(tail, self._last_read_at_ns)
        if self.events == 0 and not self.saw_done and self.error is None and self._head_of_body:
            self.error = f"the body holds no event: {_excerpt(self._head_of_body)}"

    def _on_chunk(self, chunk: dict[str, Any], at_ns: int) -> None:
        if self._is_error(chunk):
            self._on_server_error(chunk)
            for choice in _dicts(chunk.get("choices")):
                self._note_finish(_int(choice.get("index")) or 0, choice)
            return
        usage = chunk.get("usage") or chunk.get("x_groq")
        if usage:
            self._take_usage(chunk)
        choices = chunk.get("choices")
        if not choices or not isinstance(choices, list) or self._server_error:
            return
        generated = answered = False
        for choice in choices:
            if isinstance(choice, dict):
                answer, other = self._on_choice(choice)
                answered = answered or answer
                generated = generated or answer or other
        if generated:
            self._on_token(at_ns, answered=answered, counted=bool(usage))

    def _on_choice(self, choice: dict[str, Any]) -> tuple[bool, bool]:
        """Return (visible answer?, other generated output?) of one choice of a chunk."""
        index = choice.get("index")
        if index.__class__ is not int:
            index = 0
        if choice.get("finish_reason"):
            self._note_finish(index, choice)
        if choice.get("usage"):
            self._take_usage(choice)
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message") or choice
        if not isinstance(delta, dict):
            return False, False
        answer, other = self._output_of(delta, index)
        if answer or other:
            self._choices_seen.add(index)
            self._other_choices = self._other_choices or index != 0
        return answer, other

    def _on_token(self, at_ns: int, *, answered: bool, counted: bool) -> None:
        """An event with output; `counted` when the same chunk told the tokens so far."""
        self.token_events += 1
        self.arrivals_at_ns.append(at_ns)
        if self.first_token_at_ns is None:
            self.first_token_at_ns = at_ns
            if counted and self.output_tokens:
                self._first_event_tokens = self.output_tokens
        if answered and self.first_answer_at_ns is None:
            self.first_answer_at_ns = at_ns

    def _output_of(self, delta: dict[str, Any], index: int) -> tuple[bool, bool]:
        """Return (visible answer?, other generated output?) and keep the text where asked to."""
        content = delta.get("content")
        if content is None:
            content = delta.get("text")
        if content.__class__ is str:
            answer = bool(content)
            if answer and self.keep_text:
                self._texts.setdefault(index, []).append(content)
            # The common delta is {"content": ...} alone: nothing else to look for.
            if answer and len(delta) == 1:
                return True, False
            other = False
        else:
            answer, other = self._take_parts(content, index) if content else (False, False)
        for key in _REASONING_KEYS:
            value = delta.get(key)
            if value and isinstance(value, str):
                other = self._reasoning_seen = True
                if self.keep_text:
                    self._reasonings.append(value)
                break
        for key in _OTHER_OUTPUT_KEYS:
            other = other or bool(delta.get(key))
        tools = delta.get("tool_calls") or ()
        function = delta.get("function_call")
        if tools or function:
            other = self._take_tools(tools, function) or other
        return answer, other

    def _take_parts(self, content: Any, index: int) -> tuple[bool, bool]:
        """Content as a list of typed parts (Mistral, some gateways): text, or thinking."""
        answer = other = False
        for part in _dicts(content):
            text = part.get("text")
            if isinstance(text, str) and text:
                answer = True
                if self.keep_text:
                    self._texts.setdefault(index, []).append(text)
            elif any(part.get(key) for key in _REASONING_KEYS):
                other = self._reasoning_seen = True
        return answer, other

    def _take_tools(self, tools: Any, function: Any) -> bool:
        generated = False
        calls = [call.get("function") or call.get("custom") for call in _dicts(tools)]
        for call in _dicts([*calls, function]):
            arguments = call.get("arguments") or call.get("input")
            if call.get("name") or arguments:
                generated = True
            if self.keep_text and isinstance(arguments, str):
                self._tool_arguments.append(arguments)
        return generated

    def _note_finish(self, index: int, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if not reason:
            return
        text = _clean(str(reason), _NAME_CHARS)
        self.finish_by_choice[index] = text
        if index == 0 or self.finish_reason is None:
            self.finish_reason = text

    def _take_usage(self, chunk: dict[str, Any]) -> None:
        """Usage is cumulative: the largest count seen stands, nothing is summed."""
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            groq = chunk.get("x_groq")
            usage = groq.get("usage") if isinstance(groq, dict) else None
            if not isinstance(usage, dict):
                return
        get = usage.get
        self.output_tokens = _larger(self.output_tokens, get("completion_tokens", get("output_tokens")))
        self.input_tokens = _larger(self.input_tokens, get("prompt_tokens", get("input_tokens")))
        details = get("prompt_tokens_details") or get("input_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _larger(self.cached_tokens, details.get("cached_tokens"))
        else:
            cached = get("prompt_cache_hit_tokens", get("cached_tokens"))
            self.cached_tokens = _larger(self.cached_tokens, cached)
        details = get("completion_tokens_details") or get("output_tokens_details")
        if isinstance(details, dict):
            self.reasoning_tokens = _larger(self.reasoning_tokens, details.get("reasoning_tokens"))

    def _hidden_reasoning_tokens(self) -> int:
        return 0 if self._reasoning_seen else (self.reasoning_tokens or 0)

    # -- errors ---------------------------------------------------------------------------------

    def _is_error(self, chunk: dict[str, Any]) -> bool:
        error = chunk.get("error")
        if isinstance(error, dict):
            # Some gateways send an error object whose every field is empty or 0 with each good chunk.
            error = any(error.values())
        if error:
            return True
        if chunk.get("choices") or chunk.get("usage"):
            return False
        kind = chunk.get("object") or chunk.get("type")
        if kind == "error" or (kind is None and chunk.get("detail")):
            return True
        code = chunk.get("status_code", chunk.get("status", chunk.get("code")))
        return any(chunk.get(key) for key in _ERROR_KEYS if key != "error") or (isinstance(code, int) and code >= 400)

    def _on_server_error(self, payload: Any) -> None:
        self._server_error = True
        self._form, self._form_fits = None, False
        if self.error is None:
            self.error = _error_text(payload)

    def _on_bad_event(self, name: bytes | None, data: bytes) -> None:
        if name == b"error":
            self._on_server_error(data.decode("utf-8", "replace"))
        elif name in (None, b"", b"message"):
            # Events of other names are not for us, as for every EventSource.
            self._malformed = True
            if self.error is None:
                self.error = f"an event is not a JSON object: {_excerpt(data)}"

    def _fail(self, outcome: str, message: str) -> None:
        if self._fault is None:
            self._fault = outcome
            self.error = _clean(message if self.error is None else f"{self.error}; {message}", 4 * EXCERPT_CHARS)
        self.stop_reading = True

    def _warn(self, name: str) -> None:
        if name not in self.warnings:
            self.warnings.append(name)

    def note(self, warning: str) -> None:
        """Add a warning that only the transport can know of."""
        self._warn(warning)


def pack_arrivals(origin_ns: int, arrivals_at_ns: list[int]) -> bytes | None:
    """Arrival times as little-endian uint32 microsecond steps, the first from `origin_ns`.

    Four bytes an event; a step of over 71 minutes is held at that.
    """
    if not arrivals_at_ns:
        return None
    at_us = [origin_ns // 1000, *(at_ns // 1000 for at_ns in arrivals_at_ns)]
    form = f"<{len(arrivals_at_ns)}I"
    try:
        return struct.pack(form, *map(sub, at_us[1:], at_us))
    except struct.error:
        return struct.pack(form, *(min(max(step, 0), 0xFFFFFFFF) for step in map(sub, at_us[1:], at_us)))


def unpack_arrivals(packed: bytes | None) -> list[int]:
    """Microseconds since the origin of `pack_arrivals`, one for each event."""
    at_us: list[int] = np.cumsum(np.frombuffer(packed or b"", dtype="<u4").astype(np.int64)).tolist()
    return at_us


def _parse(data: bytes, reader: StreamReader) -> Any:
    """The lenient second try: NaN, lone surrogates and bad UTF-8 must not lose a token.

    Raises:
        ValueError: it is not JSON at all.
    """
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        value = json.loads(data.decode("utf-8", "replace"))
        reader.note("invalid_utf8")
        return value
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _is_done(data: bytes) -> bool:
    return data.strip(b' \t"') == b"[DONE]"


def _clean(text: str | None, most: int) -> str:
    """Text that any database takes: no lone surrogate, no endless line."""
    return (text or "").encode("utf-8", "replace").decode()[:most]


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _joined(parts: list[str]) -> str:
    """Join text; a surrogate pair split over two chunks becomes one character again."""
    text = "".join(parts)
    if any("\ud800" <= char <= "\udfff" for char in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _excerpt(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\0", "").strip()
    return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"


def _error_text(payload: Any) -> str:
    """Code, type and message of an error object in any of the forms seen in the field."""
    error = payload
    for _ in range(2):
        if isinstance(error, dict) and error.get("error"):
            error = error["error"]
    if isinstance(error, dict):
        outer = payload if isinstance(payload, dict) else {}
        parts = [
            str(value)
            for key in ("code", "type", "error_type", "error_code", "message", "msg", "error_msg", "detail")
            if (value := error.get(key, outer.get(key))) not in (None, "")
        ]
        text = " ".join(parts) or json.dumps(error)
    else:
        kind = payload.get("error_type", "") if isinstance(payload, dict) else ""
        text = f"{kind} {error}".strip()
    return _excerpt(text.encode("utf-8", "replace"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _larger(held: int | None, value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_TOKENS:
        return held
    return value if held is None or value > held else held


def _retry_after_s(value: str | None) -> float | None:
    """Retry-After in seconds; a date is left alone (the record keeps the fact of shedding)."""
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e9 else None
