"""Conversations and agents' tasks against an engine with a prefix cache, from the file to the verdict."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from surgeproof.sandbox.sim_process import SimProcess
from surgeproof.storage.queries import get_run
from surgeproof.storage.store import open_engine
from tests.e2e.test_run import rows, surgeproof
from tests.served_app import ServedApp


def summary_of(folder: Path) -> Any:
    run = get_run(open_engine(f"sqlite:///{folder}/surgeproof.db"), 1)
    assert run.summary is not None
    return run.summary


def run(sim: SimProcess, folder: Path, *flags: str) -> str:
    result = surgeproof("run", "--base-url", sim.base_url, *flags, cwd=folder)
    # A host whose cores others use may make a client late, which voids a run without objectives.
    assert result.returncode in (0, 5), result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_later_turns_tell_what_was_really_answered(tmp_path: Path, endpoint: str) -> None:
    """The recorded answer is not sent; the server's own is, whatever the API."""
    sim_bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        sim_bodies.append(body)
        number = len(sim_bodies)
        text = f"answer {number}"
        whole = {
            "chat": {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]},
            "responses": {
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
            },
            "messages": {"type": "message", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"},
        }[endpoint]  # fmt: skip
        return web.json_response(whole)

    app = web.Application()
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        app.router.add_post(path, answer)
    turns = [
        {"from": "human", "value": "first"}, {"from": "gpt", "value": "recorded"}, {"from": "human", "value": "second"},
        {"from": "gpt", "value": "recorded"}, {"from": "human", "value": "third"},
    ]  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps([{"conversations": turns}]))
    with ServedApp(app) as server:
        result = surgeproof(
            "run", "--base-url", f"{server.url}/v1", "--model", "m", "--dataset", "s.json", "--turns", "live",
            "--request-rate", "10", "--num-prompts", "1", "--endpoint", endpoint, "--no-stream", cwd=tmp_path,
        )  # fmt: skip
    assert "3 answered" in result.stdout, result.stdout + result.stderr
    key = "input" if endpoint == "responses" else "messages"
    told = [[(one["role"], one["content"]) for one in body[key]] for body in sim_bodies]
    assert told[2] == [
        ("user", "first"), ("assistant", "answer 1"), ("user", "second"), ("assistant", "answer 2"), ("user", "third"),
    ]  # fmt: skip
    assert b"answer 1" not in (tmp_path / "surgeproof.db").read_bytes()
    assert b"second" not in (tmp_path / "surgeproof.db").read_bytes()


def test_the_servers_cache_serves_what_the_conversations_share(sim: SimProcess, tmp_path: Path) -> None:
    shown = run(
        sim, tmp_path, "--turns", "live", "--session-turns", "4", "--request-rate", "8", "--num-prompts", "24",
        "--input-len", "200", "--output-len", "30", "--think-time", "50ms", "--processes", "2",
    )  # fmt: skip
    tasks = summary_of(tmp_path).tasks
    assert (tasks.tasks, tasks.done, tasks.requests) == (24, 24, 96)
    assert "24 tasks of 96 requests: 24 done, 0 failed" in shown
    (shares,) = rows(
        tmp_path / "surgeproof.db",
        "SELECT 1.0*sum(planned_cached_tokens)/sum(input_tokens), 1.0*sum(cached_tokens)/sum(input_tokens) "
        "FROM records",
    )
    # 230 of 430, 460 of 660 and 690 of 890 tokens were told before.
    assert shares[0] == pytest.approx((230 + 460 + 690) / (200 + 430 + 660 + 890), abs=1e-9)
    assert abs(shares[1] - shares[0]) <= 0.02


