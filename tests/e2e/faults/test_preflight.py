"""A list of models that never ends, trickles or is a bomb: the command ends within bounds, and at once by a signal."""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.faults.hostile_servers import Answer, bomb, endless_body, hostile_server, trickle
from tests.e2e.test_crash import wait_for
from tests.e2e.test_run import PATIENCE_S


def started(base_url: str, cwd: Path) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "surgeproof",
        "run",
        "--base-url",
        base_url,
        "--request-rate",
        "1",
        "--duration",
        "1s",
    ]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("answer", "said"), [(endless_body, "more than 8 MB"), (trickle, "longer than 10 s"), (bomb, "decodes to")]
)
def test_the_check_is_bounded(tmp_path: Path, answer: Answer, said: str) -> None:
    with hostile_server(get=answer) as base_url:
        child = started(base_url, tmp_path)
        most = 0
        begun_s = time.monotonic()
        while child.poll() is None and time.monotonic() - begun_s < 40:
            try:
                most = max(most, psutil.Process(child.pid).memory_info().rss)
            except psutil.NoSuchProcess:
                break
            time.sleep(0.05)
        error = child.communicate(timeout=5)[1]
    assert child.returncode == 2, error
    assert said in error
    assert most < 400_000_000


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_check_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    asked = threading.Event()

    def answer(connection: socket.socket) -> None:
        asked.set()
        trickle(connection)

    with hostile_server(get=answer) as base_url:
        child = started(base_url, tmp_path)
        wait_for(asked.is_set)
        child.send_signal(number)
        error = child.communicate(timeout=PATIENCE_S)[1]
    # The check's own limit would end it with 2 and another sentence.
    assert child.returncode == code, error
    assert "interrupted; nothing was sent" in error
    assert not list(tmp_path.glob("*.spool"))
