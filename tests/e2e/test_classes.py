"""Classes that are different work: each with lengths, prompts, model, headers and fields of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.test_run import rows, surgeproof
from tests.served_app import ServedApp

SCENARIO = """
load:
  classes: {P0: 1, P1: 1, P2: 1}
  by_class:
    P0: {input_len: 20, output_len: 3, model: fast, headers: {x-llm-d-inference-objective: payments}}
    P2: {dataset: logs.jsonl, output_len: 50, extra_body: {temperature: 0.9}}
slo:
  P0: ["success >= 50%"]
"""


@pytest.mark.parametrize(
    "load", [("--request-rate", "30", "--num-prompts", "45"), ("--concurrency", "6", "--num-prompts", "45")]
)
def test_each_class_asks_its_own(load: tuple[str, ...], tmp_path: Path) -> None:
    asked: list[tuple[dict[str, Any], str | None]] = []

    async def chat(request: web.Request) -> web.Response:
        asked.append((await request.json(), request.headers.get("x-llm-d-inference-objective")))
        return web.json_response({
            "choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        })  # fmt: skip

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    (tmp_path / "logs.jsonl").write_text("\n".join(json.dumps({"prompt": f"log line {n}"}) for n in range(3)))
    with ServedApp(app) as server:
        target = ("--base-url", f"{server.url}/v1", "--model", "base", "--input-len", "100", "--output-len", "9")
        result = surgeproof("run", "s.yaml", *target, *load, cwd=tmp_path)
    assert "45 answered" in result.stdout, result.stdout + result.stderr
    found: dict[str, int] = {}
    for body, objective in asked:
        words = len(body["messages"][0]["content"].split())
        if body["model"] == "fast":
            name, expected = "P0", (20, 3, 0, "payments")
        elif body["messages"][0]["content"].startswith("log line"):
            name, expected = "P2", (3, 50, 0.9, None)
        else:
            name, expected = "P1", (100, 9, 0, None)
        assert (words, body["max_tokens"], body["temperature"], objective) == expected
        found[name] = found.get(name, 0) + 1
    stored = dict(rows(tmp_path / "surgeproof.db", "SELECT request_class, count(*) FROM records GROUP BY 1"))
    assert found == stored
    assert set(stored) == {"P0", "P1", "P2"}
    assert "dataset of P2: 3 rows for" in result.stderr
    models = dict(rows(tmp_path / "surgeproof.db", "SELECT DISTINCT request_class, model FROM records"))
    assert models == {"P0": "fast", "P1": "base", "P2": "base"}


@pytest.mark.parametrize(
    ("by_class", "message"),
    [
        ("{P7: {input_len: 5}}", "unknown class 'P7'"),
        ("{P0: {input_len: 0}}", "load.by_class.P0.input_len must lie between 1 and"),
        ("{P0: {lenght: 5}}", "unknown field `lenght`"),
        ("{P0: {dataset: a.jsonl, input_len: 5}}", "a dataset's rows have lengths of their own"),
        ("{P0: {headers: {Authorization: x}}}", "Authorization would be stored"),
        ("{P0: {headers: {'a b': x}}}", "header name 'a b' is not valid"),
        ("{P0: {dataset: nowhere.jsonl}}", "cannot read dataset"),
    ],
)
def test_a_mistake_in_a_class_is_named(by_class: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"load: {{by_class: {by_class}, classes: {{P0: 1, P1: 1}}}}")
    load = ("--request-rate", "5", "--num-prompts", "20")
    result = surgeproof("run", "s.yaml", "--base-url", "http://127.0.0.1:9/v1", *load, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
