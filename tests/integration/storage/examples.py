"""Runs and records to be stored."""

from typing import Any

from surgeproof.audit_results import Audit
from surgeproof.records import RunState, StreamRecord, Verdict
from surgeproof.results import Summary
from surgeproof.scenario import LoadConfig, Scenario
from surgeproof.slo.summary import summarise
from surgeproof.stored_runs import Environment, NewRun, RunEnd
from tests.unit.slo.columns import measured


def new_run(**changes: Any) -> NewRun:
    values: dict[str, Any] = {
        "uid": "abc",
        "name": "test",
        "started_at_ns": 1_800_000_000_123_456_789,
        "base_url": "http://x/v1",
        "model": "m",
        "endpoint": "chat",
        "scenario": Scenario(load=LoadConfig(request_rate=float("inf"))),
        "metadata": {"team": "a"},
        "environment": Environment(),
        "spool": "/nowhere",
    }
    return NewRun(**values | changes)


RUN = new_run()


def run_end(summary: Summary | None = None, **changes: Any) -> RunEnd:
    values: dict[str, Any] = {
        "state": RunState.FINISHED,
        "ended_at_ns": 1_800_000_060_000_000_000,
        "verdict": Verdict.PASS,
        "exit_code": 0,
        "audit": Audit(),
        "summary": summary or summarise(measured([100.0] * 10)),
        "environment": Environment(),
    }
    return RunEnd(**values | changes)


def record(index: int, **changes: Any) -> StreamRecord:
    values = {
        "plan_index": index,
        "request_class": "P0",
        "planned_input_tokens": 10,
        "planned_output_tokens": 5,
        "intended_at_ns": 1_800_000_000_000_000_001 + index,
        "outcome": "ok",
        "first_token_at_ns": 1_800_000_000_000_000_007 + index,
        "output_tokens": 5,
        "warnings": ("a", "b"),
        "arrivals": b"\x00\x01\x02\x03",
    }
    return StreamRecord(**values | changes)
