"""Open loop: each request starts at its absolute time, whatever the others do, up to a cap.

Owns the schedule of one worker's share and nothing else: sender, clock and timer are passed in, so it
runs under a manual clock as it does under gevent. A request that is held back by the cap leaves when an
answer makes room; the time lost is in its response latency. An error of one start becomes that
request's record and moves no other.

Steps that wait for answers (later turns of conversations, steps of tasks) are no part of the schedule: an answer makes
them due (`waiting_steps`).
"""

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from surgeproof.loadgen.loop_protocols import Clock, RequestSender, Timer
from surgeproof.loadgen.unsent import failed_record, unsent_record
from surgeproof.loadgen.waiting_steps import WaitingSteps
from surgeproof.outcomes import Outcome
from surgeproof.records import RequestPlan, StreamRecord
from surgeproof.scenario import LoadConfig

logger = logging.getLogger(__name__)

PREPARE_AHEAD = 64
"""Requests whose bytes are made before they are due."""
Place = tuple[str, int]
"""Phase and step of a ladder that a request belongs to."""


class _Due(NamedTuple):
    """A request whose bytes are made, and when it is to leave; in order of that time."""

    at_ns: int
    number: int
    plan: RequestPlan
    payload: bytes


class OpenLoop:
    """Starts the requests of one worker's share.

    Args:
        plans: the share's requests with a time of their own, in order of it.
        load: phases.
        sender: sends a request now and reports its record later.
        clock: the run's clock.
        worker: number of this worker.
        cap: requests in flight at most.
        start_at_ns: time of the plan's 0 on the run's clock.
        on_record: called with each record.
        on_finished: called once, when the whole share has ended.
        steps: the share's requests that wait for answers.
        place_of: phase and step of a request; by its planned time where None.
    """

    def __init__(
        self,
        plans: Iterable[RequestPlan],
        load: LoadConfig,
        sender: RequestSender,
        clock: Clock,
        *,
        worker: int,
        cap: int,
        start_at_ns: int,
        on_record: Callable[[StreamRecord], None],
        on_finished: Callable[[], None],
        steps: Iterable[RequestPlan] = (),
        place_of: Callable[[RequestPlan], Place] | None = None,
    ) -> None:
        self._place_of = place_of or self._by_planned_time
        self._load, self._sender, self._clock = load, sender, clock
        self._worker, self._cap, self._start_at_ns = worker, cap, start_at_ns
        self._on_record, self._on_finished = on_record, on_finished
        self._timer: Timer | None = None
        self._timer_set_ns: int | None = None
        self._waiting_steps = WaitingSteps(start_at_ns)
        self._plans = iter(plans)
        for step in steps:
            self._waiting_steps.add(step)
        self._ready: deque[_Due] = deque()
        self._turns: list[_Due] = []
        self._exhausted = False
        self._capped = False
        self._stopped = False
        self._finished = False

    def start(self, timer: Timer) -> None:
        """Make the first requests ready and set the timer."""
        self._timer = timer
        while len(self._ready) < PREPARE_AHEAD and self._prepare():
            pass
        self._set_timer()
        self._finish_if_done()

    def prepare(self) -> bool:
        """Make one more request ready where there is room; False when there is nothing to do now."""
        if self._exhausted or len(self._ready) >= PREPARE_AHEAD:
            return False
        was_empty = not self._ready
        if self._prepare() and was_empty:
            self._set_timer()
        self._finish_if_done()
        return True

    @property
    def exhausted(self) -> bool:
        """Whether every request of the share has been made ready."""
        return self._exhausted

    @property
    def waiting(self) -> int:
        """Due requests that the cap holds back."""
        if not self._capped:
            return 0
        now = self._clock.now_ns()
        return sum(1 for due in (*self._ready, *self._turns) if due.at_ns <= now)

    def fire(self) -> None:
        """Start what is due, then set the timer for the next request."""
        if self._stopped:
            return
        self._timer_set_ns = None
        self._capped = False
        while (due := self._next_due()) is not None and due.at_ns <= self._clock.now_ns():
            if self._sender.in_flight >= self._cap:
                # The next answer fires again.
                self._capped = True
                return
            if self._turns and due is self._turns[0]:
                heapq.heappop(self._turns)
            else:
                self._ready.popleft()
            self._start(due)
        self._set_timer()
        self._finish_if_done()

    def begin(self, plans: Iterable[RequestPlan]) -> None:
        """Start a task now, beside the schedule: its first steps at once, the others when they are due."""
        now_ns = self._clock.now_ns()
        for plan in plans:
            if plan.after:
                self._waiting_steps.add(plan)
            else:
                heapq.heappush(self._turns, self._due(plan, now_ns))
        self.fire()

    @property
    def busy(self) -> bool:
        """Whether a request is unanswered, due or waiting for an answer."""
        return bool(self._turns or self._waiting_steps or self._sender.in_flight)

    def stop(self) -> None:
        """Start nothing more; answers are still waited for."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self, reason: str) -> None:
        """Record what was never sent."""
        self.stop()
        begun = [due.plan for due in self._turns]
        prepared = (due.plan for due in self._ready)
        for plan in itertools.chain(prepared, self._plans, begun, self._waiting_steps):
            # Steps of a task that has begun are what is left of it; its time tells that it was not finished.
            skipped = plan.needs_answers and bool(plan.after)
            self._record_unsent(plan, reason, Outcome.SKIPPED if skipped else Outcome.NOT_SENT)
        self._ready.clear()
        self._turns.clear()
        self._waiting_steps.clear()

    def _record_unsent(self, plan: RequestPlan, reason: str, outcome: Outcome) -> None:
        self._sender.forget(plan)
        record = unsent_record(plan, self._start_at_ns, self._worker, self._load, reason, outcome)
        phase, step = self._place_of(plan)
        self._on_record(msgspec.structs.replace(record, phase=phase, step=step))

    def _by_planned_time(self, plan: RequestPlan) -> Place:
        return self._load.phase_of(plan.index, plan.intended_ns or 0), 0

    def _prepare(self) -> bool:
        """Make the next request's bytes; False when there is none."""
        plan = next(self._plans, None)
        if plan is None:
            self._exhausted = True
            return False
        self._ready.append(self._due(plan, self._start_at_ns + (plan.intended_ns or 0)))
        return True

    def _due(self, plan: RequestPlan, at_ns: int) -> _Due:
        return _Due(at_ns, plan.index, plan, self._sender.payload(plan))

    def _next_due(self) -> _Due | None:
        """The request that is to leave next."""
        if not self._ready and not self._exhausted:
            self._prepare()
        if self._turns and (not self._ready or self._turns[0] < self._ready[0]):
            return self._turns[0]
        return self._ready[0] if self._ready else None

    def _set_timer(self) -> None:
        due = self._next_due()
        if due is not None and not self._stopped and self._timer is not None and due.at_ns != self._timer_set_ns:
            self._timer_set_ns = due.at_ns
            self._timer.set(due.at_ns)

    def _start(self, due: _Due) -> None:
        plan = due.plan
        phase, step = self._place_of(plan)
        try:
            self._sender.send(plan, due.payload, due.at_ns, phase, step, self._answered)
        except Exception as exc:
            logger.exception("error in the client while starting a request")
            self._answered(failed_record(plan, due.at_ns, self._worker, phase, step, exc), plan)

    def _answered(self, record: StreamRecord, plan: RequestPlan) -> None:
        self._on_record(record)
        if self._waiting_steps:
            self._follow(plan, record)
        if self._capped:
            self.fire()
        self._finish_if_done()

    def _follow(self, plan: RequestPlan, record: StreamRecord) -> None:
        """A request has ended: what waits for it is due, or skipped."""
        ok = record.ok or record.outcome == Outcome.STOPPED
        freed = self._waiting_steps.answered(plan.index, record.done_at_ns or self._clock.now_ns(), ok=ok)
        for step in freed.skipped:
            reason = f"not sent: step {plan.turn} of its task ended as {record.outcome}"
            self._record_unsent(step, reason, Outcome.SKIPPED)
        for step, at_ns in freed.due:
            heapq.heappush(self._turns, self._due(step, at_ns))
        if freed.due:
            # A step without a wait leaves now: through the timer it would leave after all that is still to be read.
            self.fire()

    def _finish_if_done(self) -> None:
        pending = self._ready or self._turns or self._waiting_steps or self._sender.in_flight
        if self._exhausted and not pending and not self._finished:
            self._finished = True
            self._on_finished()
