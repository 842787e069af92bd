"""Servers that send bombs and endless heads, a host without descriptors, a spool with damage."""

import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.faults.hostile_servers import Answer, bomb, endless_head, hostile_server
from tests.e2e.faults.logging_endpoint import LoggingEndpoint
from tests.e2e.faults.test_database import endpoint, started
from tests.e2e.test_crash import locusts, stored, wait_for
from tests.e2e.test_run import rows, surgeproof

__all__ = ["endpoint"]


@pytest.mark.parametrize(("answer", "outcome"), [(bomb, "error:encoding"), (endless_head, "error:malformed")])
def test_a_hostile_answer_is_an_error_in_little_memory(tmp_path: Path, answer: Answer, outcome: str) -> None:
    with hostile_server(post=answer) as base_url:
        command = [
            sys.executable, "-m", "surgeproof", "run", "--base-url", base_url, "--model", "m", "--request-rate", "5",
            "--duration", "3s", "--input-len", "5", "--output-len", "5",
        ]  # fmt: skip
        child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        most = 0
        while child.poll() is None:
            with suppress(psutil.NoSuchProcess):
                most = max([most, *(process.memory_info().rss for process in locusts(child))])
            time.sleep(0.05)
        output = child.communicate(timeout=5)[0]
    found = rows(tmp_path / "surgeproof.db", "SELECT DISTINCT outcome FROM records")
    assert found == [(outcome,)], output
    assert 0 < most < 500_000_000


def test_a_host_without_descriptors_does_not_fail_the_server(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """`ulimit -n 64`: a hundred connections at once cannot be opened here, which is no fault of the server's."""
    (tmp_path / "slo.yaml").write_text("['success >= 99%']")
    command = (
        f"ulimit -n 64; exec {sys.executable} -m surgeproof run --base-url {endpoint.base_url} --request-rate inf "
        "--num-prompts 300 --max-concurrency 200 --input-len 5 --output-len 5 --slo slo.yaml"
    )
    result = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert result.returncode == 5, result.stdout + result.stderr
    assert "client_resource" in result.stdout
    assert rows(tmp_path / "surgeproof.db", "SELECT verdict FROM runs") == [("INVALID",)]


def test_a_damaged_spool_costs_one_batch_and_every_verdict(endpoint: LoggingEndpoint, tmp_path: Path) -> None:
    """Bytes in the middle of a batch were overwritten before `recover`: all other batches are stored."""
    (tmp_path / "slo.yaml").write_text("['ttft p50 < 10s']")
    child = started(endpoint, tmp_path, "--slo", "slo.yaml", seconds=60)
    wait_for(lambda: stored(tmp_path) >= 90)
    child.kill()
    time.sleep(3)
    child.communicate()
    (spool,) = (tmp_path / "surgeproof.db.spool").glob("*/worker-000.spool")
    data = bytearray(spool.read_bytes())
    second = 12 + struct.unpack_from("<4sII", data)[1]
    data[second + 40 : second + 80] = bytes(40)
    spool.write_bytes(data)
    result = surgeproof("recover", cwd=tmp_path)
    assert "spool_damaged_bytes" in result.stdout, result.stdout + result.stderr
    assert rows(tmp_path / "surgeproof.db", "SELECT verdict FROM runs") == [("INVALID",)]
    assert endpoint.missing(tmp_path / "surgeproof.db") == set()
