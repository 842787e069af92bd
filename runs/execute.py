"""Executes a whole run for `surgeproof run`: begin, load in a Locust child process, judge."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from surgeproof.credentials import Secrets
from surgeproof.errors import InterruptedEarlyError, RunBrokenError, StoreError
from surgeproof.exit_codes import ExitCode
from surgeproof.records import RunState, StreamRecord
from surgeproof.redaction import shown_url
from surgeproof.results import RunResult
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.early_stop import EarlyStop
from surgeproof.runs.judge import complete_run
from surgeproof.runs.locust_process import LocustProcess
from surgeproof.runs.prepare import begin_run
from surgeproof.runs.store_retry import StoreRetry
from surgeproof.scenario import Scenario

_POLL_S = 0.5
_POLL_STOPPING_S = 0.02
_INTERRUPT_TIMEOUT_S = 2.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_scenario(
    locust: LocustProcess,
    scenario: Scenario,
    secrets: Secrets,
    db_url: str,
    scenario_path: Path | None,
    on_begin: Callable[[RunInProgress, tuple[str, ...]], None],
    on_progress: Callable[[list[StreamRecord]], None],
    on_notice: Callable[[str], None],
) -> RunResult:
    """Execute a run. What was measured stays in the run's folder until it is stored and judged.

    Args:
        locust: a Locust that waits for this run.
        scenario: checked scenario.
        secrets: headers for the endpoint.
        db_url: where to store.
        scenario_path: the file it came from, for its revision.
        on_begin: called with the run and notes about its plan before anything is sent.
        on_progress: called with new records, a few times a second.
        on_notice: called with a sentence when the database refuses to be written, and when it no longer does.

    Raises:
        SurgeproofError: the run could not be begun or completed.
    """
    stopped: list[int] = []
    given_up: list[str] = []
    # Before anything is sent, a signal ends the command wherever it is, such as in a name server that does not answer.
    previous = {number: signal.signal(number, _stop_at_once) for number in _STOP_SIGNALS}
    retry = StoreRetry(on_notice)
    try:
        run, notes = begin_run(scenario, secrets, db_url, scenario_path, locust.run_dir)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda received, _frame: stopped.append(received))
        on_begin(run, notes)
        locust.release()
        _yield_to_workers()
        early_stop = EarlyStop(scenario.load.abort_after)

        def collect() -> None:
            records = retry.attempt(run.collect) or []
            on_progress(records)
            if reason := early_stop.take(records):
                on_notice(reason)
                given_up.append(reason)

        _follow(locust, lambda: bool(stopped or given_up), collect)
        locust.end()
        if stopped:
            return _complete(run, retry, stopped, RunState.INTERRUPTED, 128 + stopped[0])
        if given_up:
            return _complete(run, retry, stopped, RunState.INTERRUPTED, None)
        if locust.exit_code() != 0:
            _complete(run, retry, stopped, RunState.BROKEN, ExitCode.INVALID)
            raise RunBrokenError(f"the load generator exited with code {locust.exit_code()}:\n{locust.log_tail()}")
        return _complete(run, retry, stopped, RunState.FINISHED, None)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop_at_once(received: int, _frame: object) -> None:
    raise InterruptedEarlyError(received)


def _complete(
    run: RunInProgress, retry: StoreRetry, stopped: list[int], state: RunState, exit_code: int | None
) -> RunResult:
    """Store and judge, however long the database refuses; one more signal ends the patience."""
    signals = len(stopped)
    try:
        return retry.until_stored(lambda: complete_run(run, state, exit_code), lambda: len(stopped) > signals)
    except StoreError as exc:
        url = shown_url(run.store.engine.url.render_as_string(hide_password=False))
        raise StoreError(
            f"{exc}. Everything that was measured is kept in {run.run_dir}; "
            f"when the database can be written again: surgeproof recover --db {url}"
        ) from exc


def _yield_to_workers() -> None:
    """Give workers on a shared core precedence: storing can wait, sending cannot. The parent must not starve."""
    with suppress(AttributeError, OSError):
        os.nice(10)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _follow(locust: LocustProcess, is_stopped: Callable[[], bool], collect: Callable[[], None]) -> None:
    """Store and show new records until Locust ends, or until the interrupt grace period ends."""
    deadline: float | None = None
    while locust.exit_code() is None:
        collect()
        if is_stopped() and deadline is None:
            deadline = time.monotonic() + _INTERRUPT_TIMEOUT_S
            locust.interrupt()
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(_POLL_STOPPING_S if deadline is not None else _POLL_S)
    collect()
