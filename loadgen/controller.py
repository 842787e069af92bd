"""The run controller of a load under Locust: begins a run, starts and stops its workers, completes it.

Whoever runs Locust passes a `RunOwner` that makes runs and judges them. The worker group is this process
alone (`LocalWorker`) or the workers of a Locust master (`workers.RemoteWorkers`).
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import gevent
import locust.stats
import msgspec
from gevent.event import Event
from gevent.lock import RLock
from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from surgeproof.clock import MonotonicClock
from surgeproof.credentials import Secrets
from surgeproof.errors import SurgeproofError
from surgeproof.exit_codes import ExitCode
from surgeproof.loadgen.engine import Engine
from surgeproof.loadgen.exposure import LOOPBACK, check_page, guard_page
from surgeproof.loadgen.locust_load import ProcessLoad
from surgeproof.loadgen.parent_death import end_with_parent
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.spec import PARENT_VARIABLE, PLAN_FILE, SPEC_FILE, TOKEN_VARIABLE, RunSpec
from surgeproof.loadgen.spool import SpoolWriter, spool_path
from surgeproof.loadgen.users import USER_CLASSES, LadderShape, OpenLoopShape, ReplayUser
from surgeproof.loadgen.worker_channel import protect_channel
from surgeproof.loadgen.workers import RemoteWorkers, WorkerController
from surgeproof.scenario import Scenario

logger = logging.getLogger(__name__)

_LEAD_S = 0.15  # Locust takes some 60 ms to spawn its first users
_INTERRUPT_TIMEOUT_S = 1.5
_DRAIN_GRACE_S = 5.0
_CSV_INTERVAL_S = 0.2


class RunOwner(Protocol):
    """Makes the run before the load, and stores and judges it after."""

    def add_arguments(self, parser: Any) -> None:
        """Add our flags to Locust's parser."""
        ...

    def configure(self, options: Any) -> Scenario:
        """Read flags and files; called once, before anything starts."""
        ...

    def begin(self, options: Any, users: int) -> tuple[RunSpec, Plan]:
        """Make plan and run; called when a test starts."""
        ...

    def complete(self, signal_number: int | None) -> int | None:
        """Store and judge; returns the exit code, None to leave it to Locust.

        Args:
            signal_number: the signal that ended the load early.
        """
        ...


class PreparedRun:
    """The `RunOwner` of a Locust that `surgeproof run` started: the run is in a folder, and the parent judges.

    The parent starts Locust while it still makes the plan; a line on standard input says that it is ready.

    Args:
        run_dir: folder of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        end_with_parent(int(os.environ[PARENT_VARIABLE]))
        if not sys.stdin.readline():
            sys.exit("the run was not started")

    def add_arguments(self, parser: Any) -> None:
        """Adds none: everything is in the run's folder."""

    def configure(self, options: Any) -> Scenario:  # noqa: ARG002
        """The scenario as the parent resolved it."""
        return self._spec().scenario

    def begin(self, options: Any, users: int) -> tuple[RunSpec, Plan]:  # noqa: ARG002
        """The run as the parent made it."""
        return self._spec(), Plan.load(self._run_dir / PLAN_FILE)

    def complete(self, signal_number: int | None) -> int | None:  # noqa: ARG002
        """The parent reads the spools."""
        return 0

    def _spec(self) -> RunSpec:
        return msgspec.json.decode((self._run_dir / SPEC_FILE).read_bytes(), type=RunSpec)


class WorkerGroup(Protocol):
    """The processes that send the load."""

    def begin(self, spec: RunSpec, plan: Plan, step: int) -> None:
        """Give every worker the run and let all start at one time.

        Raises:
            SurgeproofError: no worker can.
        """
        ...

    def enter_step(self, step: int) -> None:
        """Set the step that the next requests of a closed loop belong to."""
        ...

    def is_done(self) -> bool:
        """Whether every reachable worker has sent its share (or step) and got the answers."""
        ...

    def stop(self, *, interrupted: bool, timeout_s: float) -> None:
        """End the load; returns when all have drained and spooled, or after the timeout."""
        ...

    @property
    def lost_records(self) -> bool:
        """Whether a worker could not record what it measured."""
        ...


