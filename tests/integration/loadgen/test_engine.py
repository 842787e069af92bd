"""The engine of one worker with an outbox that takes nothing."""

from pathlib import Path

import numpy as np
import pytest
from gevent.event import Event

from surgeproof.clock import MonotonicClock
from surgeproof.credentials import Secrets
from surgeproof.loadgen import engine
from surgeproof.loadgen.engine import Engine
from surgeproof.loadgen.plan import make_plan
from surgeproof.loadgen.spec import RunSpec
from surgeproof.loadgen.spool import SpoolWriter
from surgeproof.scenario import LoadConfig, Scenario
from tests.e2e.faults.logging_endpoint import LoggingEndpoint


def test_a_load_of_which_nothing_can_be_recorded_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses every byte: the load of an hour ends once a few kilobytes wait, and says what it lost."""
    monkeypatch.setattr(engine, "_MAX_UNWRITTEN_BYTES", 5_000)
    monkeypatch.setattr(engine, "_WRITE_RETRY_S", 0.0)
    clock, ended = MonotonicClock(), Event()
    count = 180_000
    every_20_ms = np.arange(count, dtype=np.int64) * 20_000_000
    plan = make_plan(every_20_ms, np.full((count, 2), 5), {"P1": 1.0}, seed=1)
    with LoggingEndpoint() as endpoint:
        spec = RunSpec(
            "0" * 32, Scenario(load=LoadConfig(request_rate=50.0)), endpoint.base_url, "m", clock.anchor_ns, ""
        )
        load = Engine(spec, Secrets(), plan, 0, 1, clock, SpoolWriter(Path("/dev/full")), lambda _: None, ended.set)
        load.start(clock.now_ns())
        assert ended.wait(timeout=60)
        load.stop(interrupted=True)
        assert load.lost_bytes > 5_000
        assert 0 < len(endpoint.asked_at_s) < count // 10
