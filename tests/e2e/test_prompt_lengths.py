"""Prompts as long as asked, by the server's own count: a server with a chat template, counted in two ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.test_run import rows, surgeproof
from tests.served_app import ServedApp

TEMPLATE = 17
LOAD = ("--model", "m", "--request-rate", "20", "--num-prompts", "40", "--input-len", "400", "--output-len", "1")


def tokens_of(text: str) -> int:
    """Words of over six letters are two tokens."""
    return sum(2 if len(word) > 6 else 1 for word in text.split())


def templating(tokenize: Callable[[dict[str, Any]], Any] | None) -> web.Application:
    """Counts the text and a template; `tokenize` answers a body of /tokenize, None for 404."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        usage = {
            "prompt_tokens": TEMPLATE + tokens_of(body["messages"][0]["content"]),
            "completion_tokens": 1,
            "total_tokens": 0,
        }
        event = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
        return web.Response(
            body=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode(), content_type="text/event-stream"
        )

    async def count(request: web.Request) -> web.Response:
        answer = tokenize(await request.json()) if tokenize is not None else None
        return web.json_response(answer if answer is not None else {}, status=400 if answer is None else 200)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/tokenize", count)
    return app


def vllm(body: dict[str, Any]) -> Any:
    if "messages" in body:
        return {"count": TEMPLATE + tokens_of(body["messages"][0]["content"]), "max_model_len": 4096}
    return {"count": 1 + tokens_of(body["prompt"])} if "prompt" in body else None


def llama_cpp(body: dict[str, Any]) -> Any:
    return {"tokens": [0] * tokens_of(body["content"])} if "content" in body else None


def mean_tokens(tmp_path: Path) -> float:
    return float(rows(tmp_path / "surgeproof.db", "SELECT avg(input_tokens) FROM records WHERE outcome = 'ok'")[0][0])


def test_what_the_probe_shows_makes_prompts_exact(tmp_path: Path) -> None:
    """417 or more without, 400 within 2 % with the flags that it shows."""
    with ServedApp(templating(None)) as server:
        base = ("--base-url", f"{server.url}/v1")
        plain = surgeproof("run", *base, *LOAD, cwd=tmp_path)
        off = mean_tokens(tmp_path)
        shown = surgeproof("probe", *base, "--model", "m", cwd=tmp_path).stdout
        lengths = json.loads(surgeproof("probe", *base, "--model", "m", "--json", cwd=tmp_path).stdout)["lengths"]
        (tmp_path / "surgeproof.db").unlink()
        flags = (
            "--words-per-token",
            f"{lengths['words_per_token']:.3f}",
            "--template-tokens",
            str(lengths["template_tokens"]),
        )
        exact = surgeproof("run", *base, *LOAD, *flags, cwd=tmp_path)
    assert lengths["template_tokens"] == TEMPLATE
    assert " ".join(flags) in " ".join(shown.split())
    assert off > 1.04 * 400
    assert "prompt tokens a request against the plan" in plain.stdout
    assert mean_tokens(tmp_path) == pytest.approx(400, rel=0.02)
    assert "prompt tokens a request against the plan" not in exact.stdout


def test_the_servers_tokenizer_makes_prompts_exact(tmp_path: Path) -> None:
    with ServedApp(templating(vllm)) as server:
        result = surgeproof("run", "--base-url", f"{server.url}/v1", *LOAD, "--tokenizer", "server", cwd=tmp_path)
    assert f"{TEMPLATE} tokens are added to each prompt" in " ".join(result.stderr.split())
    assert mean_tokens(tmp_path) == pytest.approx(400, rel=0.02)


def test_a_server_that_counts_texts_only_does_not_tell_its_template(tmp_path: Path) -> None:
    with ServedApp(templating(llama_cpp)) as server:
        result = surgeproof("run", "--base-url", f"{server.url}/v1", *LOAD, "--tokenizer", "server",
                            "--template-tokens", str(TEMPLATE), cwd=tmp_path)  # fmt: skip
    assert mean_tokens(tmp_path) == pytest.approx(400, rel=0.02), result.stderr


def test_a_server_without_tokenize_is_told(tmp_path: Path) -> None:
    with ServedApp(templating(None)) as server:
        result = surgeproof("run", "--base-url", f"{server.url}/v1", *LOAD, "--tokenizer", "server", cwd=tmp_path)
    assert result.returncode == 2
    assert "has no /tokenize that we know" in result.stderr
    assert not list(tmp_path.iterdir())