def test_the_graph_of_a_task_holds_and_its_slo_is_judged(sim: SimProcess, tmp_path: Path) -> None:
    """A plan, two sub-agents beside each other with a tool between, and a join that is told their answers."""
    task = {
        "request_class": "P0",
        "steps": [
            {"id": "plan", "prompt": "make a plan", "output_tokens": 8},
            {"id": "a", "after": ["plan"], "input_tokens": 40, "output_tokens": 4, "wait_s": 0.05},
            {"id": "b", "after": ["plan"], "input_tokens": 40, "output_tokens": 16},
            {"id": "a2", "after": ["a"], "continues": "a", "input_tokens": 10, "output_tokens": 4, "wait_s": 0.02},
            {"id": "end", "after": ["plan", "b", "a2"], "continues": "plan", "with_answers": True, "prompt": "write it",
             "output_tokens": 4},
        ],
    }  # fmt: skip
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    (tmp_path / "slo.yaml").write_text("P0:\n  - task p90 < 20s\n  - e2e p90 < 10s where turn = 4\n")
    run(
        sim, tmp_path, "--tasks", "tasks.jsonl", "--request-rate", "20", "--num-prompts", "60", "--slo", "slo.yaml",
        "--processes", "2",
    )  # fmt: skip
    found = rows(
        tmp_path / "surgeproof.db",
        "SELECT task, turn, intended_at_ns, sent_at_ns, done_at_ns, outcome, input_tokens FROM records",
    )
    assert len(found) == 300
    assert {row[5] for row in found} == {"ok"}
    by_task: dict[int, dict[int, Any]] = {}
    for row in found:
        by_task.setdefault(row[0], {})[row[1]] = row
    after = {1: [0], 2: [0], 3: [1], 4: [0, 2, 3]}
    waits = {1: 50_000_000, 2: 0, 3: 20_000_000, 4: 0}
    for steps in by_task.values():
        for step, before in after.items():
            due = max(steps[one][4] for one in before) + waits[step]
            assert steps[step][2] == due
            assert steps[step][3] >= due
        # "make a plan" and 8 words, the answers of 16 and 4 words, "write it".
        assert steps[4][6] == 3 + 8 + 16 + 4 + 2
    verdicts = rows(tmp_path / "surgeproof.db", "SELECT metric, n, verdict FROM verdicts ORDER BY position")
    assert verdicts == [("task", 60, "PASS"), ("e2e", 60, "PASS")]


def test_users_do_conversations_and_a_failing_server_ends_them(tmp_path: Path) -> None:
    with SimProcess("--time-scale", "0.2", "--inject", "http_500=0.3") as failing:
        result = surgeproof(
            "run", "--base-url", failing.base_url, "--turns", "live", "--session-turns", "3", "--concurrency", "4",
            "--num-prompts", "40", "--duration", "60s", "--input-len", "20", "--output-len", "4", cwd=tmp_path,
        )  # fmt: skip
    tasks = summary_of(tmp_path).tasks
    assert tasks.tasks == 40, result.stdout + result.stderr
    assert 0 < tasks.failed < 40
    outcomes = rows(
        tmp_path / "surgeproof.db",
        "SELECT count(*), sum(outcome = 'skipped'), sum(outcome = 'error:http_500'), count(DISTINCT task) FROM records",
    )
    ((count, skipped, failed, numbers),) = outcomes
    assert (count, numbers) == (120, 40)
    # Each failed task failed once, and what came behind was not sent.
    assert failed == tasks.failed
    assert skipped == tasks.skipped > 0


def test_answers_are_stopped_by_their_users(sim: SimProcess, tmp_path: Path) -> None:
    run(
        sim, tmp_path, "--turns", "live", "--session-turns", "2", "--request-rate", "20", "--num-prompts", "40",
        "--input-len", "20", "--output-len", "50", "--stop-share", "0.5", "--stop-after", "5",
    )  # fmt: skip
    stopped = rows(
        tmp_path / "surgeproof.db",
        "SELECT count(*), min(token_events), max(token_events), sum(http_status = 200) FROM records "
        "WHERE outcome = 'stopped'",
    )
    ((count, least, most, answered),) = stopped
    assert 20 < count == answered < 60
    assert 5 <= least <= most < 50
    assert summary_of(tmp_path).tasks.done == 40


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--turns", "live"), "live needs conversations"),
        (("--session-turns", "3"), "need load.turns: live"),
        (("--turns", "live", "--session-turns", "3", "--endpoint", "completions"), "no messages to go on with"),
        (("--tasks", "t.jsonl", "--turns", "live", "--session-turns", "2"), "remove dataset, trace, session_turns"),
        (("--stop-share", "2"), "load.stop_share must lie between 0 and 1"),
    ],
)
def test_loads_that_have_no_conversations_are_refused(
    sim: SimProcess, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "t.jsonl").write_text('{"steps": [{"input_tokens": 4}]}')
    result = surgeproof(
        "run", "--base-url", sim.base_url, "--request-rate", "5", "--num-prompts", "5", *flags, cwd=tmp_path
    )
    assert result.returncode == 2
    assert said in result.stderr


def test_tasks_without_times_need_a_rate(sim: SimProcess, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"steps": [{"input_tokens": 4}]}')
    result = surgeproof("run", "--base-url", sim.base_url, "--tasks", "t.jsonl", cwd=tmp_path)
    assert result.returncode == 2
    assert "the tasks have no times: give --request-rate" in result.stderr
