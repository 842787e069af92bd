"""Fixtures that several rooms use."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surgeproof.sandbox.sim_process import SimProcess

HERE = Path(__file__).parent
TRACES = HERE.parents[1] / "shared" / "traces"


def wire_cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / "wire" / "wire_cases.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was measured of the developer's host must not change what tests see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def sim() -> Iterator[SimProcess]:
    """One fast simulated endpoint for the whole session."""
    with SimProcess("--time-scale", "0.2") as process:
        yield process


@pytest.fixture
def real_trace() -> Any:
    """Path of a public trace; the test is skipped where the file is not there."""

    def find(name: str) -> Path:
        path = TRACES / name
        if not path.exists():
            pytest.skip(f"the public trace {name} is not beside the checkout")
        return path

    return find
