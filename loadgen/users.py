"""The Locust side: user classes, load shapes, and the session that ties an engine to a runner.

Locust owns users, distribution and lifecycle; the schedule, the sockets and the records are the
engine's. Whoever runs Locust hands in a `Conductor` that makes the run and takes it back. Worker
processes learn of the run by messages:

    master -> worker  surgeproof_start  run, share and start time
                      surgeproof_step   the ladder's next step
                      surgeproof_stop   end of the load
    worker -> master  surgeproof_done   share (or step) sent and answered
                      surgeproof_ended  drained and spooled
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import gevent
import locust.stats
import msgspec
from gevent.event import Event
from locust import LoadTestShape, User, constant, events, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from surgeproof.clock import MonotonicClock
from surgeproof.config import Scenario, Secrets
from surgeproof.errors import SurgeproofError
from surgeproof.loadgen.engine import PLAN_FILE, SPEC_FILE, Engine, RunSpec
from surgeproof.loadgen.plan import Plan
from surgeproof.records import StreamRecord

logger = logging.getLogger(__name__)

_LEAD_LOCAL_S = 0.15  # Locust takes some 60 ms to spawn its first users
_LEAD_DISTRIBUTED_S = 1.0
_INTERRUPT_PATIENCE_S = 1.5
_CSV_INTERVAL_S = 0.2


class Conductor(Protocol):
    """Makes the run before the load and takes it back after it."""

    def add_arguments(self, parser: Any) -> None:
        """Add our flags to Locust's parser."""
        ...

    def configure(self, options: Any) -> Scenario:
        """Read flags and files; called once, before anything starts."""
        ...

    def begin(self, options: Any, users: int) -> tuple[RunSpec, Plan]:
        """Make plan and run; called when a test starts."""
        ...

    def complete(self, *, interrupted: bool) -> int | None:
        """Store and judge; returns the exit code, None to leave it to Locust."""
        ...


class SpoolingConductor:
    """For a Locust that `surgeproof run` started: the run lies ready in a folder, and its parent judges.

    The parent starts us while it still makes the plan; a line on standard input says that it is done.

    Args:
        run_dir: folder of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        if not sys.stdin.readline():
            sys.exit("the run was not begun")

    def add_arguments(self, parser: Any) -> None:
        """None: everything is in the run's folder."""

    def configure(self, options: Any) -> Scenario:  # noqa: ARG002
        """The scenario as our parent resolved it."""
        return self._spec().scenario

    def begin(self, options: Any, users: int) -> tuple[RunSpec, Plan]:  # noqa: ARG002
        """The run as our parent made it."""
        return self._spec(), Plan.load(self._run_dir / PLAN_FILE)

    def complete(self, *, interrupted: bool) -> int | None:  # noqa: ARG002
        """Our parent reads the spools."""
        return 0

    def _spec(self) -> RunSpec:
        return msgspec.json.decode((self._run_dir / SPEC_FILE).read_bytes(), type=RunSpec)


class ClassUser(User):
    """A user who asks, waits for the whole answer and asks again."""

    abstract = True
    wait_time = constant(0)
    request_class = "P1"

    @task
    def ask(self) -> None:
        """One request of this user's class."""
        self.environment.surgeproof.user_turn(self.request_class)


class P0User(ClassUser):
    """Urgent, payment-like traffic."""

    weight = 5
    request_class = "P0"


class P1User(ClassUser):
    """Ordinary queries."""

    weight = 3
    request_class = "P1"


class P2User(ClassUser):
    """Background, log-like traffic."""

    weight = 1
    request_class = "P2"


class ReplayUser(User):
    """Stands for one worker's open-loop dispatcher, so that Locust shows who is at work."""

    wait_time = constant(0)

    @task
    def watch(self) -> None:
        """The dispatcher sends on its own; there is nothing to do but to be there."""
        gevent.sleep(3600)


USER_CLASSES: dict[str, type[ClassUser]] = {"P0": P0User, "P1": P1User, "P2": P2User}