class LocalWorker:
    """This process alone."""

    def __init__(self, load: ProcessLoad, changed: Event) -> None:
        self._load = load
        self._changed = changed
        self._done = False
        self.lost_records = False

    def begin(self, spec: RunSpec, plan: Plan, step: int) -> None:
        """Start the engine a moment from now."""
        clock = MonotonicClock(spec.anchor_ns)
        outbox = SpoolWriter(spool_path(Path(spec.run_dir), 0))
        secrets = Secrets.from_environment(dict(os.environ))
        self._done = False
        engine = Engine(spec, secrets, plan, 0, 1, clock, outbox, self._load.count, self._load.report_done)
        engine.step = step
        self._load.attach(engine, spec.scenario, self._note_done)
        engine.start(clock.now_ns() + int(_LEAD_S * 1e9))

    def _note_done(self) -> None:
        self._done = True
        self._changed.set()

    def enter_step(self, step: int) -> None:
        """The next step begins, with its whole share still to be sent."""
        self._done = False
        if self._load.engine is not None:
            self._load.engine.step = step

    def is_done(self) -> bool:
        """Whether the engine has reported it."""
        return self._done

    def stop(self, *, interrupted: bool, timeout_s: float) -> None:  # noqa: ARG002
        """Drain and spool; the engine has a timeout of its own."""
        if self._load.engine is not None:
            self._load.engine.stop(interrupted=interrupted)
            self.lost_records = self._load.engine.lost_bytes > 0
            self._load.engine = None


