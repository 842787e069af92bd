"""Both ends of the messages that a Locust master and its workers exchange about a run.

    master -> worker  surgeproof_begin   the run and the worker's share
    worker -> master  surgeproof_clock   a time stamp; the answer lets it read the master's clock
    worker -> master  surgeproof_plan    asks for the plan
    worker -> master  surgeproof_ready   it can start
    master -> worker  surgeproof_go      the common time of the plan's 0
    master -> worker  surgeproof_step    the ladder's next step
    worker -> master  surgeproof_done    share (or step) sent and answered
    worker -> master  surgeproof_batch   records; the answer acknowledges them
    master -> worker  surgeproof_stop    end of the load
    worker -> master  surgeproof_ended   drained and spooled

Workers that `--processes` forked read the plan from the run's folder, spool there and share the
master's clock. Workers started with `--worker`, on this host or another, get everything by message.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import AsyncResult, Event
from gevent.lock import RLock
from locust.env import Environment

from surgeproof.clock import ClockOffset, MonotonicClock, estimate_offset, measure_anchor_ns
from surgeproof.credentials import Secrets
from surgeproof.errors import RunBrokenError, SurgeproofError
from surgeproof.loadgen.batch_transfer import BatchReceiver, BatchSender
from surgeproof.loadgen.engine import Engine, Outbox
from surgeproof.loadgen.locust_load import ProcessLoad
from surgeproof.loadgen.parent_death import end_with_parent
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.spec import PLAN_FILE, SPEC_FILE, RunSpec
from surgeproof.loadgen.spool import Batch, SpoolWriter, spool_path
from surgeproof.loadgen.users import USER_CLASSES, ReplayUser
from surgeproof.records import WorkerFacts
from surgeproof.strict_json import JsonObject

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 20.0
_CLOCK_EXCHANGES = 16
_ANSWER_TIMEOUT_S = 10.0
_DELIVERY_TIMEOUT_S = 10.0
LOCAL_SPOOLS = Path("surgeproof.spool")


class RemoteWorkers:
    """The master's end, a `WorkerGroup`: the workers that were connected when the run began.

    Args:
        runner: Locust's `MasterRunner`.
        changed: set whenever a worker has reported something.
    """

    LEAD_S = 0.3
    """From the message to start to the plan's 0: it must reach every worker by then."""

    def __init__(self, runner: Any, changed: Event) -> None:
        self._runner = runner
        self._changed = changed
        self._numbers: dict[str, int] = {}
        self._facts: dict[int, WorkerFacts] = {}
        self._ready: set[int] = set()
        self._done: set[int] = set()
        self._ended: set[int] = set()
        self.lost_records = False
        self._receiver: BatchReceiver | None = None
        self._notes: SpoolWriter | None = None
        self._packed_plan = b""
        self._clock = MonotonicClock()
        self._begun_s = 0.0
        for name in ("clock", "plan", "ready", "done", "batch", "ended"):
            runner.register_message(f"surgeproof_{name}", getattr(self, f"_on_{name}"))
        runner.environment.events.worker_connect.add_listener(self._on_connect)

    def begin(self, spec: RunSpec, plan: Plan, step: int) -> None:
        """Give every connected worker its share, wait until they are ready, and start them.

        Raises:
            RunBrokenError: no worker became ready.
        """
        run_dir = Path(spec.run_dir)
        self._clock = MonotonicClock(spec.anchor_ns)
        self._numbers = {client.id: number for number, client in enumerate(self._runner.clients.ready)}
        self._ready, self._done, self._ended = set(), set(), set()
        self._facts = {number: WorkerFacts(number, host_of(name)) for name, number in self._numbers.items()}
        owner_of = _owners(plan, len(self._numbers), closed_loop=spec.scenario.closed_loop)
        self._receiver, self._notes = BatchReceiver(run_dir, owner_of), SpoolWriter(spool_path(run_dir, None))
        self._packed_plan = b""
        self._plan = plan
        spec_json = msgspec.json.encode(spec).decode()
        for client_id, number in self._numbers.items():
            share = {"worker": number, "workers": len(self._numbers), "step": step, "spec": spec_json}
            self._runner.send_message("surgeproof_begin", share, client_id)
        self._wait_for(self._ready, READY_TIMEOUT_S)
        for number in self._facts.keys() - self._ready:
            self._note_failure(number, f"did not become ready within {READY_TIMEOUT_S:g} s")
        self._write_facts()
        if not self._ready:
            raise RunBrokenError("no worker became ready: see the workers' own output")
        start_at_ns = self._clock.now_ns() + int(self.LEAD_S * 1e9)
        self._begun_s = time.monotonic()
        for client_id, number in self._numbers.items():
            if number in self._ready:
                self._runner.send_message("surgeproof_go", {"start_at_ns": start_at_ns}, client_id)

    def enter_step(self, step: int) -> None:
        """Send the step to every worker."""
        self._done.clear()
        self._runner.send_message("surgeproof_step", {"step": step})

    def is_done(self) -> bool:
        """Whether all that are reachable have reported their share done."""
        return self._reachable() <= self._done

    def stop(self, *, interrupted: bool, timeout_s: float) -> None:
        """End the load everywhere, and note why workers that did not report completion are missing."""
        self._runner.send_message("surgeproof_stop", {"interrupted": interrupted})
        self._wait_for(self._ended, timeout_s)
        for number in self._ready - self._ended:
            self._note_failure(number, f"was lost {time.monotonic() - self._begun_s:.0f} s after the start, or earlier")
        self._write_facts()
        if self._receiver is not None:
            self._receiver.close()
        if self._notes is not None:
            self._notes.close()

    def _reachable(self) -> set[int]:
        """Numbers of the workers that became ready and still answer."""
        missing = {client.id for client in self._runner.clients.missing}
        reachable = {
            number
            for client_id, number in self._numbers.items()
            if client_id in self._runner.clients and client_id not in missing
        }
        for number in self._ready - reachable - self._ended:
            self._note_failure(
                number, f"stopped answering about {time.monotonic() - self._begun_s:.0f} s after the start"
            )
        return reachable & self._ready if self._ready else reachable

    def _wait_for(self, reported: set[int], timeout_s: float) -> None:
        """Wait until every worker that is expected and reachable has reported."""
        limit_s = time.monotonic() + timeout_s
        while time.monotonic() < limit_s:
            expected = set(self._numbers.values()) if reported is self._ready else self._reachable()
            if expected <= reported:
                return
            self._changed.clear()
            self._changed.wait(timeout=min(0.2, max(0.0, limit_s - time.monotonic())))

    def _note_failure(self, number: int, reason: str) -> None:
        if self._facts[number].failure_reason is None:
            logger.warning("worker %d on %s %s", number, self._facts[number].host, reason)
            self._facts[number] = msgspec.structs.replace(self._facts[number], failure_reason=reason)

    def _write_facts(self) -> None:
        if self._notes is not None:
            self._notes.append(Batch(None, facts=list(self._facts.values())))

    # -- messages of workers ----------------------------------------------------------------------

    def _number(self, msg: Any) -> int | None:
        """Which of this run's workers sent it; None for one that joined later and has no share."""
        return self._numbers.get(msg.node_id)

    def _on_connect(self, client_id: str, **_: Any) -> None:
        if self._begun_s and client_id not in self._numbers and self._runner.state in ("running", "spawning"):
            logger.warning("a worker joined after the start: it has no share of this run")

    def _on_clock(self, msg: Any, **_: Any) -> None:
        received = self._clock.now_ns()
        stamps = {"asked": msg.data["asked"], "received": received, "replied": self._clock.now_ns()}
        self._runner.send_message("surgeproof_clock", stamps, msg.node_id)

    def _on_plan(self, msg: Any, **_: Any) -> None:
        self._packed_plan = self._packed_plan or self._plan.pack()
        self._runner.send_message("surgeproof_plan", {"packed": self._packed_plan}, msg.node_id)

    def _on_ready(self, msg: Any, **_: Any) -> None:
        number = self._number(msg)
        if number is not None:
            self._facts[number] = msgspec.convert(msg.data | {"worker": number}, WorkerFacts)
            self._ready.add(number)
            self._changed.set()

    def _on_done(self, msg: Any, **_: Any) -> None:
        number = self._number(msg)
        if number is not None:
            self._done.add(number)
            self._changed.set()

    def _on_batch(self, msg: Any, **_: Any) -> None:
        number = self._number(msg)
        if number is not None and self._receiver is not None and self._receiver.take(number, msg.data["frame"]):
            self._runner.send_message("surgeproof_batch", {"number": msg.data["number"]}, msg.node_id)

    def _on_ended(self, msg: Any, **_: Any) -> None:
        number = self._number(msg)
        if number is not None:
            if msg.data.get("lost_bytes"):
                self.lost_records = True
                self._note_failure(number, "could not record all that it measured: its disk is full")
            self._ended.add(number)
            self._changed.set()