class OpenLoopShape(LoadTestShape):
    """One placeholder user a worker until the whole plan has been answered."""

    abstract = True

    def __init__(self, session: "Session") -> None:
        super().__init__()
        self._session = session
        self._started = False

    def reset_time(self) -> None:
        """A new test begins."""
        super().reset_time()
        self._started = False

    def tick(self) -> tuple[int, float] | None:
        """Block until the load is over; Locust asks again at once when we return."""
        workers = self._session.worker_count()
        if not self._started:
            self._started = True
            return workers, float(workers)
        self._session.wait_until_answered()
        return None


class LadderShape(LoadTestShape):
    """A closed loop in steps of users, each for a time or a number of requests."""

    abstract = True

    def __init__(self, session: "Session") -> None:
        super().__init__()
        self._session = session
        self._step = -1

    def reset_time(self) -> None:
        """A new test begins."""
        super().reset_time()
        self._step = -1

    def tick(self) -> tuple[int, float] | None:
        """Block until the step is over, then name the next one's users."""
        steps = self._session.scenario.load.concurrency
        if self._step >= 0:
            self._session.wait_until_step_is_over()
        self._step += 1
        if self._step >= len(steps):
            return None
        users = steps[self._step]
        self._session.enter_step(users)
        return users, float(users)


