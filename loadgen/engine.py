"""One worker's share of a run: builds client, sender and loop, drives them by gevent, spools the records.

Owned by the Locust modules, which know users and messages; this one knows gevent only. The schedule is
`open_loop`'s, the requests of users are `closed_loop`'s.
"""

import gc
import logging
from collections.abc import Callable
from typing import Protocol

import gevent
from gevent.event import Event

from surgeproof.clock import MonotonicClock
from surgeproof.credentials import Secrets
from surgeproof.loadgen.api_key import ApiKey, with_key
from surgeproof.loadgen.client import Client
from surgeproof.loadgen.closed_loop import ClosedLoop
from surgeproof.loadgen.content import ContentMaker
from surgeproof.loadgen.dial import reserve_descriptors
from surgeproof.loadgen.health import Gauges, HealthMonitor
from surgeproof.loadgen.host_cpu import HostCpu
from surgeproof.loadgen.open_loop import OpenLoop
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.prompts import HuggingFaceTokenizer, PromptMaker
from surgeproof.loadgen.request_form import RequestForm, endpoint_headers
from surgeproof.loadgen.sender import Sender
from surgeproof.loadgen.spec import RunSpec
from surgeproof.loadgen.spool import Batch
from surgeproof.loadgen.target import Target
from surgeproof.loadgen.task_users import TaskUsers
from surgeproof.loadgen.timer import DispatchTimer
from surgeproof.outcomes import Outcome
from surgeproof.records import StreamRecord
from surgeproof.redaction import Redactor, secrets_of_headers, secrets_of_url

_FLUSH_S = 0.25
_FLUSH_RECORDS = 64
"""Records in one batch: encoding and writing more would keep the event loop from its sockets for milliseconds."""
_MAX_UNWRITTEN_BYTES = 64_000_000
"""Records that wait in memory for a disk with space; with more than that, the load ends."""
_WRITE_RETRY_S = 30.0
_PREPARE_PAUSE_S = 0.01
_DRAIN_POLL_S = 0.01


logger = logging.getLogger(__name__)


class Outbox(Protocol):
    """Where an engine's batches go: a spool file, or one that is also sent to the master."""

    @property
    def unwritten_bytes(self) -> int:
        """Size of the batches that could not be written yet."""
        ...

    def append(self, batch: Batch) -> None:
        """Keep one batch."""
        ...

    def write_rest(self) -> bool:
        """Try once more to write what could not be written; whether all is safe now."""
        ...

    def close(self) -> None:
        """There will be no more."""
        ...


