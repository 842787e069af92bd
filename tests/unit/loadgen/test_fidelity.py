"""The table after a run: what left beside what was planned."""

from typing import Any

import numpy as np

from surgeproof.columns import RecordColumns
from surgeproof.loadgen.fidelity import dispatch_lines
from surgeproof.loadgen.plan import Plan, add_sessions, make_plan, with_blocks
from surgeproof.results import DispatchLine

MS = 1_000_000


def plan(count: int = 100) -> Plan:
    times = np.arange(count, dtype=np.int64) * 200 * MS
    return make_plan(times, np.full((count, 2), (1024, 10)), {"P1": 1.0}, 1)


def columns(of: Plan, lag_ms: float = 1.0, **changes: Any) -> dict[str, Any]:
    count = len(of)
    planned = of.rows["intended_ns"].tolist()
    held: dict[str, Any] = {
        "plan_index": list(range(count)),
        "outcome": ["ok"] * count,
        "intended_at_ns": planned,
        "sent_at_ns": [at + round(lag_ms * MS) for at in planned],
        "connect_at_ns": [None] * count,
        "connected_at_ns": [None] * count,
        "done_at_ns": [at + 150 * MS for at in planned],
        "input_tokens": [1030] * count,
        "output_tokens": [10] * count,
        "cached_tokens": [None] * count,
        "planned_input_tokens": [1024] * count,
        "planned_output_tokens": [10] * count,
    }
    return held | changes


def lines(of: Plan, held: dict[str, Any]) -> dict[str, DispatchLine]:
    return {line.name: line for line in dispatch_lines(of, RecordColumns.of(held), None)}


def test_a_load_as_planned_passes_every_line() -> None:
    found = lines(plan(), columns(plan()))
    assert all(line.passed is not False for line in found.values())
    assert found["send lag p99, ms"].achieved == 1.0
    assert found["requests/s"].planned == 5.0
    assert (found["prompt tokens"].planned, found["prompt tokens"].achieved) == (102_400, 103_000)


def test_late_missing_and_longer_ones_are_named() -> None:
    held = columns(plan(), lag_ms=9.0)
    held["sent_at_ns"][3] = None
    held["input_tokens"] = [1100] * 100
    found = lines(plan(), held)
    off = {name for name, line in found.items() if line.passed is False}
    assert off == {"requests", "send lag p99, ms", "prompt tokens"}


def test_planned_and_achieved_cache_hits_stand_side_by_side() -> None:
    """Half of the prompts have one of two blocks cached; the server found a quarter less."""
    of = with_blocks(plan(), [(1, 2)] * 100, [512 if i % 2 else 0 for i in range(100)])
    found = lines(of, columns(of, cached_tokens=[384 if i % 2 else 0 for i in range(100)]))
    line = found["cached share of prompt tokens"]
    assert (line.planned, line.achieved) == (0.25, 0.1875)


def test_turns_that_overtake_their_answer_are_counted() -> None:
    """Turns come every 200 ms; one answer takes 250 ms."""
    of = plan(6)
    add_sessions(of, [0, 0, 0, 1, 1, -1], [None] * 6)
    held = columns(of)
    held["done_at_ns"][1] += 100 * MS
    found = lines(of, held)
    assert found["turns that overtook their answer"].achieved == 1
    assert found["later turns of sessions"].achieved == 3