class Session:
    """One process's part in Locust: master, worker or both at once (local)."""

    def __init__(self, environment: Environment, conductor: Conductor) -> None:
        self.environment = environment
        self.runner: Any = environment.runner
        self.conductor = conductor
        self.engine: Engine | None = None
        self.scenario = Scenario()
        self.running = False
        self._interrupted = False
        self._step_users = 0
        self._plan_span_s = 0.0
        self._step_started = 0.0
        self._numbers: dict[str, int] = {}
        self._done: set[int] = set()
        self._ended: set[int] = set()
        self._changed = Event()

    # -- set-up ---------------------------------------------------------------------------------

    @property
    def is_worker(self) -> bool:
        """Whether another process conducts."""
        return isinstance(self.runner, WorkerRunner)

    def install(self) -> None:
        """Configure the process and listen to what Locust tells."""
        self.scenario = self.conductor.configure(self.environment.parsed_options)
        load = self.scenario.load
        if self.scenario.closed_loop or not load.says_when:
            self._weigh_classes(load.classes)
            if load.concurrency:
                self._set_shape(LadderShape(self))
        else:
            self.environment.user_classes = [ReplayUser]
            self._set_shape(OpenLoopShape(self))
        if self.is_worker:
            self.runner.register_message("surgeproof_start", self._on_start)
            self.runner.register_message("surgeproof_step", self._on_step)
            self.runner.register_message("surgeproof_stop", self._on_stop, concurrent=True)
        elif isinstance(self.runner, MasterRunner):
            self.runner.register_message("surgeproof_done", self._on_done)
            self.runner.register_message("surgeproof_ended", self._on_ended)
        self.environment.events.test_start.add_listener(self._on_test_start)
        self.environment.events.test_stopping.add_listener(self._on_test_stopping)
        self.environment.events.test_stop.add_listener(self._on_test_stop)
        self.environment.events.quitting.add_listener(self._on_quitting)
        # Python's own SIGINT would raise in the middle of a hub callback; this one runs in a greenlet.
        gevent.signal_handler(signal.SIGINT, self._on_interrupt)

    def _weigh_classes(self, weights: dict[str, float]) -> None:
        chosen = [name for name in USER_CLASSES if weights.get(name, 0) > 0]
        for name in chosen:
            USER_CLASSES[name].weight = weights[name]
        self.environment.user_classes = [USER_CLASSES[name] for name in chosen]

    def _set_shape(self, shape: LoadTestShape) -> None:
        shape.runner = self.runner
        self.environment.shape_class = shape

    # -- the conducting side --------------------------------------------------------------------

    def worker_count(self) -> int:
        """How many processes share the load."""
        return max(1, self.runner.worker_count) if isinstance(self.runner, MasterRunner) else 1

    def _on_test_start(self, **_: Any) -> None:
        if self.is_worker:
            return
        self._interrupted = False
        options = self.environment.parsed_options
        users = getattr(options, "num_users", None) or 1
        try:
            spec, plan = self.conductor.begin(options, users)
        except SurgeproofError as exc:
            self._give_up(exc)
            return
        self.running = True
        self._done, self._ended = set(), set()
        self._plan_span_s = max(plan.span_s, self.scenario.load.duration_s or 0.0)
        clock = MonotonicClock(spec.anchor_ns)
        if isinstance(self.runner, MasterRunner):
            clients = [client.id for client in self.runner.clients.ready]
            self._numbers = {client_id: number for number, client_id in enumerate(clients)}
            start_at_ns = clock.now_ns() + int(_LEAD_DISTRIBUTED_S * 1e9)
            spec_json = msgspec.json.encode(spec).decode()
            for client_id, number in self._numbers.items():
                share = {"worker": number, "workers": len(clients), "step": self._step_users}
                message = share | {"spec": spec_json, "start_at_ns": start_at_ns}
                self.runner.send_message("surgeproof_start", message, client_id)
        else:
            self._numbers = {"local": 0}
            secrets = Secrets.from_environment(dict(os.environ))
            self.engine = Engine(spec, secrets, plan, 0, 1, self._count, lambda: self._note_done(0))
            self.engine.step = self._step_users
            self.engine.start(clock.now_ns() + int(_LEAD_LOCAL_S * 1e9))
        self._step_started = time.monotonic()

    def _give_up(self, exc: SurgeproofError) -> None:
        """The run cannot be made: say so once and end Locust with the error's code."""
        sys.stderr.write(f"Error: {exc}\n")
        self.environment.process_exit_code = exc.exit_code
        gevent.spawn(self.runner.quit)

    def _alive(self) -> set[int]:
        """Numbers of the workers that still answer."""
        if not isinstance(self.runner, MasterRunner):
            return {0}
        missing = {client.id for client in self.runner.clients.missing}
        return {
            number
            for client_id, number in self._numbers.items()
            if client_id in self.runner.clients and client_id not in missing
        }

    def _wait_for(self, reported: set[int], deadline: float) -> None:
        """Wait until every living worker has reported, or the time is over."""
        while time.monotonic() < deadline and not self._alive() <= reported:
            self._changed.clear()
            self._changed.wait(timeout=min(0.2, max(0.0, deadline - time.monotonic())))

    def wait_until_answered(self) -> None:
        """Open loop: until all shares are answered, or the drain limit after the plan's end."""
        lead_s = _LEAD_DISTRIBUTED_S
        limit = self._step_started + lead_s + self._plan_span_s + self.scenario.load.drain_s
        self._wait_for(self._done, limit)

    def wait_until_step_is_over(self) -> None:
        """Closed loop: until the step's time is over or its requests are answered."""
        load = self.scenario.load
        limit = self._step_started + (load.duration_s if load.duration_s is not None else 1e9)
        if load.num_prompts is None:
            gevent.sleep(max(0.0, limit - time.monotonic()))
        else:
            self._wait_for(self._done, limit)

    def enter_step(self, users: int) -> None:
        """Tell every worker which step its next requests belong to."""
        self._step_users = users
        self._done.clear()
        self._step_started = time.monotonic()
        if isinstance(self.runner, MasterRunner):
            self.runner.send_message("surgeproof_step", {"step": users})
        elif self.engine is not None:
            self.engine.step = users

    def _on_done(self, msg: Any, **_: Any) -> None:
        self._note_done(int(msg.data["worker"]))

    def _note_done(self, worker: int) -> None:
        self._done.add(worker)
        self._changed.set()

    def _on_ended(self, msg: Any, **_: Any) -> None:
        self._ended.add(int(msg.data["worker"]))
        self._changed.set()

    def _on_test_stopping(self, **_: Any) -> None:
        self._end_load()

    def _on_test_stop(self, **_: Any) -> None:
        self._complete()

    def _on_quitting(self, **_: Any) -> None:
        """Locust leaves: orderly, in which case all is done, or by Ctrl-C."""
        if self.running or (self.engine is not None and not self.engine.finished.is_set()):
            self._interrupted = True
            self._end_load()
            self._complete()

    def _on_interrupt(self) -> None:
        """Keep and judge what was measured, then let Locust leave as after any Ctrl-C."""
        self._on_quitting()
        raise KeyboardInterrupt

    def _end_load(self) -> None:
        if self.engine is not None:
            self.engine.stop(interrupted=self._interrupted)
        if not self.running or not isinstance(self.runner, MasterRunner):
            return
        self.runner.send_message("surgeproof_stop", {"interrupted": self._interrupted})
        patience = _INTERRUPT_PATIENCE_S if self._interrupted else self.scenario.load.drain_s + 5
        self._wait_for(self._ended, time.monotonic() + patience)

    def _complete(self) -> None:
        if self.is_worker or not self.running:
            return
        self.running = False
        self.engine = None
        try:
            code = self.conductor.complete(interrupted=self._interrupted)
        except SurgeproofError as exc:
            sys.stderr.write(f"Error: {exc}\n")
            code = exc.exit_code
        if code is not None:
            self.environment.process_exit_code = code
        if getattr(self.environment.parsed_options, "csv_prefix", None):
            # Locust writes its CSV at intervals and not at the end: let it write the last requests.
            gevent.sleep(2 * _CSV_INTERVAL_S)

    # -- the working side -----------------------------------------------------------------------

    def user_turn(self, request_class: str) -> None:
        """One turn of a closed-loop user."""
        engine = self.engine
        if engine is None or not engine.ask(request_class):
            if engine is not None and engine.step_is_done():
                self._report_done()
            gevent.sleep(0.05)

    def _report_done(self) -> None:
        engine = self.engine
        if engine is None:
            return
        if self.is_worker:
            self.runner.send_message("surgeproof_done", {"worker": engine.worker})
        else:
            self._note_done(engine.worker)

    def _on_start(self, msg: Any, **_: Any) -> None:
        data = msg.data
        spec = msgspec.json.decode(data["spec"], type=RunSpec)
        self.scenario = spec.scenario
        plan = Plan.load(Path(spec.run_dir) / PLAN_FILE)
        secrets = Secrets.from_environment(dict(os.environ))
        self.engine = Engine(spec, secrets, plan, data["worker"], data["workers"], self._count, self._report_done)
        self.engine.step = data["step"]
        self.engine.start(data["start_at_ns"])

    def _on_step(self, msg: Any, **_: Any) -> None:
        if self.engine is not None:
            self.engine.step = int(msg.data["step"])

    def _on_stop(self, msg: Any, **_: Any) -> None:
        engine = self.engine
        if engine is not None:
            engine.stop(interrupted=bool(msg.data["interrupted"]))
            self.runner.send_message("surgeproof_ended", {"worker": engine.worker})

    def _count(self, record: StreamRecord) -> None:
        """Feed Locust's own statistics: its response time is the whole answer, never the head."""
        failed = None if record.ok else Exception(f"{record.outcome}: {record.error or ''}"[:200])
        start = record.intended_at_ns
        end = record.done_at_ns or record.dispatched_at_ns or start
        fire = self.environment.events.request.fire
        name = f"{self.scenario.target.endpoint} {record.request_class}"
        fire(
            request_type="POST",
            name=name,
            response_time=(end - start) / 1e6,
            response_length=record.body_bytes,
            exception=failed,
            context={},
        )
        if record.first_token_at_ns is not None:
            fire(
                request_type="TTFT",
                name=name,
                response_time=(record.first_token_at_ns - start) / 1e6,
                response_length=0,
                exception=None,
                context={},
            )


def install(conductor: Conductor) -> None:
    """Hook into Locust; called once by the locustfile."""
    locust.stats.CSV_STATS_INTERVAL_SEC = _CSV_INTERVAL_S

    @events.init_command_line_parser.add_listener
    def add_arguments(parser: Any, **_: Any) -> None:
        conductor.add_arguments(parser)

    @events.init.add_listener
    def on_init(environment: Environment, **_: Any) -> None:
        session = Session(environment, conductor)
        environment.surgeproof = session
        try:
            session.install()
        except SurgeproofError as exc:
            sys.stderr.write(f"Error: {exc}\n")
            sys.exit(exc.exit_code)