class Engine:
    """Sends one worker's share. After `stop`, `lost_bytes` is what it could not record.

    Args:
        spec: the run.
        secrets: headers with their values.
        plan: the whole plan.
        worker: this worker's number, from 0.
        workers: how many share the plan.
        clock: the run's clock, as this process reads it.
        outbox: where records and health samples go.
        on_record: called with each record, for Locust's own statistics.
        on_finished: called once, when the share has been sent and answered.
    """

    def __init__(
        self,
        spec: RunSpec,
        secrets: Secrets,
        plan: Plan,
        worker: int,
        workers: int,
        clock: MonotonicClock,
        outbox: Outbox,
        on_record: Callable[[StreamRecord], None],
        on_finished: Callable[[], None],
    ) -> None:
        self.step = 0
        self.lost_bytes = 0
        self._scenario, self._load = spec.scenario, spec.scenario.load
        self._plan, self._worker, self._workers, self._clock = plan, worker, workers, clock
        self._outbox, self._on_record, self._on_finished = outbox, on_record, on_finished
        config = self._scenario.target
        secrets = with_key(secrets)
        target = Target(spec.base_url, endpoint_headers(config.endpoint, secrets.headers), config.tls)
        target.include_usage = spec.include_usage
        target.resolve()
        reserve_descriptors(self._load.max_concurrency // workers)
        self.client = Client(target, config.timeouts, reuse=config.reuse_connections, clock=clock)
        models = (*(config.models or (spec.model,)), *self._load.models_of_classes())
        form = RequestForm(config, spec.model, self._load.priorities, models, self._load.by_class)
        tokenizer = HuggingFaceTokenizer(self._load.tokenizer) if self._load.tokenizer else None
        prompts = PromptMaker(self._load.seed, self._load.prompt_salt or "", self._load.words_per_token, tokenizer)
        redact = Redactor([*secrets_of_headers(secrets.headers), *secrets_of_url(spec.base_url)])
        contents = ContentMaker(prompts, self._load)

        def use(renewed: Secrets) -> None:
            redact.learn(secrets_of_headers(renewed.headers))
            target.headers = endpoint_headers(config.endpoint, renewed.headers)

        self._api_key = ApiKey(secrets, use) if secrets.api_key_command else None
        self._sender = Sender(self.client, form, contents, spec.uid, worker, redact, self._api_key)
        self._records: list[StreamRecord] = []
        self._open_loop: OpenLoop | None = None
        self._closed_loop: ClosedLoop | TaskUsers | None = None
        self._timer: DispatchTimer | None = None
        self._health: HealthMonitor | None = None
        self._host_cpu: HostCpu | None = None
        self._greenlets: list[gevent.Greenlet] = []
        self._closed = False
        self._start_at_ns = 0

    def start(self, start_at_ns: int) -> None:
        """Begin the load: `start_at_ns` is the plan's 0 on the run's clock."""
        # What a load makes is freed by reference counts; collections would stop the loop for tens of ms.
        gc.collect()
        gc.disable()
        self._start_at_ns = start_at_ns
        self._host_cpu = HostCpu()
        self._health = HealthMonitor(self._clock, start_at_ns, self._gauges, taken=self._host_cpu.taken)
        self._health.watch(self.client.loop)
        self._greenlets.append(gevent.spawn(self._flush_regularly))
        if self._api_key is not None:
            self._api_key.start()
        if self._scenario.closed_loop:
            kind = ClosedLoop if self._plan.steps is None else TaskUsers
            users = self._closed_loop = kind(
                self._plan, self._load, self._sender, self._clock, worker=self._worker, workers=self._workers,
                start_at_ns=start_at_ns, on_record=self._take,
            )  # fmt: skip
            if isinstance(users, TaskUsers):
                self._timer = DispatchTimer(self.client, self._clock, users.fire)
                users.start(self._timer)
            return
        loop = self._open_loop = OpenLoop(
            self._plan.share(self._worker, self._workers), self._load, self._sender, self._clock,
            worker=self._worker, cap=max(1, self._load.max_concurrency // self._workers), start_at_ns=start_at_ns,
            on_record=self._take, on_finished=self._on_finished,
            steps=self._plan.steps_of(self._worker, self._workers),
        )  # fmt: skip
        self._timer = DispatchTimer(self.client, self._clock, loop.fire)
        loop.start(self._timer)
        self._greenlets.append(gevent.spawn(self._prepare_ahead, loop))

    def ask(self, request_class: str) -> bool:
        """Send a user's next request and wait for its end; False when there is nothing more to send."""
        answered = Event()
        if self._closed_loop is None or not self._closed_loop.ask(request_class, self.step, answered.set):
            return False
        answered.wait()
        return True

    def step_is_done(self) -> bool:
        """Whether this worker's share of the current step has been sent and answered."""
        return self._closed_loop is not None and self._closed_loop.step_is_done(self.step)

    def stop(self, *, interrupted: bool) -> None:
        """Send nothing more, wait for what is in flight, then record the rest and close.

        Args:
            interrupted: the user asked for an end now: what is in flight is cancelled at once.
        """
        if self._closed:
            return
        self._closed = True
        for loop in (self._open_loop, self._closed_loop):
            if loop is not None:
                loop.stop()
        deadline_ns = 0 if interrupted else self._load_end_ns() + round(self._load.drain_s * 1e9)
        tasks = self._closed_loop if isinstance(self._closed_loop, TaskUsers) else None
        while (self.client.in_flight or (tasks and tasks.busy)) and self._clock.now_ns() < deadline_ns:
            gevent.sleep(_DRAIN_POLL_S)
        if interrupted:
            self.client.cancel_all(Outcome.CANCELLED, "the run was interrupted")
        else:
            late = f"drain timeout: not answered {self._load.drain_s:g} s after the end of the load"
            self.client.cancel_all(Outcome.TIMEOUT, late)
        for unsent in (self._open_loop, tasks):
            if unsent is not None:
                unsent.close("the run was interrupted" if interrupted else "the load ended before its planned end")
        for greenlet in self._greenlets:
            greenlet.kill()
        for part in (self._api_key, self._health, self._host_cpu):
            if part is not None:
                part.close()
        self._flush_all()
        self._wait_until_written(interrupted=interrupted)
        self._outbox.close()
        if self._timer is not None:
            self._timer.close()
        self.client.close()
        gc.enable()

    def _load_end_ns(self) -> int:
        """When the load ended: now, or at the plan's end, after which the controller has waited already."""
        now_ns = self._clock.now_ns()
        if self._open_loop is None:
            return now_ns
        span_s = max(self._plan.span_s, self._load.duration_s or 0.0)
        return min(now_ns, self._start_at_ns + round(span_s * 1e9))

    def _gauges(self) -> Gauges:
        client, waiting = self.client, self._open_loop.waiting if self._open_loop else 0
        gauges = Gauges(len(client.in_flight), waiting, client.reads, client.late_reads)
        client.reads = client.late_reads = 0
        return gauges

    def _take(self, record: StreamRecord) -> None:
        """Keep a record; it reaches the spool within half a second."""
        self._records.append(record)
        self._on_record(record)

    def _flush(self, *, ended: bool = False) -> None:
        """Append the oldest records to the spool, a batch of them."""
        records, self._records = self._records[:_FLUSH_RECORDS], self._records[_FLUSH_RECORDS:]
        health = self._health.take() if self._health else []
        if records or health or ended:
            self._outbox.append(Batch(self._worker, records, health, ended))

    def _flush_all(self) -> None:
        while len(self._records) > _FLUSH_RECORDS:
            self._flush()
        self._flush(ended=True)

    def _wait_until_written(self, *, interrupted: bool) -> None:
        """A full disk may be emptied: wait a while for it."""
        limit_s = 0.0 if interrupted else _WRITE_RETRY_S
        while not self._outbox.write_rest() and limit_s > 0:
            gevent.sleep(_FLUSH_S)
            limit_s -= _FLUSH_S
        self.lost_bytes = self._outbox.unwritten_bytes
        if self.lost_bytes:
            logger.error("%d bytes of records could not be written and are lost: the disk is full", self.lost_bytes)

    def _flush_regularly(self) -> None:
        while True:
            gevent.sleep(_FLUSH_S)
            self._flush()
            if self._outbox.unwritten_bytes > _MAX_UNWRITTEN_BYTES:
                logger.error("nothing can be recorded, so nothing more is sent: free space on the spool's disk")
                for loop in (self._open_loop, self._closed_loop):
                    if loop is not None:
                        loop.stop()
                self._on_finished()
                return
            while len(self._records) >= _FLUSH_RECORDS:
                gevent.sleep(0)
                self._flush()

    def _prepare_ahead(self, loop: OpenLoop) -> None:
        """Keep some requests ready, a little at a time, so that the event loop is never blocked for long."""
        while not loop.exhausted:
            gevent.sleep(0 if loop.prepare() else _PREPARE_PAUSE_S)
