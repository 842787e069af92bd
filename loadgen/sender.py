"""One planned request in, one stream record out.

Builds the request's body, hands it to the client and turns the finished exchange into a `StreamRecord`.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from surgeproof.loadgen import usage_fallback
from surgeproof.loadgen.arrivals_codec import pack_arrivals
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.loop_protocols import OnRecord
from surgeproof.loadgen.prompts import PromptMaker
from surgeproof.loadgen.stream import StreamReader
from surgeproof.loadgen.unsent import failed_record
from surgeproof.records import BLOCK_TOKENS, RequestPlan, StreamRecord
from surgeproof.redaction import Redactor
from surgeproof.scenario import ClassWork, TargetConfig
from surgeproof.strict_json import JsonObject

logger = logging.getLogger(__name__)

_SERVER_TEXTS = ("error", "finish_reason", "request_id", "server_timing")
PATHS = {"chat": "/chat/completions", "completions": "/completions"}


class RequestForm:
    """The JSON body of a request, from a plan or from a given prompt.

    Args:
        target: endpoint options.
        model: name of the model.
        priorities: `priority` value by class, sent only for classes named here.
        models: several models, of which each plan names one; empty for `model` alone.
        by_class: what the requests of a class have of their own.
    """

    def __init__(
        self,
        target: TargetConfig,
        model: str,
        priorities: dict[str, int] | None = None,
        models: tuple[str, ...] = (),
        by_class: Mapping[str, ClassWork] | None = None,
    ) -> None:
        self.target = target
        self._by_class = by_class or {}
        self.models = models or (model,)
        self.priorities = priorities or {}

    def body(
        self, prompt: str, max_tokens: int, request_class: str | None, *, include_usage: bool, model: int = 0
    ) -> JsonObject:
        """The body as plain data, of a prompt."""
        return self.body_of({"prompt": prompt}, max_tokens, request_class, include_usage=include_usage, model=model)

    def body_of(
        self, content: JsonObject, max_tokens: int, request_class: str | None, *, include_usage: bool, model: int = 0
    ) -> JsonObject:
        """The body as plain data, of a dataset's row, whose own fields stay as they are."""
        target = self.target
        body: JsonObject = {"model": self.models[model]}
        if target.endpoint == "chat" and "messages" not in content:
            body["messages"] = [{"role": "user", "content": content["prompt"]}]
            content = {name: value for name, value in content.items() if name != "prompt"}
        body[target.max_tokens_field] = max_tokens
        if target.temperature is not None:
            body["temperature"] = target.temperature
        body |= content
        body["stream"] = True
        if include_usage:
            body["stream_options"] = {"include_usage": True}
        if target.ignore_eos:
            body["ignore_eos"] = True
        if request_class in self.priorities:
            body["priority"] = self.priorities[request_class]
        body |= target.extra_body
        if (work := self._by_class.get(request_class or "")) is not None:
            body |= work.extra_body
        for name in (*target.omit, *(() if include_usage else ("stream_options",))):
            body.pop(name, None)
        return body

    def headers_of(self, request_class: str) -> dict[str, str]:
        """Headers that the requests of a class carry."""
        work = self._by_class.get(request_class)
        return work.headers if work is not None else {}

    def reader(self, max_tokens: int, *, keep_text: bool = False) -> StreamReader:
        """What follows the reply to such a request."""
        return StreamReader(max_tokens, fixed_length=self.target.fixes_lengths, keep_text=keep_text)


def _id_prefix(run_uid: str) -> str:
    """The first 24 characters of a UUID (version 4) that names the run; its last 12 digits are a request's index."""
    digits = hashlib.blake2b(run_uid.encode(), digest_size=9).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-"


class Sender:
    """Sends planned requests and reports each exactly once.

    Args:
        client: the client.
        form: how bodies are built.
        prompts: where their text comes from.
        run_uid: names the run in each request's id and trace parent.
        worker: number of this worker.
        redact: takes secrets out of what servers send back.
        block_tokens: tokens of a block that a hash id names.
    """

    def __init__(
        self,
        client: Client,
        form: RequestForm,
        prompts: PromptMaker,
        run_uid: str,
        worker: int,
        redact: Redactor | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._redact = redact or Redactor()
        self.block_tokens = block_tokens
        self.client = client
        self.form = form
        self.prompts = prompts
        self.run_uid = run_uid
        self._id_prefix = _id_prefix(run_uid)
        self.worker = worker

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self.client.in_flight)

    def payload(self, plan: RequestPlan) -> bytes:
        """The request's bytes; made ahead of its time, so that sending it is one write."""
        target = self.client.target
        if plan.content is not None:
            content = msgspec.json.decode(plan.content, type=dict[str, Any])
            body = self.form.body_of(
                content, plan.output_tokens, plan.request_class, include_usage=target.include_usage, model=plan.model
            )
            return self.wire(body, plan.index, plan.request_class)
        if plan.hash_ids:
            prompt = self.prompts.shared_text(plan.input_tokens, plan.prompt_seed, plan.hash_ids, self.block_tokens)
        else:
            prompt = self.prompts.text(plan.input_tokens, plan.prompt_seed)
        body = self.form.body(
            prompt, plan.output_tokens, plan.request_class, include_usage=target.include_usage, model=plan.model
        )
        return self.wire(body, plan.index, plan.request_class)

    def wire(self, body: JsonObject, index: int, request_class: str) -> bytes:
        """Head and body of one request, with its ids and its class's own headers."""
        span = f"{index + 1:016x}"
        ids = {
            "X-Request-Id": f"{self._id_prefix}{index:012x}",
            "traceparent": f"00-{self.run_uid[:16]:0<16}{span}-{span}-01",
        } | self.form.headers_of(request_class)
        encoded = msgspec.json.encode(body)
        path = PATHS[self.form.target.endpoint]
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

        def done(exchange: Exchange) -> None:
            record = self._safe_record(plan, exchange, intended_at_ns, phase, step)
            on_record(self._without_secrets(record), plan)

        usage_fallback.send(
            self.client, payload, lambda: self.payload(plan), lambda: self.form.reader(plan.output_tokens), done
        )

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
            planned_input_tokens=plan.input_tokens,
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
        )
