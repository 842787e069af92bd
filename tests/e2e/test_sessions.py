"""Conversations and shared prefixes against an engine with a prefix cache."""

import itertools
import json
from pathlib import Path
from typing import Any

from surgeproof.results import DispatchLine
from surgeproof.sandbox.sim_process import SimProcess
from surgeproof.storage.queries import get_run
from surgeproof.storage.store import open_engine
from tests.e2e.test_run import rows, surgeproof


def written(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(line) for line in lines))


def dispatch(tmp_path: Path) -> dict[str, DispatchLine]:
    run = get_run(open_engine(f"sqlite:///{tmp_path}/surgeproof.db"), 1)
    assert run.summary is not None
    return {line.name: line for line in run.summary.dispatch or ()}


def test_planned_prefix_hits_are_found_by_the_server(sim: SimProcess, tmp_path: Path) -> None:
    """Twenty prompts of four blocks, three of them shared by groups of four: the server's own cache finds them."""
    lines = [
        {
            "timestamp": 150 * i,
            "input_length": 256,
            "output_length": 3,
            "hash_ids": [i % 5, 10 + i % 5, 20 + i % 5, 100 + i],
        }
        for i in range(20)
    ]
    written(tmp_path, lines)
    (tmp_path / "s.yaml").write_text("load: {trace: t.jsonl, block_tokens: 64}\n")
    result = surgeproof("run", "s.yaml", "--base-url", sim.base_url, "--seed", "77", cwd=tmp_path)
    assert result.returncode in (0, 5), result.stdout + result.stderr
    line = dispatch(tmp_path)["cached share of prompt tokens"]
    # Fifteen of twenty find three of four blocks; the server's blocks of 16 tokens may cost one at the edge.
    assert line.planned == 15 * 192 / (20 * 256)
    assert line.planned - 15 * 16 / (20 * 256) - 0.03 <= line.achieved <= line.planned + 0.03
    shown = surgeproof("runs", "show", "1", cwd=tmp_path).stdout
    assert "cached share of prompt tokens" in shown


def session(at_s: float, think_s: float | None = None) -> dict[str, Any]:
    line = {"at_s": at_s, "input_tokens": 16, "output_tokens": 40, "session": "a"}
    return line if think_s is None else line | {"think_s": think_s}


def test_turns_wait_for_the_answer_before_when_asked_to(sim: SimProcess, tmp_path: Path) -> None:
    """At their time stamps all three overtake the answer before; after the response none does."""
    written(tmp_path, [session(0.0), session(0.01), session(0.02), session(0.03, think_s=0.2)])
    for mode in ("at_timestamp", "after_response"):
        (tmp_path / "surgeproof.db").unlink(missing_ok=True)
        result = surgeproof("run", "--trace", "t.jsonl", "--base-url", sim.base_url, "--turns", mode, cwd=tmp_path)
        assert result.returncode in (0, 5), result.stdout + result.stderr
        overtakes = dispatch(tmp_path)["turns that overtook their answer"].achieved
        assert overtakes == (3 if mode == "at_timestamp" else 0)
    found = rows(
        tmp_path / "surgeproof.db", "SELECT intended_at_ns, sent_at_ns, done_at_ns FROM records ORDER BY plan_index"
    )
    for before, after in itertools.pairwise(found):
        assert after[1] >= before[2]
    # The last one's user thinks for 200 ms.
    assert found[3][0] - found[2][2] == 200_000_000
