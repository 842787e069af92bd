"""What a user's shell, server or proxy does to a run: foreign settings stay out, failures are told, caches are cold."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from aiohttp import web

from surgeproof.sandbox.sim_process import SimProcess
from tests.e2e.test_run import rows, surgeproof
from tests.served_app import ServedApp

SHORT = ("--request-rate", "20", "--num-prompts", "5", "--input-len", "10", "--output-len", "3")


LOCUSTS_OWN = {
    "LOCUST_MODE_WORKER": "true", "LOCUST_RUN_TIME": "1ms", "LOCUST_USERS": "7", "LOCUST_HEADLESS": "false",
    "LOCUST_LOCUSTFILE": "other.py", "GEVENT_LOOP": "no-such-loop", "GEVENT_RESOLVER": "no-such-resolver",
}  # fmt: skip
OF_A_SHELL = {
    "SSLKEYLOGFILE": "/no/such/folder/keys", "SSL_CERT_FILE": "/no/such/file", "ALL_PROXY": "socks5://127.0.0.1:9",
    "NO_PROXY": "127.0.0.0/8", "COLUMNS": "0", "TERM": "no-such-terminal", "LC_ALL": "xx_YY", "TZ": "No/Where",
    "TMPDIR": "/no/such/folder",
}  # fmt: skip


@pytest.mark.parametrize("settings", [LOCUSTS_OWN, OF_A_SHELL], ids=["locust", "shell"])
def test_settings_of_others_do_not_reach_a_run(settings: dict[str, str], sim: SimProcess, tmp_path: Path) -> None:
    """Nor do files that Locust reads by itself: in the user's home and in the current folder."""
    (tmp_path / ".locust.conf").write_text("worker = true\n")
    (tmp_path / "locust.conf").write_text("worker = true\n")
    (tmp_path / "pyproject.toml").write_text("[tool.locust]\nworker = true\n")
    (tmp_path / "locust.py").write_text("raise SystemExit('another module')\n")
    result = surgeproof("run", "--base-url", sim.base_url, *SHORT, cwd=tmp_path, HOME=str(tmp_path), **settings)
    assert "5 answered" in result.stdout, result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def refusing(status: int, message: str) -> web.Application:
    async def chat(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    return app


def test_a_wrong_key_ends_the_run_early_and_its_reason_is_everywhere(tmp_path: Path) -> None:
    with ServedApp(refusing(401, "Incorrect API key provided")) as server:
        result = surgeproof(
            "run", "--base-url", f"{server.url}/v1", "--model", "m", "--request-rate", "40", "--duration", "60s",
            "--output-len", "3", "--classes", "P0=1,P1=1", "--junit", "slo.xml", "--markdown", "slo.md", cwd=tmp_path,
        )  # fmt: skip
    assert result.returncode == 3, result.stdout + result.stderr
    assert "stopped, as none of the first" in result.stderr
    said = "error:http_401"
    for text in (result.stdout, (tmp_path / "slo.xml").read_text(), (tmp_path / "slo.md").read_text()):
        assert said in text
        assert "Incorrect API key provided" in text
        assert "set OPENAI_API_KEY" in text
    assert ET.parse(tmp_path / "slo.xml").getroot().tag == "testsuite"
    (failure,) = json.loads(surgeproof("runs", "show", "1", "--json", cwd=tmp_path).stdout)["summary"]["failures"]
    assert (failure["outcome"], failure["said"]) == (said, "Incorrect API key provided")
    assert failure["count"] == sum(failure["by_class"].values()) >= 20
    assert "Incorrect API key provided" in surgeproof("runs", "show", "1", cwd=tmp_path).stdout
    sent = rows(tmp_path / "surgeproof.db", "SELECT count(*) FROM records WHERE outcome != 'not_sent'")[0][0]
    assert sent < 400


def test_refused_fields_lead_to_the_flags_that_change_them(tmp_path: Path) -> None:
    """A server that knows max_completion_tokens only and no temperature but 1, as some do."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        if "max_tokens" in body:
            return web.json_response({"error": {"message": "Use 'max_completion_tokens' instead."}}, status=400)
        if body.get("temperature", 1) != 1:
            return web.json_response({"error": {"message": "'temperature' must be 1"}}, status=400)
        assert body["top_k"] == 5
        answer = {"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}]}
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    fields: tuple[str, ...] = ("--extra-body", '{"top_k": 5}')
    with ServedApp(app) as server:
        target = ("--base-url", f"{server.url}/v1", "--model", "m")
        for flags in (("--max-tokens-field", "max_completion_tokens"), ("--omit", "temperature")):
            refused = surgeproof("probe", *target, *fields, cwd=tmp_path)
            assert refused.returncode == 3
            assert " ".join(flags) in refused.stdout
            fields = (*fields, *flags)
        assert surgeproof("probe", *target, *fields, cwd=tmp_path).returncode == 0
        loaded = surgeproof("run", *target, *fields, *SHORT, cwd=tmp_path)
    assert "5 answered" in loaded.stdout, loaded.stdout + loaded.stderr


def ttft_and_cache(folder: Path, run_id: int) -> tuple[float, float]:
    total = json.loads(surgeproof("runs", "show", str(run_id), "--json", cwd=folder).stdout)["summary"]["classes"][
        "all"
    ]
    return total["latency_ms"]["ttft"]["p50"], total["prompt_tokens"]["cached_share"]


@pytest.mark.faults
def test_a_repeated_run_measures_the_server_and_not_its_cache(tmp_path: Path) -> None:
    """Long prompts on an engine with a prefix cache; with a fixed salt the second run is served from it."""
    load = (
        "--request-rate",
        "4",
        "--arrivals",
        "constant",
        "--num-prompts",
        "16",
        "--input-len",
        "2000",
        "--output-len",
        "4",
    )
    with SimProcess("--kv-blocks", "65536") as sim:
        for salt in (("--prompt-salt", "same"), (), ("--prompt-salt", "same")):
            result = surgeproof("run", "--base-url", sim.base_url, *load, *salt, cwd=tmp_path)
            assert result.returncode in (0, 5), result.stdout + result.stderr
    (first, cached_first), (second, cached_second), (warm, cached_warm) = (
        ttft_and_cache(tmp_path, number) for number in (1, 2, 3)
    )
    assert (cached_first, cached_second) == (0.0, 0.0)
    assert cached_warm > 0.9
    assert warm < 0.5 * min(first, second)
    assert "of the prompt tokens came from the server's cache" in result.stdout


@contextmanager
def nginx(upstream: str, folder: Path) -> Iterator[str]:
    """A reverse proxy with nginx's defaults, which buffer."""
    port = 18473
    settings = f"""
    daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
    events {{}}
    http {{
      access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
      uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
      server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; }} }}
    }}"""
    (folder / "nginx.conf").write_text(settings)
    server = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_a_proxy_that_buffers_is_found_and_its_times_per_token_do_not_pass(tmp_path: Path) -> None:
    """Sixty tokens, one every 6 ms; nginx sends them on in blocks, so that they look faster than they are."""
    (tmp_path / "slo.yaml").write_text("['tpot p50 < 4ms']")
    load = (
        "--request-rate",
        "4",
        "--num-prompts",
        "30",
        "--input-len",
        "10",
        "--output-len",
        "60",
        "--slo",
        "slo.yaml",
    )
    with SimProcess() as sim, nginx(sim.base_url.removesuffix("/v1"), tmp_path) as url:
        result = surgeproof("run", "--base-url", url, *load, cwd=tmp_path)
    assert "arrived in a few reads of many tokens each" in result.stdout, result.stdout
    # A noisy host may void the run: what counts is that it does not pass.
    assert result.returncode in (3, 4, 5), result.stdout


def locust(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "surgeproof", "locust", "--headless", "-u", "6", "-r", "6", "--run-time", "2s",
         "--input-len", "10", "--output-len", "3", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_locusts_flags_mean_what_they_mean_in_locust(sim: SimProcess, tmp_path: Path) -> None:
    """A class at the end is the only one; --json has standard output for itself; without objectives exit 0."""
    result = locust(tmp_path, "--host", sim.base_url.removesuffix("/v1"), "--json", "P0User")
    assert result.returncode == 0, result.stderr
    stats: list[dict[str, Any]] = json.loads(result.stdout)
    assert {entry["name"] for entry in stats if entry["method"] == "POST"} == {"chat P0"}
    assert "no objectives; Locust's own exit code counts" in result.stderr


def test_locust_exits_with_its_own_code_where_requests_fail(tmp_path: Path) -> None:
    with ServedApp(refusing(500, "out of order")) as server:
        target = ("--host", server.url, "--model", "m")
        assert locust(tmp_path, *target).returncode == 1
        assert locust(tmp_path, *target, "--exit-code-on-error", "0").returncode == 0
