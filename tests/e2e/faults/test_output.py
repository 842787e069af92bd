"""Output that cannot be written changes no exit code; report files are looked at before the load."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.faults.logging_endpoint import LoggingEndpoint
from tests.e2e.faults.test_database import endpoint
from tests.e2e.test_run import rows, surgeproof

__all__ = ["endpoint"]
COMMAND = f"{sys.executable} -m surgeproof"


@pytest.fixture
def judged(endpoint: LoggingEndpoint, tmp_path: Path) -> str:
    """A folder with one run that does not meet its objective; the flags of that run."""
    (tmp_path / "slo.yaml").write_text("['ttft p50 < 1ms']")
    load = "--request-rate 50 --duration 2s --input-len 10 --output-len 5"
    flags = f"run --base-url {endpoint.base_url} {load} --slo slo.yaml"
    # On a busy machine the audit rightly voids a run now and then: exit 5, which is as good here.
    assert surgeproof(*flags.split(), cwd=tmp_path).returncode in (3, 5)
    return flags


def code_of(folder: Path, run: int) -> int:
    """The exit code that a run's verdict stands for."""
    ((verdict,),) = rows(folder / "surgeproof.db", f"SELECT verdict FROM runs WHERE id = {run}")
    return {"FAIL": 3, "INVALID": 5}[verdict]


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=90, check=False)


def test_a_verdict_survives_closed_and_full_outputs(judged: str, tmp_path: Path) -> None:
    piped = shell(f"set -o pipefail; {COMMAND} {judged} | head -1", tmp_path)
    assert piped.returncode == code_of(tmp_path, 2), piped.stderr
    assert "Traceback" not in piped.stderr
    closed = shell(f"{COMMAND} gate 1 >&-", tmp_path)
    assert closed.returncode == code_of(tmp_path, 1), closed.stderr
    assert "Traceback" not in closed.stderr
    full = shell(f"{COMMAND} gate 1 --json > /dev/full", tmp_path)
    assert full.returncode == code_of(tmp_path, 1)
    assert "standard output cannot be written: No space left on device" in full.stderr


@pytest.mark.parametrize("path", ["missing/slo.xml", "."])
def test_a_report_that_cannot_be_written_is_refused_before_the_load(
    endpoint: LoggingEndpoint, tmp_path: Path, path: str
) -> None:
    result = surgeproof(
        "run", "--base-url", endpoint.base_url, "--request-rate", "5", "--duration", "1s", "--junit", path, cwd=tmp_path
    )
    assert result.returncode == 2
    assert "--junit" in result.stderr
    assert endpoint.asked_at_s == []


def test_a_report_that_fails_at_the_end_keeps_the_verdict(judged: str, tmp_path: Path) -> None:
    (tmp_path / "reports").symlink_to("/dev/full")
    result = surgeproof("gate", "1", "--junit", "reports", cwd=tmp_path)
    assert result.returncode == code_of(tmp_path, 1)
    assert "cannot write the report reports: No space left on device" in result.stderr
