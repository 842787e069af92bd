"""Closed loop of conversations and tasks: users who do one, wait for its end and do the next.

Locust decides when a user begins. The steps of a task are sent by an open loop without a schedule, so that they wait
for answers, think times and one another as everywhere; this module chooses tasks and numbers their requests.
"""

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from surgeproof.loadgen.closed_loop import share_of
from surgeproof.loadgen.loop_protocols import Clock, RequestSender, Timer
from surgeproof.loadgen.open_loop import OpenLoop, Place
from surgeproof.loadgen.plan import Plan
from surgeproof.records import RequestPlan, StreamRecord
from surgeproof.scenario import LoadConfig

_SEED_STEP = 7_919
"""Added to a prompt's seed each time that a short plan starts again, so that no prompt repeats."""


class TaskUsers:
    """The tasks of one worker's users.

    Args:
        plan: all tasks, each a session of requests; it starts again at its end.
        load: tasks a step, phases.
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
        self._plan, self._load, self._clock = plan, load, clock
        self._worker, self._workers, self._start_at_ns = worker, workers, start_at_ns
        self._on_record = on_record
        sessions = plan.rows["session"]
        order = np.argsort(sessions, kind="stable")
        self._tasks = np.split(order, np.flatnonzero(np.diff(sessions[order])) + 1)
        self._begun = 0
        self._step_share = None if load.num_prompts is None else share_of(load.num_prompts, worker, workers)
        self._begun_by_step: Counter[int] = Counter()
        self._open_by_step: Counter[int] = Counter()
        self._step_start_ns: dict[int, int] = {}
        self._places: dict[int, Place] = {}
        self._missing: dict[int, int] = {}
        self._on_end: dict[int, Callable[[], None]] = {}
        self._stopped = False
        self._loop = OpenLoop(
            (), load, sender, clock, worker=worker, cap=load.max_concurrency, start_at_ns=start_at_ns,
            on_record=self._take, on_finished=lambda: None, place_of=self._place_of,
        )  # fmt: skip
        self.fire = self._loop.fire

    def start(self, timer: Timer) -> None:
        """Use this timer for steps that are due later."""
        self._loop.start(timer)

    def ask(self, request_class: str, step: int, on_end: Callable[[], None]) -> bool:
        """Begin a user's next task; False, and nothing is sent, when the step's share is used up or the load ends."""
        begun = self._begun_by_step[step]
        if self._stopped or (self._step_share is not None and begun >= self._step_share):
            return False
        self._begun_by_step[step] += 1
        self._open_by_step[step] += 1
        number = self._worker + self._begun * self._workers
        self._begun += 1
        requests = self._requests(number, request_class)
        self._places[number] = (self._phase(step, begun), step)
        self._missing[number] = len(requests)
        self._on_end[number] = on_end
        self._loop.begin(requests)
        return True

    def _requests(self, number: int, request_class: str) -> list[RequestPlan]:
        """The requests of a task, numbered anew where the plan has begun again."""
        rounds, place = divmod(number, len(self._tasks))
        shift = rounds * len(self._plan)
        return [self._moved(self._plan[int(row)], shift, number, request_class) for row in self._tasks[place]]

    @staticmethod
    def _moved(plan: RequestPlan, shift: int, number: int, request_class: str) -> RequestPlan:
        return msgspec.structs.replace(
            plan,
            index=plan.index + shift,
            after=tuple(index + shift for index in plan.after),
            continues=None if plan.continues is None else plan.continues + shift,
            session=number,
            request_class=request_class,
            prompt_seed=(plan.prompt_seed + _SEED_STEP * shift) % 2**63,
            # Only waits count here: a time of the plan is that of its schedule.
            think_ns=plan.think_ns or 0,
        )

    def _phase(self, step: int, begun: int) -> str:
        """Every step of a ladder has a warm-up of its own; the first one's begins with the load."""
        now_ns = self._clock.now_ns()
        first_ns = now_ns if self._step_start_ns else self._start_at_ns
        since_ns = now_ns - self._step_start_ns.setdefault(step, first_ns)
        return self._load.phase_of(begun * self._workers + self._worker, since_ns)

    def _place_of(self, plan: RequestPlan) -> Place:
        assert plan.session is not None, "a request of a task"
        return self._places[plan.session]

    def _take(self, record: StreamRecord) -> None:
        """Keep a record; the last one of a task ends its user's turn."""
        self._on_record(record)
        number = record.task
        assert number is not None, "a record of a task"
        self._missing[number] -= 1
        if self._missing[number] == 0:
            _, step = self._places.pop(number)
            self._open_by_step[step] -= 1
            del self._missing[number]
            self._on_end.pop(number)()

    def step_is_done(self, step: int) -> bool:
        """Whether the step's share of tasks has ended; never, where a step ends by time."""
        if self._step_share is None:
            return False
        return self._begun_by_step[step] >= self._step_share and not self._open_by_step[step]

    @property
    def busy(self) -> bool:
        """Whether a task that has begun goes on."""
        return self._loop.busy

    def stop(self) -> None:
        """Begin no more tasks; those that have begun go on."""
        self._stopped = True

    def close(self, reason: str) -> None:
        """Record what is left of the tasks that have begun."""
        self._loop.close(reason)
