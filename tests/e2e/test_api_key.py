"""`--api-key-command` against an endpoint whose keys end during the run."""

from pathlib import Path

import pytest
from aiohttp import web

from tests.e2e.test_run import rows, surgeproof
from tests.served_app import ServedApp

LOAD = ("--model", "m", "--request-rate", "40", "--duration", "4s", "--input-len", "5", "--output-len", "1")
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def rotating(key_file: Path, every: int) -> web.Application:
    """An endpoint with one valid key, which it replaces after so many answers; the file holds the valid one."""
    state = {"number": 0, "left": every}
    key_file.write_text("issued-key-0\n")

    async def chat(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer issued-key-{state['number']}":
            return web.json_response({"error": {"message": "the key has expired"}}, status=401)
        state["left"] -= 1
        if state["left"] == 0:
            state["number"], state["left"] = state["number"] + 1, every
            key_file.write_text(f"issued-key-{state['number']}\n")
        return web.Response(body=TOKEN, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    return app


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_key_that_ends_costs_no_answer(processes: str, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    with ServedApp(rotating(key_file, 100)) as server:
        result = surgeproof(
            "run", "--base-url", f"{server.url}/v1", *LOAD, "--processes", processes,
            "--api-key-command", f"cat {key_file}", cwd=tmp_path, OPENAI_API_KEY="another",
        )  # fmt: skip
    assert result.returncode in (0, 5), result.stdout + result.stderr
    key_file.unlink()
    records = rows(tmp_path / "surgeproof.db", "SELECT outcome, retries, warnings FROM records")
    assert len(records) > 100
    assert {outcome for outcome, _, _ in records} == {"ok"}
    resent = [retries for _, retries, warnings in records if "api_key_renewed" in (warnings or "")]
    assert resent == [1] * len(resent) != []
    assert f"{len(resent)} requests were refused with HTTP 401 and sent again with a new key" in " ".join(
        result.stdout.split()
    )
    holding = [p for p in tmp_path.rglob("*") if p.is_file() and b"issued-key" in p.read_bytes()]
    assert not holding


def test_a_key_that_cannot_be_renewed_is_told(tmp_path: Path) -> None:
    """The command worked once, for the check before the run."""
    once = f"test ! -e {tmp_path}/used && touch {tmp_path}/used && echo first-key || {{ echo signed out >&2; exit 4; }}"
    with ServedApp(rotating(tmp_path / "key", 100)) as server:
        result = surgeproof(
            "run", "--base-url", f"{server.url}/v1", *LOAD, "--api-key-command", once, cwd=tmp_path
        )  # fmt: skip
    assert result.returncode == 3, result.stdout + result.stderr
    assert "error:http_401" in result.stdout
    assert "--api-key-command" in result.stdout


@pytest.mark.parametrize("more", [("--api-key", "k"), ("--header", "authorization=Bearer k")])
def test_two_sources_of_a_key_are_refused(more: tuple[str, ...], tmp_path: Path) -> None:
    result = surgeproof("run", "--base-url", "http://127.0.0.1:9/v1", *LOAD, "--api-key-command", "echo k", *more,
                        cwd=tmp_path)  # fmt: skip
    assert (result.returncode, result.stderr) == (
        2, "Error: --api-key-command makes the key: leave --api-key and --header Authorization out\n",
    )  # fmt: skip


def test_a_command_that_fails_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    result = surgeproof(
        "run", "--base-url", "http://127.0.0.1:9/v1", *LOAD, "--api-key-command", "exit 7", cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (
        2, "Error: --api-key-command: the command ended with exit code 7\n",
    )  # fmt: skip
    assert not list(tmp_path.iterdir())
