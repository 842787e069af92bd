"""Executes a whole run for `surgeproof run`: begin, load in a Locust child process, judge."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from surgeproof.credentials import Secrets
from surgeproof.errors import RunBrokenError
from surgeproof.exit_codes import ExitCode
from surgeproof.records import RunState, StreamRecord
from surgeproof.results import RunResult
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.judge import complete_run
from surgeproof.runs.locust_process import LocustProcess
from surgeproof.runs.prepare import begin_run
from surgeproof.scenario import Scenario

_POLL_S = 0.5
_POLL_STOPPING_S = 0.02
_INTERRUPT_TIMEOUT_S = 2.0


def run_scenario(
    locust: LocustProcess,
    scenario: Scenario,
    secrets: Secrets,
    db_url: str,
    scenario_path: Path | None,
    on_begin: Callable[[RunInProgress, tuple[str, ...]], None],
    on_progress: Callable[[list[StreamRecord]], None],
) -> RunResult:
    """Execute a run.

    Args:
        locust: a Locust that waits for this run.
        scenario: checked scenario.
        secrets: headers for the endpoint.
        db_url: where to store.
        scenario_path: the file it came from, for its revision.
        on_begin: called with the run and notes about its plan before anything is sent.
        on_progress: called with new records, a few times a second.

    Raises:
        SurgeproofError: the run could not be begun or completed.
    """
    stopped: list[int] = []
    previous = {
        number: signal.signal(number, lambda received, _frame: stopped.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        run, notes = begin_run(scenario, secrets, db_url, scenario_path, locust.run_dir)
        on_begin(run, notes)
        locust.release()
        _yield_to_workers()
        _follow(locust, run, stopped, on_progress)
        locust.end()
        if stopped:
            return complete_run(run, RunState.INTERRUPTED, 128 + stopped[0])
        if locust.exit_code() != 0:
            complete_run(run, RunState.BROKEN, ExitCode.INVALID)
            raise RunBrokenError(f"the load generator exited with code {locust.exit_code()}:\n{locust.log_tail()}")
        return complete_run(run, RunState.FINISHED)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _yield_to_workers() -> None:
    """Give workers on a shared core precedence: storing can wait, sending cannot. The parent must not starve."""
    with suppress(AttributeError, OSError):
        os.nice(10)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _follow(
    locust: LocustProcess,
    run: RunInProgress,
    stopped: list[int],
    on_progress: Callable[[list[StreamRecord]], None],
) -> None:
    """Store and show new records until Locust ends, or until the interrupt grace period ends."""
    deadline: float | None = None
    while locust.exit_code() is None:
        on_progress(run.collect())
        if stopped and deadline is None:
            deadline = time.monotonic() + _INTERRUPT_TIMEOUT_S
            locust.interrupt()
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(_POLL_STOPPING_S if stopped else _POLL_S)
    on_progress(run.collect())
