"""Locust as a child process: started early, released when the plan is ready, always ended.

Locust patches the process that imports it, so it gets one of its own, in a session that Ctrl-C does
not reach. Its import takes a second, so it is started before our own heavy modules are imported;
this module therefore needs the standard library only.
"""

import contextlib
import os
import secrets as secrets_of_system
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from surgeproof.credentials import Secrets
from surgeproof.errors import UsageError
from surgeproof.loadgen.spec import PARENT_VARIABLE, RUN_DIR_VARIABLE, TOKEN_VARIABLE
from surgeproof.redaction import shown_url
from surgeproof.scenario import Scenario
from surgeproof.storage.database_url import sqlite_path

SPOOLS_SUFFIX = ".spool"
_LOG_BYTES = 100_000
_LOG_TAIL_CHARS = 2000
_INTERRUPT_TIMEOUT_S = 2.0
_FOREIGN_PREFIXES = ("LOCUST_", "GEVENT_")


class LocustProcess:
    """One headless Locust that waits for its run.

    Args:
        scenario: gives the number of worker processes.
        secrets: passed on by environment only.
        db_url: the run's folder lies beside this database's file.

    Raises:
        UsageError: the run's folder cannot be made.
    """

    def __init__(self, scenario: Scenario, secrets: Secrets, db_url: str) -> None:
        from surgeproof import loadgen

        self.run_dir = make_run_dir(db_url)
        self._log: Any = tempfile.TemporaryFile(prefix="surgeproof-locust-")  # noqa: SIM115
        locustfile = Path(loadgen.__file__).with_name("locustfile.py")
        command = [sys.executable, "-P", "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary"]
        command += ["--loglevel", "WARNING", "--exit-code-on-error", "0"]
        if scenario.processes > 1:
            # A free port: workers must not connect to the master of another run on this host.
            port = str(_free_port())
            command += ["--processes", str(scenario.processes), "--master-bind-host", "127.0.0.1"]
            command += ["--master-bind-port", port, "--master-port", port]
        environment = (
            _environment_of_child(self.run_dir)
            | secrets.to_environment()
            | {
                RUN_DIR_VARIABLE: str(self.run_dir),
                PARENT_VARIABLE: str(os.getpid()),
                # Other users of this host must not join its workers.
                TOKEN_VARIABLE: secrets_of_system.token_hex(32),
            }
        )
        self._child = subprocess.Popen(
            command, env=environment, cwd=self.run_dir, stdin=subprocess.PIPE, stdout=self._log,
            stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self._holds_run = False

    def release(self) -> None:
        """Let Locust start: the run is ready in its folder, which from now on holds what is measured."""
        self._holds_run = True
        assert self._child.stdin is not None, "started with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(b"go\n")
            self._child.stdin.close()

    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._child.poll()

    def interrupt(self) -> None:
        """Ask Locust to shut down now: what is in flight is recorded as cancelled."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Kill the remaining processes of its session, such as a worker that hangs after its master has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def close(self) -> None:
        """Release its pipe and its log; nothing can be asked of it afterwards."""
        assert self._child.stdin is not None, "started with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._log.close()

    def abandon(self) -> None:
        """Stop Locust after an error. Its folder goes only if nothing can have been measured: `recover` needs it."""
        if not self._holds_run:
            self.end()
            remove_run_dir(self.run_dir)
            return
        self.interrupt()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_INTERRUPT_TIMEOUT_S)
        self.end()

    def log_tail(self) -> str:
        """The last errors that it logged; the last part of its output where it logged none, as after a signal."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_BYTES))
        text = self._log.read().decode("utf-8", "replace")
        # Locust's tables of statistics stand after them.
        errors = [line for line in text.splitlines() if "/ERROR/" in line or "/CRITICAL/" in line]
        return ("\n".join(errors) or text)[-_LOG_TAIL_CHARS:].strip()


def _environment_of_child(run_dir: Path) -> dict[str, str]:
    """Our environment without what Locust and gevent read by themselves, such as Locust's own settings.

    Locust also reads a file in the user's home, which is therefore the run's folder for it.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN_PREFIXES) and name != "OPENAI_API_KEY"
    }
    key_log = ours.get("SSLKEYLOGFILE")
    if key_log and not os.access(key_log if Path(key_log).exists() else Path(key_log).absolute().parent, os.W_OK):
        # Libraries that Locust imports open it, and fail.
        del ours["SSLKEYLOGFILE"]
    return ours | {"HOME": str(run_dir)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def remove_run_dir(run_dir: Path) -> None:
    """Remove a run's folder, and the one around it when it was the last."""
    shutil.rmtree(run_dir, ignore_errors=True)
    with contextlib.suppress(OSError):
        run_dir.parent.rmdir()


def spool_root(database: Path) -> Path:
    """The folder beside a database file that holds the folders of its runs in progress."""
    return database.with_name(database.name + SPOOLS_SUFFIX)


def make_run_dir(db_url: str) -> Path:
    """Make the folder of a new run's plan and spools, named by its uid.

    It lies beside the database file, so that both survive together.
    """
    path = sqlite_path(db_url)
    if path is None and (db_url.startswith("sqlite") or "://" not in db_url):
        raise UsageError(
            f"database URL {shown_url(db_url)!r} cannot be used: write sqlite:///FILE or postgresql://HOST/NAME"
        )
    root = spool_root(path) if path is not None else Path(f"surgeproof{SPOOLS_SUFFIX}")
    run_dir = (root / uuid.uuid4().hex).absolute()
    if not root.absolute().parent.is_dir():
        raise UsageError(f"the folder of database {path} does not exist: create it, or give another database with --db")
    try:
        root.mkdir(exist_ok=True)
        run_dir.mkdir()
    except OSError as exc:
        raise UsageError(f"cannot create the spool folder {run_dir}: {exc.strerror}") from exc
    return run_dir
