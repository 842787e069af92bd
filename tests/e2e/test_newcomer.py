"""What a newcomer does: from a fresh clone by make, and from the installed wheel where there is no repository.

Both make an environment of their own and install the dependencies, which takes minutes.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.e2e.test_wheel import build_wheel

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900
pytestmark = [pytest.mark.slow, pytest.mark.install]


def bare_environment(folder: Path) -> dict[str, str]:
    """As on a machine that has never seen the project; package indexes stay where they are configured."""
    kept = ("PATH", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    found = {name: value for name, value in os.environ.items() if name in kept or name.startswith("PIP_")}
    home = os.environ.get("HOME", "/")
    config = next(
        (str(path) for path in (Path(home, ".pip/pip.conf"), Path(home, ".config/pip/pip.conf")) if path.exists()), None
    )
    return found | {"HOME": str(folder)} | ({"PIP_CONFIG_FILE": config} if config else {})


class Machine:
    """A folder, an environment and the installed program."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self.environment = bare_environment(folder)

    def surgeproof(self, *arguments: str, patience_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=patience_s, check=False,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *arguments], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The wheel with its base dependencies in a new environment, outside of any checkout."""
    folder = tmp_path_factory.mktemp("machine")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    environment = bare_environment(folder)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, env=environment)
    subprocess.run(
        [folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)],
        check=True, env=environment, cwd=folder, timeout=PATIENCE_S,
    )  # fmt: skip
    return Machine(folder, folder / "venv/bin/surgeproof")


@pytest.fixture(scope="module")
def endpoint(machine: Machine) -> Iterator[str]:
    """The simulated engine that the package brings along."""
    sim = machine.start("sim", "--port", "18474")
    assert sim.stdout is not None
    assert "18474" in sim.stdout.readline()
    yield "http://127.0.0.1:18474/v1"
    sim.terminate()
    sim.communicate(timeout=10)


def test_the_first_verdict_from_an_installed_package(machine: Machine, endpoint: str) -> None:
    """Version, help, an example, a probe, a run, its reports, the gate, a comparison."""
    assert machine.surgeproof("--version").stdout.startswith("surgeproof")
    assert "Exit codes" in machine.surgeproof("--help").stdout
    listed = machine.surgeproof("examples").stdout
    assert "mixed" in listed
    (machine.folder / "mixed.yaml").write_text(machine.surgeproof("examples", "mixed").stdout)
    probed = machine.surgeproof("probe", "--base-url", endpoint, "--json")
    assert json.loads(probed.stdout)["outcome"] == "ok"
    (machine.folder / "slo.yaml").write_text("all: ['success >= 90%', 'ttft p50 < 5s']\n")
    short = ("--window", "1620,1630", "--slo", "slo.yaml", "--junit", "slo.xml", "--name", "first")
    run = machine.surgeproof("run", "mixed.yaml", "--base-url", endpoint, *short)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "SLO board" in run.stdout
    assert ET.parse(machine.folder / "slo.xml").getroot().get("failures") == "0"
    assert "first" in machine.surgeproof("runs", "list").stdout
    assert json.loads(machine.surgeproof("runs", "show", "1", "--json").stdout)["verdict"] == "PASS"
    assert machine.surgeproof("gate", "1").returncode == 0
    assert machine.surgeproof("run", "mixed.yaml", "--base-url", endpoint, *short, "--quiet").returncode == 0
    assert machine.surgeproof("compare", "1", "2").returncode in (0, 3, 4)


def test_locust_from_an_installed_package(machine: Machine, endpoint: str) -> None:
    host = endpoint.removesuffix("/v1")
    result = machine.surgeproof(
        "locust", "--headless", "-u", "2", "-r", "2", "-t", "2s", "--host", host, "--csv", "base"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert (machine.folder / "base_stats.csv").exists()
    assert "Usage: locust" in machine.surgeproof("locust", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "--bse-url", "http://127.0.0.1:9/v1"), 2, "Did you mean"),
        (
            ("run", "--base-url", "http://127.0.0.1:9/v1", "--request-rate", "1", "--duration", "1s"),
            2,
            "Is the server up",
        ),
        (("run",), 2, "no load"),
        (("runs", "show", "x"), 2, "not a valid integer"),
        (("runs", "list", "--db", "sqlite:///nowhere.db"), 2, "run a load test first"),
        (("ui",), 2, "surgeproof[ui]"),
        (("examples", "nothing"), 2, "there is no example"),
    ],
)
def test_a_newcomers_mistakes_are_one_sentence(
    arguments: tuple[str, ...], code: int, words: str, machine: Machine
) -> None:
    result = machine.surgeproof(*arguments)
    assert result.returncode == code, result.stdout + result.stderr
    assert words.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr


def _records(database: Path) -> int:
    """How many records a run in progress has stored."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.OperationalError):
        return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])
    return 0


def test_ctrl_c_stores_what_was_measured(machine: Machine, endpoint: str) -> None:
    load = ("--request-rate", "5", "--duration", "120s", "--output-len", "5", "--db", "sqlite:///stopped.db")
    run = machine.start("run", "--base-url", endpoint, *load)
    deadline = time.monotonic() + 60
    while _records(machine.folder / "stopped.db") < 5 and time.monotonic() < deadline:
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    output = run.communicate(timeout=60)[0]
    assert run.returncode == 130, output
    assert "answered, 0 failed" in output
    assert "interrupted" in machine.surgeproof("runs", "list", "--db", "sqlite:///stopped.db").stdout


@pytest.mark.skipif(shutil.which("git") is None or shutil.which("make") is None, reason="needs git and make")
def test_a_fresh_clone_shows_a_verdict_by_make(tmp_path: Path) -> None:
    """The README's first command: environment, installation, a minute of traffic, the board."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    result = subprocess.run(
        ["make", "demo", f"PYTHON={sys.executable}"], cwd=tmp_path / "clone", env=bare_environment(tmp_path),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SLO board" in result.stdout
    assert "a gate would have exited with" in result.stdout
