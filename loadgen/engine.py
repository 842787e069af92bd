"""One worker's share of a run: the dispatcher, the closed loop's requests, health, the spool.

Owned by `users`, which knows Locust; this module knows gevent only. Open loop: each request of the
share is started at its absolute time, whatever the others do, up to a declared cap. Closed loop:
`ask` sends the next request of a user and waits for its end.
"""

import gc
import heapq
import itertools
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import gevent
import msgspec
from gevent.event import Event

from surgeproof.clock import MonotonicClock, measure_anchor_ns
from surgeproof.config import Scenario, Secrets
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.prompts import HuggingFaceTokenizer, PromptMaker
from surgeproof.loadgen.sender import CANCELLED, RequestForm, Sender, unsent_record
from surgeproof.loadgen.spool import Batch, HealthSample
from surgeproof.loadgen.target import Target
from surgeproof.loadgen.timer import WakeTimer
from surgeproof.loadgen.transport import NEVER_NS, Client
from surgeproof.records import RequestPlan, StreamRecord

PLAN_FILE = "plan.npy"
SPEC_FILE = "run.json"
_FLUSH_S = 0.5
_BEAT_S = 0.01
_PREPARE_AHEAD = 64


class RunSpec(msgspec.Struct, frozen=True):
    """What every worker must know, but for secrets and the plan itself.

    Attributes:
        uid: the run's global name.
        base_url: resolved endpoint.
        model: resolved model.
        anchor_ns: the master's realtime minus monotonic time; shared by the processes it forked.
        run_dir: where the master's host keeps plan and spools.
        include_usage: the endpoint takes `stream_options`.
    """

    uid: str
    scenario: Scenario
    base_url: str
    model: str
    anchor_ns: int
    run_dir: str
    include_usage: bool = True


class Outbox(Protocol):
    """Where an engine's batches go: a spool file, or one that is also sent to the master."""

    def append(self, batch: Batch) -> None:
        """Keep one batch."""
        ...

    def close(self) -> None:
        """There will be no more."""
        ...


