"""A dataset's rows reach the server as they are, by the schedule of the run, and are stored nowhere."""

import json
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.e2e.test_run import rows, surgeproof
from tests.served_app import ServedApp

SECRET = "a sentence of a user"


def test_every_row_is_sent_as_it_is_and_no_prompt_is_kept(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []
    ids: list[str] = []

    async def chat(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        ids.append(request.headers["X-Request-Id"])
        answer = {
            "choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        }
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    given = [
        {"messages": [{"role": "user", "content": f"{SECRET} {number}"}], "max_tokens": 10 + number, "tools": tools}
        for number in range(4)
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row | {"model": "theirs"}) for row in given))
    with ServedApp(app) as server:
        result = surgeproof(
            "run", "--base-url", f"{server.url}/v1", "--model", "ours", "--dataset", "data.jsonl",
            "--request-rate", "20", "--arrivals", "constant", "--num-prompts", "6", "--processes", "2",
            "--temperature", "none", cwd=tmp_path,
        )  # fmt: skip
    assert "6 answered" in result.stdout, result.stdout + result.stderr
    assert "4 rows for 6 requests: prompts repeat" in result.stderr
    assert len(bodies) == 6
    # Some servers answer 400 to anything but a UUID of version 4.
    assert {uuid.UUID(one).version for one in ids} == {4}
    assert {uuid.UUID(one).variant for one in ids} == {uuid.RFC_4122}
    assert len(set(ids)) == 6
    assert all(str(uuid.UUID(one)) == one for one in ids)
    by_text = sorted(bodies, key=lambda body: body["messages"][0]["content"])
    asked = [body["messages"][0]["content"][-1] for body in by_text]
    assert asked == ["0", "0", "1", "1", "2", "3"]
    for body in by_text:
        row = given[int(body["messages"][0]["content"][-1])]
        assert (body["model"], body["tools"], body["max_tokens"]) == ("ours", tools, row["max_tokens"])
        assert "temperature" not in body
    planned = rows(tmp_path / "surgeproof.db", "SELECT DISTINCT planned_output_tokens FROM records ORDER BY 1")
    assert planned == [(10,), (11,), (12,), (13,)]
    for path in tmp_path.rglob("*"):
        assert path.name == "data.jsonl" or not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_messages_are_not_for_completions(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    result = surgeproof(
        "run", "--base-url", "http://127.0.0.1:9/v1", "--endpoint", "completions", "--dataset", "data.jsonl",
        "--request-rate", "1", "--num-prompts", "1", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2
    assert "row 1 holds messages, which the completions endpoint does not take" in result.stderr
