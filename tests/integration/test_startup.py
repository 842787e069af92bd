"""What a start loads: help and reports must not wait for libraries that they do not need."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import surgeproof.ci.gate, surgeproof.ci.reports, surgeproof.ci.json_output", ("gevent", "sqlalchemy")),
        ("import surgeproof.commands.main", ("gevent", "sqlalchemy", "numpy", "yaml", "httpx2")),
        ("import surgeproof.runs.locust_process", ("gevent", "sqlalchemy", "numpy")),
    ],
)
def test_a_module_loads_nothing_that_it_does_not_need(statement: str, unwanted: tuple[str, ...]) -> None:
    program = f"{statement}\nimport sys\nprint([name for name in {unwanted!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
