"""Servers that freeze, answer late or answer nothing: the verdict of a run against each."""

import asyncio
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.e2e.test_run import surgeproof, trusted
from tests.served_app import ServedApp

TOKENS = 5


@contextmanager
def server(pause_s: Callable[[], float]) -> Iterator[str]:
    """An endpoint that streams five tokens, each after `pause_s()`; yields its base URL."""

    async def chat(_request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(_request)
        for index in range(TOKENS):
            await asyncio.sleep(pause_s())
            chunk = {"choices": [{"index": 0, "delta": {"content": f"t{index} "}, "finish_reason": None}]}
            await reply.write(f"data: {json.dumps(chunk)}\n\n".encode())
        usage = {"prompt_tokens": 512, "completion_tokens": TOKENS}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage}
        await reply.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        return reply

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    with ServedApp(app, handler_cancellation=True) as served:
        yield f"{served.url}/v1"


def freezing(every_s: float, for_s: float) -> Callable[[], float]:
    """10 ms a token, but nothing in the last `for_s` of each `every_s`."""
    started = time.monotonic()

    def pause_s() -> float:
        left = every_s - (time.monotonic() - started + 0.01) % every_s
        return 0.01 + (left if left < for_s else 0.0)

    return pause_s


def test_a_stall_in_a_closed_loop_does_not_pass(tmp_path: Path) -> None:
    """Two seconds in every six, four users: nearly all first tokens are fast, since nobody asks during a stall."""
    (tmp_path / "slo.yaml").write_text("['ttft p95 < 500ms']")
    with server(freezing(6.0, 2.0)) as url:
        flags = ("--base-url", url, "--concurrency", "4", "--duration", "13s", "--slo", "slo.yaml")
        result = trusted(*flags, "--markdown", "slo.md", cwd=tmp_path)
    assert result.returncode == 4, result.stdout + result.stderr
    text = " ".join(result.stdout.split())
    assert re.search(r"closed loop: a stall of (1\.9|2\.[0-3]) s stopped the schedule", text), result.stdout
    assert "Latency from the send (closed loop" in text
    assert "the server stalled 2 times" in text
    assert "closed loop" in (tmp_path / "slo.md").read_text()


def test_a_server_without_stalls_passes_a_closed_loop(tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text("['ttft p95 < 5s']")
    with server(lambda: 0.01) as url:
        flags = ("--base-url", url, "--concurrency", "4", "--duration", "5s", "--slo", "slo.yaml")
        result = trusted(*flags, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "stalled" not in result.stdout


def test_waiting_for_the_cap_does_not_void_the_client(tmp_path: Path) -> None:
    """2 places of half a second serve 4/s where 10/s are planned: the wait is the server's, and a miss."""
    (tmp_path / "slo.yaml").write_text("['e2e p95 < 1s']")
    flags = ("--request-rate", "10", "--arrivals", "constant", "--duration", "4s", "--max-concurrency", "2")
    with server(lambda: 0.1) as url:
        result = trusted("--base-url", url, *flags, "--slo", "slo.yaml", cwd=tmp_path)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "waited for one of the 2 places of --max-concurrency" in " ".join(result.stdout.split())


def test_the_drain_limit_is_waited_for_once(tmp_path: Path) -> None:
    """Answers take 4 s from 0, 0.5, 1 and 1.5 s on: a plan of 2 s and a drain of 2.5 s take at most two, twice all."""
    flags = ("--request-rate", "2", "--arrivals", "constant", "--duration", "2s", "--json")
    with server(lambda: 0.8) as url:
        result = surgeproof("run", "--base-url", url, *flags, "--drain", "2500ms", cwd=tmp_path)
    outcomes = json.loads(result.stdout)["summary"]["classes"]["all"]["outcomes"]
    assert outcomes.get("error:timeout", 0) >= 2, outcomes
    assert outcomes.get("ok", 0) <= 2, outcomes


def test_a_request_that_hangs_does_not_lower_the_rate(tmp_path: Path) -> None:
    """One of 100 requests at 20/s takes 8 s longer: 100 in 13 s were 7.7/s."""
    pauses = itertools.count()
    flags = ("--request-rate", "20", "--arrivals", "constant", "--duration", "5s", "--json")
    with server(lambda: 8.0 if next(pauses) == 200 else 0.01) as url:
        result = surgeproof("run", "--base-url", url, *flags, cwd=tmp_path)
    figures = json.loads(result.stdout)["summary"]["classes"]["all"]
    assert figures["ok"] == 100
    assert figures["latency_ms"]["e2e"]["max"] > 8000
    assert figures["requests_per_s"] == pytest.approx(20.0, abs=1.0)


@pytest.mark.faults
def test_a_ladder_is_judged_step_by_step(tmp_path: Path) -> None:
    """A reply of 250 ms: 1 user asks 4 times a second, 4 users 16 times; no figure over both is shown."""
    (tmp_path / "slo.yaml").write_text("['requests_per_s >= 8']")
    flags = ("--concurrency", "1,4", "--duration", "8s", "--warmup", "1s", "--slo", "slo.yaml")
    with server(lambda: 0.05) as url:
        result = trusted("--base-url", url, *flags, "--json", cwd=tmp_path)
    found = json.loads(result.stdout)
    verdicts = {verdict["rule"]: verdict["verdict"] for verdict in found["verdicts"]}
    assert verdicts == {"requests_per_s >= 8 where step = 1": "FAIL", "requests_per_s >= 8 where step = 4": "PASS"}
    for users, figures in found["summary"]["steps"].items():
        assert figures["requests_per_s"] == pytest.approx(4 * int(users), rel=0.15)


@pytest.mark.parametrize("rules", [None, "['success >= 0%']"])
def test_a_run_in_which_nothing_was_answered_exits_3(tmp_path: Path, rules: str | None) -> None:
    def broken() -> float:
        raise ConnectionResetError

    flags = ["--request-rate", "20", "--arrivals", "constant", "--duration", "2s"]
    if rules:
        (tmp_path / "slo.yaml").write_text(rules)
        flags += ["--slo", "slo.yaml"]
    with server(broken) as url:
        result = trusted("--base-url", url, *flags, cwd=tmp_path)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "0 of 40 answered: 40 × error:" in " ".join(result.stdout.split())
