"""One planned request in, one stream record out.

Builds the request's body, hands it to the client and turns the finished exchange into a `StreamRecord`.
"""

import hashlib
import logging

import msgspec

from surgeproof.loadgen import second_attempt
from surgeproof.loadgen.api_key import ApiKey
from surgeproof.loadgen.arrivals_codec import pack_arrivals
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.content import ContentMaker
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.loop_protocols import OnRecord
from surgeproof.loadgen.request_form import RequestForm
from surgeproof.loadgen.stream import StreamReader
from surgeproof.loadgen.transcripts import Answer, Transcripts
from surgeproof.loadgen.unsent import failed_record
from surgeproof.outcomes import Outcome
from surgeproof.records import RequestPlan, StreamRecord
from surgeproof.redaction import Redactor
from surgeproof.strict_json import JsonObject

logger = logging.getLogger(__name__)

_SERVER_TEXTS = ("error", "finish_reason", "request_id", "server_timing")


def _id_prefix(run_uid: str) -> str:
    """The first 24 characters of a UUID (version 4) that names the run; its last 12 digits are a request's index."""
    digits = hashlib.blake2b(run_uid.encode(), digest_size=9).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-"


class Sender:
    """Sends planned requests and reports each exactly once.

    Args:
        client: the client.
        form: how bodies are built.
        contents: what they ask.
        run_uid: names the run in each request's id and trace parent.
        worker: number of this worker.
        redact: takes secrets out of what servers send back.
        api_key: a key that can be renewed; None for one that is given once.
    """

    def __init__(
        self,
        client: Client,
        form: RequestForm,
        contents: ContentMaker,
        run_uid: str,
        worker: int,
        redact: Redactor | None = None,
        api_key: ApiKey | None = None,
    ) -> None:
        self._redact = redact or Redactor()
        self._api_key = api_key
        self.client = client
        self.form = form
        self._contents = contents
        self.run_uid = run_uid
        self._transcripts = Transcripts()
        self._id_prefix = _id_prefix(run_uid)
        self.worker = worker

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self.client.in_flight)

    def payload(self, plan: RequestPlan) -> bytes:
        """The request's bytes; made ahead of its time, so that sending it is one write."""
        content = self._contents.of(plan, self.form.endpoint_of(plan.request_class))
        if plan.continues is not None or plan.with_answers or plan.answer_uses:
            content = self._in_its_conversation(plan, content)
        body = self.form.body_of(
            content,
            plan.output_tokens,
            plan.request_class,
            include_usage=self.client.target.include_usage,
            model=plan.model,
        )
        return self.wire(body, plan.index, plan.request_class)

    def _in_its_conversation(self, plan: RequestPlan, content: JsonObject) -> JsonObject:
        """The content with the conversation that it goes on with."""
        rest = {name: value for name, value in content.items() if name not in ("prompt", "messages")}
        new = content.get("messages") or [{"role": "user", "content": content.get("prompt")}]
        return rest | {"messages": self._transcripts.messages_of(plan, new)}

    def forget(self, plan: RequestPlan) -> None:
        """The request will not be sent: what was kept for it can go."""
        self._transcripts.release(plan)

    def wire(self, body: JsonObject, index: int, request_class: str) -> bytes:
        """Head and body of one request, with its ids and its class's own headers."""
        span = f"{index + 1:016x}"
        ids = {
            "X-Request-Id": f"{self._id_prefix}{index:012x}",
            "traceparent": f"00-{self.run_uid[:16]:0<16}{span}-{span}-01",
        } | self.form.headers_of(request_class)
        encoded = msgspec.json.encode(body)
        path = self.form.path_of(request_class)
        return self.client.target.request_bytes(path, encoded, ids, reuse=self.client.reuse)

    def send(
        self,
        plan: RequestPlan,
        payload: bytes,
        intended_at_ns: int,
        phase: str,
        step: int,
        on_record: OnRecord,
    ) -> None:
        """Send now; `on_record` is called once, in a hub callback."""
        keep_text = plan.answer_uses > 0

        def done(exchange: Exchange) -> None:
            record = self._safe_record(plan, exchange, intended_at_ns, phase, step)
            if keep_text and record.outcome in (Outcome.OK, Outcome.STOPPED):
                self._transcripts.keep(plan, self._answer_of(exchange))
            self._transcripts.release(plan)
            on_record(self._without_secrets(record), plan)

        def reader() -> StreamReader:
            return self.form.reader(plan.output_tokens, plan.request_class, keep_text=keep_text, items=plan.items)

        exchange = second_attempt.send(self.client, payload, lambda: self.payload(plan), reader, done, self._api_key)
        exchange.stop_after_events = self._contents.stop_after(plan)

    def _answer_of(self, exchange: Exchange) -> Answer:
        """What later requests tell of this one's answer."""
        reader = exchange.reader
        counted = (reader.usage.input_tokens, reader.output_tokens())
        tokens = None if None in counted else sum(filter(None, counted))
        reasoning = reader.text.reasoning()
        if not self._contents.keeps_reasoning and (reasoning or reader.usage.reasoning_tokens):
            # The next prompt differs from here on: what was reasoned is left out of it.
            return Answer(reader.text.answer(), "", counted[0])
        return Answer(reader.text.answer(), reasoning, tokens)

    def _safe_record(
        self, plan: RequestPlan, exchange: Exchange, intended_at_ns: int, phase: str, step: int
    ) -> StreamRecord:
        """Make a record even if a reply cannot be described: the request must not look unsent."""
        try:
            return self.record(plan, exchange, intended_at_ns, phase, step)
        except Exception as exc:
            logger.exception("error in the client while describing a reply")
            record = failed_record(plan, intended_at_ns, self.worker, phase, step, exc)
            return msgspec.structs.replace(record, sent_at_ns=exchange.sent_at_ns)

    def _without_secrets(self, record: StreamRecord) -> StreamRecord:
        """A server may send back the key that it was given."""
        found = {name: text for name in _SERVER_TEXTS if (text := getattr(record, name))}
        clean = {name: self._redact(text) for name, text in found.items()}
        return record if clean == found else msgspec.structs.replace(record, **clean)

    def record(self, plan: RequestPlan, exchange: Exchange, intended_at_ns: int, phase: str, step: int) -> StreamRecord:
        """The record of a finished exchange."""
        reader = exchange.reader
        origin = exchange.sent_at_ns or exchange.attempt_started_at_ns
        return StreamRecord(
            plan_index=plan.index,
            request_class=plan.request_class,
            worker=self.worker,
            step=step,
            phase=phase,
            planned_input_tokens=self._planned_input_tokens(plan),
            planned_output_tokens=plan.output_tokens,
            intended_at_ns=intended_at_ns,
            dispatched_at_ns=exchange.dispatched_at_ns,
            connect_at_ns=exchange.connect_at_ns,
            resolved_at_ns=exchange.resolved_at_ns,
            tcp_connected_at_ns=exchange.tcp_connected_at_ns,
            connected_at_ns=exchange.connected_at_ns,
            sent_at_ns=exchange.sent_at_ns,
            headers_at_ns=reader.headers_at_ns,
            first_byte_at_ns=reader.first_byte_at_ns,
            first_event_at_ns=reader.first_event_at_ns,
            first_token_at_ns=reader.first_token_at_ns,
            first_token_not_before_at_ns=reader.first_token_not_before_at_ns,
            first_answer_at_ns=reader.first_answer_at_ns,
            last_token_at_ns=reader.last_token_at_ns,
            done_at_ns=reader.done_at_ns,
            outcome=reader.outcome(),
            error=reader.error,
            http_status=reader.http_status,
            finish_reason=reader.choices.finish_reason,
            input_tokens=reader.usage.input_tokens or None,
            output_tokens=reader.output_tokens(),
            cached_tokens=reader.usage.cached_tokens,
            reasoning_tokens=reader.usage.reasoning_tokens,
            tpot_ns=reader.tpot_ns(),
            max_gap_ns=reader.max_gap_ns(),
            max_gap_least_ns=reader.max_gap_least_ns(),
            send_ns=exchange.send_ns,
            token_events=reader.token_events,
            events=reader.events,
            body_bytes=reader.body_bytes,
            merged_reads=reader.merged_reads,
            stamp_source=exchange.stamp_source,
            retries=exchange.retries,
            retry_after_s=reader.retry_after_s,
            request_id=reader.request_id,
            server_timing=reader.server_timing,
            warnings=reader.all_warnings(),
            arrivals=pack_arrivals(origin, reader.arrivals_at_ns),
            model=self.form.models[plan.model] if len(self.form.models) > 1 else None,
            items=reader.items,
            task=plan.session,
            turn=plan.turn if plan.session is not None else None,
            planned_cached_tokens=self._planned_cached_tokens(plan),
        )

    def _planned_input_tokens(self, plan: RequestPlan) -> int:
        """What the plan asks, behind a conversation that is as long as its answers really were."""
        told = self._transcripts.history_tokens(plan)
        return plan.input_tokens if told is None or plan.with_answers else plan.input_tokens - plan.cached_tokens + told

    def _planned_cached_tokens(self, plan: RequestPlan) -> int | None:
        """Prompt tokens that earlier requests shared: of a conversation, all that was asked and answered before."""
        if plan.continues is not None:
            return self._transcripts.history_tokens(plan)
        return 0 if plan.with_answers else plan.cached_tokens