class WorkerController:
    """The worker's end.

    Args:
        environment: Locust's; its runner is a `WorkerRunner`.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.runner: Any = environment.runner
        self.load = ProcessLoad(environment)
        self._forked = bool(getattr(environment.parsed_options, "processes", None))
        self._answers: dict[str, AsyncResult] = {}
        self._sender: BatchSender | None = None
        self._stop_lock = RLock()
        if self._forked:
            end_with_parent(os.getppid())

    def install(self) -> None:
        """Listen to the master, which chooses the users."""
        self.environment.user_classes = [ReplayUser, *USER_CLASSES.values()]
        self.runner.register_message("surgeproof_begin", self._on_begin, concurrent=True)
        self.runner.register_message("surgeproof_clock", self._on_answer)
        self.runner.register_message("surgeproof_plan", self._on_answer)
        self.runner.register_message("surgeproof_batch", self._on_acknowledged)
        self.runner.register_message("surgeproof_go", self._on_go)
        self.runner.register_message("surgeproof_step", self._on_step)
        self.runner.register_message("surgeproof_stop", self._on_stop, concurrent=True)
        self.environment.events.quitting.add_listener(lambda **_: self._end(interrupted=True))
        for number in (signal.SIGINT, signal.SIGHUP):
            gevent.signal_handler(number, self._on_interrupt, number)

    def _on_begin(self, msg: Any, **_: Any) -> None:
        data = msg.data
        spec = msgspec.json.decode(data["spec"], type=RunSpec)
        try:
            self._check_order(spec)
            self._end(interrupted=True)
            offset = ClockOffset(0, 0)
            if self._forked:
                clock = MonotonicClock(spec.anchor_ns)
                plan = Plan.load(Path(spec.run_dir) / PLAN_FILE)
                outbox: Outbox = SpoolWriter(spool_path(Path(spec.run_dir), data["worker"]))
            else:
                offset = self._agree_on_clock()
                clock = MonotonicClock(measure_anchor_ns() + offset.ahead_ns)
                plan = Plan.unpack(self._ask("plan", {})["packed"])
                outbox = self._sender = self._make_batch_sender(spec, data["worker"])
            secrets = Secrets.from_environment(dict(os.environ))
            engine = Engine(
                spec, secrets, plan, data["worker"], data["workers"], clock, outbox,
                self.load.count, self.load.report_done,
            )  # fmt: skip
        except (SurgeproofError, OSError, gevent.Timeout) as exc:
            logger.error("this worker cannot take part in the run: %s", exc)  # noqa: TRY400
            return
        engine.step = data["step"]
        self.load.attach(engine, spec.scenario, lambda: self._send("done", {}))
        facts = WorkerFacts(data["worker"], os.uname().nodename, offset.ahead_ns, offset.uncertainty_ns)
        self._send("ready", msgspec.to_builtins(facts))

    def _check_order(self, spec: RunSpec) -> None:
        """A master says what is sent, but not where to, if this worker was started for a host.

        Raises:
            RunBrokenError: the run is not for this worker.
        """
        if not re.fullmatch(r"[0-9a-f]{32}", spec.uid):
            raise RunBrokenError("the master names a run by something that is no run's name")
        host = (self.environment.parsed_options.host or "").rstrip("/")
        if host and not self._forked and host.removesuffix("/v1") != spec.base_url.rstrip("/").removesuffix("/v1"):
            raise RunBrokenError(f"the master's run is against {spec.base_url}, this worker was started for {host}")

    def _agree_on_clock(self) -> ClockOffset:
        """How far the master's clock is ahead of this worker's."""
        clock = MonotonicClock()
        exchanges = []
        for _ in range(_CLOCK_EXCHANGES):
            stamps = self._ask("clock", {"asked": clock.now_ns()})
            exchanges.append((stamps["asked"], stamps["received"], stamps["replied"], clock.now_ns()))
        return estimate_offset(exchanges)

    def _ask(self, name: str, data: JsonObject) -> JsonObject:
        """Send a message and wait for the master's answer of the same name."""
        answer = self._answers[name] = AsyncResult()
        self._send(name, data)
        result: JsonObject = answer.get(timeout=_ANSWER_TIMEOUT_S)
        return result

    def _on_answer(self, msg: Any, **_: Any) -> None:
        answer = self._answers.pop(msg.type.removeprefix("surgeproof_"), None)
        if answer is not None:
            answer.set(msg.data)

    def _make_batch_sender(self, spec: RunSpec, worker: int) -> BatchSender:
        folder = LOCAL_SPOOLS / spec.uid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SPEC_FILE).write_bytes(msgspec.json.encode(spec))

        def send(number: int, frame: bytes) -> None:
            try:
                self._send("batch", {"number": number, "frame": frame})
            except Exception as exc:  # noqa: BLE001 - whatever the channel raises, the batch is in the file
                logger.warning("batch %d could not be sent: %s", number, exc)

        return BatchSender(spool_path(folder, worker), send)

    def _on_acknowledged(self, msg: Any, **_: Any) -> None:
        if self._sender is not None:
            self._sender.acknowledged(int(msg.data["number"]))

    def _on_go(self, msg: Any, **_: Any) -> None:
        if self.load.engine is not None:
            self.load.engine.start(msg.data["start_at_ns"])

    def _on_step(self, msg: Any, **_: Any) -> None:
        if self.load.engine is not None:
            self.load.engine.step = int(msg.data["step"])

    def _on_stop(self, msg: Any, **_: Any) -> None:
        self._send("ended", {"lost_bytes": self._end(interrupted=bool(msg.data["interrupted"]))})

    def _on_interrupt(self, number: int) -> None:
        """Runs in a greenlet: Python's own KeyboardInterrupt would be raised in the middle of a hub callback."""
        self._end(interrupted=True)
        self.environment.process_exit_code = 128 + number
        self.runner.quit()

    def _end(self, *, interrupted: bool) -> int:
        """Drain, spool, and make sure that the master has everything; returns the bytes that could not be recorded."""
        with self._stop_lock:
            engine, self.load.engine = self.load.engine, None
            if engine is not None:
                engine.stop(interrupted=interrupted)
            if self._sender is not None:
                self._deliver(self._sender)
                self._sender = None
        return 0 if engine is None else engine.lost_bytes

    def _deliver(self, sender: BatchSender) -> None:
        """Wait for the last acknowledgements; unacknowledged batches stay on this host's disk."""
        limit_s = time.monotonic() + _DELIVERY_TIMEOUT_S
        while sender.unacknowledged and time.monotonic() < limit_s:
            gevent.sleep(0.02)
            sender.send_again()
        folder = sender.path.parent
        if sender.unacknowledged:
            logger.error(
                "the master did not acknowledge %d batches; they are in %s: copy that folder to the "
                "master's host and run there: surgeproof recover --spool %s",
                sender.unacknowledged, folder, folder.name,
            )  # fmt: skip
            return
        sender.remove()
        if not any(folder.glob("*.spool")):
            (folder / SPEC_FILE).unlink(missing_ok=True)
            for path in (folder, folder.parent):
                try:
                    path.rmdir()
                except OSError:
                    break

    def _send(self, name: str, data: JsonObject) -> None:
        self.runner.send_message(f"surgeproof_{name}", data)


def _owners(plan: Plan, workers: int, *, closed_loop: bool) -> Callable[[int], int]:
    """The worker whose share each request is; -1 for what is no request of the plan."""
    if closed_loop:
        return lambda index: index % workers
    shares = plan.workers_of(workers)
    return lambda index: int(shares[index]) if 0 <= index < len(shares) else -1


def host_of(client_id: str) -> str:
    """The host's name in a Locust worker's id, which ends with 32 hexadecimal digits."""
    return client_id.rpartition("_")[0] or client_id
