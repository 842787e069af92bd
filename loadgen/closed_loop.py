"""Closed loop: users who ask, wait for the whole answer and ask again, in steps of a ladder.

Locust decides when each user sends. This module numbers one worker's requests, limits them to its share of
a step's requests, and sends; sender and clock are passed in.
"""

import itertools
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.loadgen.loop_protocols import Clock, RequestSender
from surgeproof.loadgen.plan import Plan
from surgeproof.records import REQUEST_CLASSES, Phase, RequestPlan, StreamRecord
from surgeproof.scenario import LoadConfig

_SEED_STEP = 7_919
"""Added to a prompt's seed each time that a short plan starts again, so that no prompt repeats."""


class ClosedLoop:
    """The requests of one worker's users.

    Args:
        plan: what users ask for, in order; it starts again at its end.
        load: requests a step, phases.
        sender: sends a request now and reports its record later.
        clock: the run's clock.
        worker: number of this worker, from 0.
        workers: how many share the load.
        start_at_ns: start of the load on the run's clock.
        on_record: called with each record.
    """

    def __init__(
        self,
        plan: Plan,
        load: LoadConfig,
        sender: RequestSender,
        clock: Clock,
        *,
        worker: int,
        workers: int,
        start_at_ns: int,
        on_record: Callable[[StreamRecord], None],
    ) -> None:
        self._plan, self._load, self._sender, self._clock = plan, load, sender, clock
        self._start_at_ns, self._on_record = start_at_ns, on_record
        self._worker, self._workers = worker, workers
        self._indexes = itertools.count(worker, workers)
        self._step_share = None if load.num_prompts is None else share_of(load.num_prompts, worker, workers)
        self._sent_by_step: dict[int, int] = {}
        self._step_start_ns: dict[int, int] = {}
        self._rows: dict[str, npt.NDArray[np.int64]] = {}
        self._counts: dict[str, Iterator[int]] = {}
        self._stopped = False

    def ask(self, request_class: str, step: int, on_answered: Callable[[], None]) -> bool:
        """Send a user's next request; False, and nothing is sent, when the step's share is used up or the load ends."""
        sent = self._sent_by_step.get(step, 0)
        if self._stopped or (self._step_share is not None and sent >= self._step_share):
            return False
        self._sent_by_step[step] = sent + 1
        plan = self._next(request_class)
        payload = self._sender.payload(plan)

        def done(record: StreamRecord, _plan: RequestPlan) -> None:
            self._on_record(record)
            on_answered()

        now = self._clock.now_ns()
        self._sender.send(plan, payload, now, self._phase(step, sent, now), step, done)
        return True

    def _phase(self, step: int, sent: int, now: int) -> Phase:
        """Every step has a warm-up of its own; the first one's begins with the load."""
        first_ns = now if self._step_start_ns else self._start_at_ns
        since_ns = now - self._step_start_ns.setdefault(step, first_ns)
        return self._load.phase_of(sent * self._workers + self._worker, since_ns)

    def step_is_done(self, step: int) -> bool:
        """Whether the step's share has been sent and answered; never, where a step ends by time."""
        if self._step_share is None:
            return False
        return self._sent_by_step.get(step, 0) >= self._step_share and not self._sender.in_flight

    def stop(self) -> None:
        """Send nothing more; answers are still waited for."""
        self._stopped = True

    def _next(self, request_class: str) -> RequestPlan:
        index = next(self._indexes)
        rounds, row = self._place(index, request_class)
        plan = self._plan[row]
        return msgspec.structs.replace(
            plan,
            index=index,
            request_class=request_class,
            prompt_seed=(plan.prompt_seed + _SEED_STEP * rounds) % 2**63,
        )

    def _place(self, index: int, request_class: str) -> tuple[int, int]:
        """How often the plan has begun again, and its row that a user asks: of the user's class, where these differ."""
        if not self._load.by_class:
            return divmod(index, len(self._plan))
        if request_class not in self._rows:
            rows = np.flatnonzero(self._plan.rows["request_class"] == REQUEST_CLASSES.index(request_class))
            self._rows[request_class] = rows if len(rows) else np.arange(len(self._plan))
            self._counts[request_class] = itertools.count(self._worker, self._workers)
        rows = self._rows[request_class]
        rounds, place = divmod(next(self._counts[request_class]), len(rows))
        return rounds, int(rows[place])


def share_of(count: int, worker: int, workers: int) -> int:
    """How many of `count` requests one of `workers` sends; the shares differ by one at most."""
    return count // workers + (worker < count % workers)
