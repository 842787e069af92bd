"""Strangers at the ports of a load: a rogue worker, a rogue master, random bytes, and a page of another origin."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
import zmq

from tests.e2e.faults.logging_endpoint import LoggingEndpoint
from tests.e2e.faults.test_database import endpoint
from tests.e2e.test_crash import wait_for
from tests.e2e.test_run import LOCUSTFILE, rows
from tests.e2e.test_workers import free_port

__all__ = ["endpoint"]
LOCUST = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--loglevel", "WARNING"]
TOKEN = "a-token-of-this-test"


class Stranger:
    """Speaks to a Locust master as a worker would, and notes what it is sent."""

    def __init__(self, port: int) -> None:
        self.got: list[bytes] = []
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, b"rogue_0123456789abcdef")
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _talk(self) -> None:
        turn = 0
        while not self._stop.wait(0.05):
            turn += 1
            me = "rogue_0123456789abcdef"
            for message in (
                msgpack.dumps(("client_ready", "2.47.0", me)),
                msgpack.dumps(("surgeproof_done", {}, me)),
                b"\xff" * (turn % 50),
                os.urandom(200),
            ):
                self._socket.send(message, zmq.NOBLOCK)
            while self._socket.poll(0):
                self.got.append(self._socket.recv())


def load(endpoint: LoggingEndpoint, folder: Path, seconds: int = 4) -> list[str]:
    folder.mkdir(exist_ok=True)
    scenario = {
        "load": {"request_rate": 40, "arrivals": "constant", "input_len": 5, "output_len": 5, "duration_s": seconds}
    }
    (folder / "load.yaml").write_text(json.dumps(scenario))
    return ["--scenario", "load.yaml", "--host", endpoint.base_url]


@pytest.mark.parametrize("token", [TOKEN, ""])
def test_a_stranger_at_the_masters_port_changes_nothing(endpoint: LoggingEndpoint, tmp_path: Path, token: str) -> None:
    """With a token it is not even noticed; without one, on loopback, its noise does not end the listener."""
    port = free_port()
    environment = os.environ | ({"SURGEPROOF_CLUSTER_TOKEN": token} if token else {})
    flags = load(endpoint, tmp_path / "master")
    command = [*LOCUST, "--headless", "--master", "--master-bind-port", str(port), "--expect-workers", "2", *flags]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    master = subprocess.Popen(command, cwd=tmp_path / "master", **options)
    (tmp_path / "worker").mkdir()
    stranger = Stranger(port) if token else None
    workers = [
        subprocess.Popen(
            [*LOCUST, "--headless", "--worker", "--master-port", str(port)], cwd=tmp_path / "worker", **options
        )
        for _ in range(2)
    ]
    if stranger is None:
        wait_for(lambda: len(endpoint.answered) > 20)
        noise = zmq.Context.instance().socket(zmq.DEALER)
        noise.setsockopt(zmq.LINGER, 0)
        noise.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(100):
            noise.send(os.urandom(50))
        noise.send_multipart([b""])
        noise.send_multipart([b"\xff", b"\xff", b"\xff"])
        time.sleep(0.5)
        noise.close()
    output = master.communicate(timeout=90)[0]
    for worker in workers:
        worker.communicate(timeout=60)
    if stranger is not None:
        stranger.end()
        assert stranger.got == []
    assert master.returncode in (0, 5), output
    database = tmp_path / "master" / "surgeproof.db"
    assert rows(database, "SELECT outcome, count(*) FROM records GROUP BY 1") == [("ok", 160)]
    assert rows(database, "SELECT DISTINCT worker FROM records ORDER BY 1") == [(0,), (1,)]
    assert endpoint.missing(database) == set()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--headless", "--master", "--master-bind-host", "0.0.0.0"], "whoever reaches the port could join"),
        (["--headless", "--worker", "--master-host", "127.0.0.2"], "could send this worker's API key anywhere"),
        (["--web-host", "0.0.0.0"], "could start loads with your API key"),
    ],
)
def test_what_other_hosts_could_reach_needs_protection(
    endpoint: LoggingEndpoint, tmp_path: Path, flags: list[str], said: str
) -> None:
    port = str(free_port())
    ports = [] if "--worker" in flags else ["--web-port", str(free_port()), "--master-bind-port", port]
    result = subprocess.run(
        [*LOCUST, "--host", endpoint.base_url, *ports, *flags],
        cwd=tmp_path, env=os.environ | {"SURGEPROOF_CLUSTER_TOKEN": ""}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert result.returncode == 2, result.stdout + result.stderr
    assert said in result.stderr


def test_a_worker_sends_to_no_other_host_than_its_own(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    port = str(free_port())
    flags = load(endpoint, tmp_path / "master")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    master = subprocess.Popen(
        [*LOCUST, "--headless", "--master", "--master-bind-port", port, "--expect-workers", "1", *flags],
        cwd=tmp_path / "master", **options,
    )  # fmt: skip
    worker = subprocess.Popen(
        [*LOCUST, "--headless", "--worker", "--master-port", port, "--host", "http://127.0.0.1:9"],
        cwd=tmp_path,
        **options,
    )
    assert master.communicate(timeout=90)[0]
    assert master.returncode != 0
    worker.kill()
    assert "this worker was started for http://127.0.0.1:9" in worker.communicate()[0]
    assert endpoint.asked_at_s == []


@contextmanager
def page(endpoint: LoggingEndpoint, folder: Path) -> Iterator[str]:
    port = free_port()
    child = subprocess.Popen(
        [*LOCUST, "--host", endpoint.base_url, "--web-port", str(port), "--input-len", "5", "--output-len", "5"],
        cwd=folder, env=os.environ | {"OPENAI_API_KEY": "sk-of-this-test"}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: status(url) == 200)
        yield url
    finally:
        child.terminate()
        child.wait(30)


def status(url: str, form: dict[str, str] | None = None, **headers: str) -> int:
    data = urllib.parse.urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as exc:
        return exc.code
    except OSError:
        return 0


def test_the_page_sends_no_key_to_a_host_of_a_form(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """A form of another page is refused; a field of our own page can change neither the host nor the database."""
    with LoggingEndpoint() as elsewhere, page(endpoint, tmp_path) as url:
        form = {
            "user_count": "2",
            "spawn_rate": "2",
            "run_time": "3s",
            "host": elsewhere.base_url,
            "db": "sqlite:///evil.db",
        }
        assert status(f"{url}/swarm", form, Origin="http://evil.example") == 403
        assert status(url, Host="evil.example") == 403
        time.sleep(1)
        assert elsewhere.asked_at_s == endpoint.asked_at_s == []
        assert status(f"{url}/swarm", form, Origin=url) == 200
        wait_for(lambda: len(endpoint.answered) >= 10)
        assert elsewhere.asked_at_s == []
    assert (tmp_path / "surgeproof.db").exists()
    assert not (tmp_path / "evil.db").exists()