class Engine:
    """Carries one worker's share.

    Args:
        spec: the run.
        secrets: headers with their values.
        plan: the whole plan.
        worker: this worker's number, from 0.
        workers: how many share the plan.
        clock: the run's clock, as this process reads it.
        outbox: where records and health samples go.
        on_record: told each record, for Locust's own statistics.
        on_finished: told once, when the share has been sent and answered.
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
        self.spec, self.plan, self.worker, self.workers = spec, plan, worker, workers
        self.load = spec.scenario.load
        self.clock = clock
        self.start_at_ns = 0
        self.on_record, self._on_finished = on_record, on_finished
        self.step = 0
        self.stopping = False
        self.finished = Event()
        config = spec.scenario.target
        target = Target(spec.base_url, secrets.headers, config.tls)
        target.include_usage = spec.include_usage
        target.resolve()
        self.client = Client(target, config.timeouts, reuse=config.reuse_connections, clock=self.clock)
        form = RequestForm(config, spec.model, self.load.priorities, tuple(config.models))
        tokenizer = HuggingFaceTokenizer(self.load.tokenizer) if self.load.tokenizer else None
        prompts = PromptMaker(self.load.seed, self.load.words_per_token, tokenizer)
        self.sender = Sender(self.client, form, prompts, spec.uid, worker, self.load.block_tokens)
        self._outbox = outbox
        self._records: list[StreamRecord] = []
        self._closed_indexes = itertools.count(worker, workers)
        self._step_counts: dict[int, int] = {}
        self._closed = False
        self._health: _Health | None = None
        self._flusher: gevent.Greenlet | None = None
        self._open_loop: _OpenLoop | None = None

    def start(self, start_at_ns: int) -> None:
        """Let the load begin: `start_at_ns` is the plan's 0 on the run's clock."""
        # What a load makes is freed by reference counts; collections would stop the loop for tens of ms.
        gc.collect()
        gc.disable()
        self.start_at_ns = start_at_ns
        self._health = _Health(self)
        self._flusher = gevent.spawn(self._flush_regularly)
        if not self.spec.scenario.closed_loop:
            self._open_loop = _OpenLoop(self, self.plan.share(self.worker, self.workers))

    # -- open loop ------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that are due but held back by the cap."""
        return self._open_loop.waiting if self._open_loop else 0

    # -- closed loop ----------------------------------------------------------------------------

    def ask(self, request_class: str) -> bool:
        """Send a user's next request and wait for its end; False when there is nothing more to ask."""
        if self.stopping or self._step_is_full():
            return False
        index = next(self._closed_indexes)
        row = self.plan[index % len(self.plan)]
        plan = msgspec.structs.replace(
            row,
            index=index,
            request_class=request_class,
            prompt_seed=(row.prompt_seed + 7_919 * (index // len(self.plan))) % 2**63,
        )
        payload = self.sender.payload(plan)
        answered = Event()

        def done(record: StreamRecord, _plan: RequestPlan) -> None:
            self.take(record)
            answered.set()

        now = self.clock.now_ns()
        phase = self.load.phase_of(index, now - self.start_at_ns)
        self.sender.send(plan, payload, now, phase, self.step, done)
        answered.wait()
        return True

    def _step_is_full(self) -> bool:
        """Whether this worker has asked its share of the step's requests."""
        wanted = self.load.num_prompts
        if wanted is None:
            return False
        share = wanted // self.workers + (self.worker < wanted % self.workers)
        asked = self._step_counts.get(self.step, 0)
        if asked >= share:
            return True
        self._step_counts[self.step] = asked + 1
        return False

    def step_is_done(self) -> bool:
        """Whether the step's share has been asked and answered."""
        if self.load.num_prompts is None:
            return False
        share = self.load.num_prompts // self.workers + (self.worker < self.load.num_prompts % self.workers)
        return self._step_counts.get(self.step, 0) >= share and not self.client.in_flight

    # -- records --------------------------------------------------------------------------------

    def take(self, record: StreamRecord) -> None:
        """Keep a record; it reaches the spool within half a second."""
        self._records.append(record)
        self.on_record(record)

    def flush(self, *, ended: bool = False) -> None:
        """Append what has gathered to the spool."""
        records, self._records = self._records, []
        health = self._health.taken() if self._health else []
        if records or health or ended:
            self._outbox.append(Batch(self.worker, records, health, ended))

    def _flush_regularly(self) -> None:
        while True:
            gevent.sleep(_FLUSH_S)
            self.flush()

    # -- end ------------------------------------------------------------------------------------

    def share_is_sent(self) -> None:
        """Called by the open loop after its last request has ended."""
        if not self.finished.is_set():
            self.finished.set()
            self._on_finished()

    def stop(self, *, interrupted: bool) -> None:
        """Send nothing more, wait for what is in flight, then record the rest and close.

        Args:
            interrupted: the user asked for an end now: what is in flight is cancelled at once.
        """
        if self._closed:
            return
        self._closed = True
        self.stopping = True
        deadline = time.monotonic() + (0.0 if interrupted else self.load.drain_s)
        while self.client.in_flight and time.monotonic() < deadline:
            gevent.sleep(0.01)
        if interrupted:
            self.client.cancel_all(CANCELLED, "the run was interrupted")
        else:
            late = f"drain timeout: not answered {self.load.drain_s:g} s after the end of the load"
            self.client.cancel_all("error:timeout", late)
        if self._open_loop is not None:
            self._open_loop.close("the run was interrupted" if interrupted else "the load ended before its time")
        if self._flusher is not None:
            self._flusher.kill()
        if self._health is not None:
            self._health.close()
        self.flush(ended=True)
        self._outbox.close()
        self.client.close()
        gc.enable()
        self.finished.set()


class _Due(NamedTuple):
    """A request whose bytes are made, and when it is to leave; in order of that time."""

    at_ns: int
    number: int
    plan: RequestPlan
    payload: bytes


class _OpenLoop:
    """Starts each request at its absolute time; no error of one start moves the next.

    With `turns: after_response` the later turns of a session are no part of the schedule: each is due
    when its user has read the answer before, its think time later, and not before its own time where
    the trace does not tell how long that is.
    """

    def __init__(self, engine: Engine, plans: Iterator[RequestPlan]) -> None:
        self._engine = engine
        self._later: dict[int, deque[RequestPlan]] = {}
        if engine.load.turns == "after_response":
            plans = self._first_turns(list(plans))
        self._plans = plans
        self._ready: deque[_Due] = deque()
        self._turns: list[_Due] = []
        self._exhausted = False
        self._cap = max(1, engine.load.max_concurrency // engine.workers)
        self._capped = False
        self._timer = WakeTimer(engine.client.loop, self._fire)
        self._preparer = gevent.spawn(self._prepare_ahead)
        engine.client.on_due = self._fire
        for _ in range(_PREPARE_AHEAD):
            if not self._prepare():
                break
        self._set_timer()

    def _first_turns(self, plans: list[RequestPlan]) -> Iterator[RequestPlan]:
        """Requests with a time of their own; the others wait for their session's answers."""
        for plan in plans:
            if plan.session >= 0 and plan.turn > 0:
                self._later.setdefault(plan.session, deque()).append(plan)
        return (plan for plan in plans if plan.session < 0 or plan.turn == 0)

    @property
    def waiting(self) -> int:
        """Due requests that the cap holds back."""
        now = self._engine.clock.now_ns()
        return sum(1 for due in (*self._ready, *self._turns) if due.at_ns <= now) if self._capped else 0

    def close(self, reason: str) -> None:
        """Record what was never sent."""
        self._engine.client.next_due_ns = NEVER_NS
        self._timer.close()
        self._preparer.kill()
        engine = self._engine
        held = (due.plan for due in (*self._ready, *self._turns))
        for plan in itertools.chain(held, self._plans, *self._later.values()):
            intended_at = engine.start_at_ns + plan.intended_ns
            phase = engine.load.phase_of(plan.index, plan.intended_ns)
            engine.take(unsent_record(plan, intended_at, engine.worker, phase, reason))
        self._ready.clear()
        self._turns.clear()

    def _prepare(self) -> bool:
        """Make the next request's bytes; False when there is none."""
        plan = next(self._plans, None)
        if plan is None:
            self._exhausted = True
            return False
        engine = self._engine
        self._ready.append(_Due(engine.start_at_ns + plan.intended_ns, plan.index, plan, engine.sender.payload(plan)))
        return True

    def _prepare_ahead(self) -> None:
        """Keep some requests ready, a little at a time, so that the loop is never held up for long."""
        while not self._exhausted:
            was_empty = not self._ready
            if len(self._ready) < _PREPARE_AHEAD:
                if self._prepare() and was_empty:
                    self._set_timer()
                gevent.sleep(0)
            else:
                gevent.sleep(0.01)
        self._finish_if_done()

    def _next_due(self) -> _Due | None:
        """The request that is to leave next."""
        if not self._ready and not self._exhausted:
            self._prepare()
        if self._turns and (not self._ready or self._turns[0] < self._ready[0]):
            return self._turns[0]
        return self._ready[0] if self._ready else None

    def _set_timer(self) -> None:
        due = self._next_due()
        if due is not None and not self._engine.stopping:
            due_ns = due.at_ns - self._engine.clock.anchor_ns
            self._engine.client.next_due_ns = due_ns
            self._timer.set(due_ns, time.monotonic_ns())

    def _fire(self) -> None:
        engine = self._engine
        if engine.stopping:
            return
        in_flight = engine.client.in_flight
        engine.client.next_due_ns = NEVER_NS
        self._capped = False
        while (due := self._next_due()) is not None and due.at_ns <= engine.clock.now_ns():
            if len(in_flight) >= self._cap:
                # An answer that comes in fires again; the time lost is in the response latency.
                self._capped = True
                return
            if self._turns and due is self._turns[0]:
                heapq.heappop(self._turns)
            else:
                self._ready.popleft()
            phase = engine.load.phase_of(due.plan.index, due.plan.intended_ns)
            engine.sender.send(due.plan, due.payload, due.at_ns, phase, 0, self._answered)
        self._set_timer()

    def _answered(self, record: StreamRecord, plan: RequestPlan) -> None:
        self._engine.take(record)
        if plan.session in self._later:
            self._schedule_next_turn(plan.session, record)
        if self._capped:
            self._fire()
        self._finish_if_done()

    def _schedule_next_turn(self, session: int, record: StreamRecord) -> None:
        """The user has the answer: say when the next question leaves."""
        turns = self._later[session]
        plan = turns.popleft()
        if not turns:
            del self._later[session]
        engine = self._engine
        answered_at = record.done_at_ns or engine.clock.now_ns()
        if plan.think_ns >= 0:
            at_ns = answered_at + plan.think_ns
        else:
            at_ns = max(answered_at, engine.start_at_ns + plan.intended_ns)
        heapq.heappush(self._turns, _Due(at_ns, plan.index, plan, engine.sender.payload(plan)))
        self._set_timer()

    def _finish_if_done(self) -> None:
        engine = self._engine
        if self._exhausted and not (self._ready or self._turns or self._later or engine.client.in_flight):
            engine.share_is_sent()


class _Health:
    """Samples how this process is doing, once a flush."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples_from = (time.monotonic_ns(), time.process_time_ns())
        self._lag_ns = 0
        self._gc_ns = 0
        self._gc_started_ns = 0
        self._anchor_ns = measure_anchor_ns()
        self._beat_at_ns = time.monotonic_ns()
        self._timer = engine.client.loop.timer(_BEAT_S, _BEAT_S)
        self._timer.start(self._beat)
        gc.callbacks.append(self._on_gc)

    def _beat(self) -> None:
        now = time.monotonic_ns()
        late = now - self._beat_at_ns - int(_BEAT_S * 1e9)
        self._beat_at_ns = now
        if self._engine.clock.now_ns() >= self._engine.start_at_ns:
            self._lag_ns = max(self._lag_ns, late)

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._gc_started_ns = now
        else:
            self._gc_ns = max(self._gc_ns, now - self._gc_started_ns)

    def taken(self) -> list[HealthSample]:
        """The sample since the last call, as a list of one; none for too short a time."""
        now, cpu = time.monotonic_ns(), time.process_time_ns()
        before, cpu_before = self._samples_from
        if now - before < 50_000_000:
            return []
        self._samples_from = (now, cpu)
        sample = HealthSample(
            at_ns=self._engine.clock.now_ns(),
            cpu_share=round((cpu - cpu_before) / (now - before), 4),
            loop_lag_ns=self._lag_ns,
            gc_pause_ns=self._gc_ns,
            in_flight=len(self._engine.client.in_flight),
            waiting=self._engine.waiting,
            clock_step_ns=measure_anchor_ns(4) - self._anchor_ns,
            rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            reads=self._engine.client.reads,
            late_reads=self._engine.client.late_reads,
        )
        self._engine.client.reads = self._engine.client.late_reads = 0
        self._lag_ns = self._gc_ns = 0
        return [sample]

    def close(self) -> None:
        """Stop sampling."""
        self._timer.stop()
        self._timer.close()
        gc.callbacks.remove(self._on_gc)