class RunController:
    """Controls one load after the other, for as long as Locust runs."""

    def __init__(self, environment: Environment, owner: RunOwner) -> None:
        self.environment = environment
        self.runner: Any = environment.runner
        self.owner = owner
        self.load = ProcessLoad(environment)
        self.scenario = Scenario()
        self.running = False
        self._changed = Event()
        self._quit_lock = RLock()
        distributed = isinstance(self.runner, MasterRunner)
        self.workers: WorkerGroup = (
            RemoteWorkers(self.runner, self._changed) if distributed else LocalWorker(self.load, self._changed)
        )
        self._signal: int | None = None
        self._step_users = 0
        self._plan_span_s = 0.0
        self._step_started_s = 0.0

    def install(self) -> None:
        """Configure the process and listen to Locust's events."""
        self.scenario = self.owner.configure(self.environment.parsed_options)
        load = self.scenario.load
        if load.concurrency:
            self._weigh_classes(load.classes)
            self._set_shape(LadderShape(self))
        elif load.has_schedule:
            self.environment.user_classes = [ReplayUser]
            self._set_shape(OpenLoopShape(self))
        # Else users, their classes and weights are those of Locust's own flags.
        self.environment.events.test_start.add_listener(self._on_test_start)
        self.environment.events.test_stopping.add_listener(lambda **_: self._end_load())
        self.environment.events.test_stop.add_listener(lambda **_: self._complete())
        self.environment.events.quitting.add_listener(lambda **_: self._on_quitting(signal.SIGTERM))
        # Python's own SIGINT would raise in the middle of a hub callback; this one runs in a greenlet.
        gevent.signal_handler(signal.SIGINT, self._on_interrupt)
        # A closed terminal is an order to end, like SIGTERM, which is Locust's.
        gevent.signal_handler(signal.SIGHUP, os.kill, os.getpid(), signal.SIGTERM)

    def _weigh_classes(self, weights: dict[str, float]) -> None:
        chosen = [name for name in USER_CLASSES if weights.get(name, 0) > 0]
        for name in chosen:
            USER_CLASSES[name].weight = weights[name]
        self.environment.user_classes = [USER_CLASSES[name] for name in chosen]

    def _set_shape(self, shape: LoadTestShape) -> None:
        shape.runner = self.runner
        self.environment.shape_class = shape

    def _on_test_start(self, **_: Any) -> None:
        self._signal = None
        options = self.environment.parsed_options
        users = getattr(options, "num_users", None) or 1
        try:
            spec, plan = self.owner.begin(options, users)
            self.running = True
            self._plan_span_s = max(plan.span_s, self.scenario.load.duration_s or 0.0)
            self.workers.begin(spec, plan, self._step_users)
        except SurgeproofError as exc:
            self._give_up(exc)
            return
        self._step_started_s = time.monotonic()

    def _give_up(self, exc: SurgeproofError) -> None:
        """The run cannot be made: report it once and end Locust with the error's code."""
        sys.stderr.write(f"Error: {exc}\n")
        self.environment.process_exit_code = exc.exit_code
        gevent.spawn(self.runner.quit)

    # -- LoadProgress, for shapes -----------------------------------------------------------------

    def worker_count(self) -> int:
        """How many processes share the load."""
        return max(1, self.runner.worker_count) if isinstance(self.runner, MasterRunner) else 1

    def wait_until_answered(self) -> None:
        """Open loop: until all shares are answered, or the drain limit after the plan's end."""
        self._wait_until(
            self.workers.is_done,
            self._step_started_s + RemoteWorkers.LEAD_S + self._plan_span_s + self.scenario.load.drain_s,
        )

    def wait_until_step_is_over(self) -> None:
        """Closed loop: until the step's time is over or its requests are answered."""
        load = self.scenario.load
        limit_s = self._step_started_s + (load.duration_s if load.duration_s is not None else 1e9)
        if load.num_prompts is None:
            gevent.sleep(max(0.0, limit_s - time.monotonic()))
        else:
            self._wait_until(self.workers.is_done, limit_s)

    def enter_step(self, users: int) -> None:
        """The ladder's next step begins."""
        self._step_users = users
        self._step_started_s = time.monotonic()
        self.workers.enter_step(users)

    def _wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        while time.monotonic() < limit_s and not condition():
            self._changed.clear()
            self._changed.wait(timeout=min(0.2, max(0.0, limit_s - time.monotonic())))

    # -- the end --------------------------------------------------------------------------------

    def _on_quitting(self, signal_number: int) -> None:
        """Locust quits: normally, in which case everything is complete, or by a signal."""
        with self._quit_lock:
            if self.running:
                self._signal = signal_number
                self._end_load()
                self._complete()

    def _on_interrupt(self) -> None:
        """Store and judge what was measured, then let Locust quit as after any Ctrl-C."""
        self._on_quitting(signal.SIGINT)
        raise KeyboardInterrupt

    def _end_load(self) -> None:
        if self.running:
            interrupted = self._signal is not None
            timeout_s = _INTERRUPT_TIMEOUT_S if interrupted else self.scenario.load.drain_s + _DRAIN_GRACE_S
            self.workers.stop(interrupted=interrupted, timeout_s=timeout_s)

    def _complete(self) -> None:
        if not self.running:
            return
        self.running = False
        try:
            code = self.owner.complete(self._signal)
        except SurgeproofError as exc:
            sys.stderr.write(f"Error: {exc}\n")
            code = exc.exit_code
        if code in (None, ExitCode.PASS) and self.workers.lost_records:
            code = ExitCode.INVALID
        if code is not None:
            self.environment.process_exit_code = code
        if getattr(self.environment.parsed_options, "csv_prefix", None):
            # Locust writes its CSV at intervals and not at the end: wait until it has written the last requests.
            gevent.sleep(2 * _CSV_INTERVAL_S)


def install(owner: RunOwner) -> None:
    """Hook into Locust; called once by the locustfile, before Locust opens a socket."""
    protect_channel(os.environ.get(TOKEN_VARIABLE) or None)
    locust.stats.CSV_STATS_INTERVAL_SEC = _CSV_INTERVAL_S

    @events.init_command_line_parser.add_listener
    def add_arguments(parser: Any, **_: Any) -> None:
        # Locust's own are all interfaces, without a login; the API key is behind them.
        parser.set_defaults(web_host=LOOPBACK, master_bind_host=LOOPBACK)
        owner.add_arguments(parser)

    @events.init.add_listener
    def on_init(environment: Environment, **_: Any) -> None:
        is_worker = isinstance(environment.runner, WorkerRunner)
        controller = WorkerController(environment) if is_worker else RunController(environment, owner)
        environment.surgeproof = controller
        try:
            check_page(environment.parsed_options)
            if environment.web_ui is not None:
                guard_page(environment.web_ui.app)
            controller.install()
        except SurgeproofError as exc:
            sys.stderr.write(f"Error: {exc}\n")
            sys.exit(exc.exit_code)
