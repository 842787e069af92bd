"""A server that echoes the key, passwords in addresses: none is found in any file, output or process list."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from surgeproof.gpu.agent import Sampler
from tests.e2e.test_run import surgeproof
from tests.unit.gpu.fakes import ServedAgent, recorded

KEY, PASSWORD = "sk-invented-for-this-case", "hunter2-and-more"


class Echo(BaseHTTPRequestHandler):
    """Answers with the key that it was given, wherever a client may keep it."""

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization", "")
        self._answer(401, {"error": {"message": f"invalid key: {key}", "type": key}})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Request-Id", self.headers.get("Authorization", "none"))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def test_no_secret_reaches_a_file_an_output_or_the_process_list(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever).start()
    lists: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            for process in psutil.process_iter(["cmdline", "cwd"]):
                if process.info["cwd"] and str(tmp_path) in process.info["cwd"]:
                    lists.add(" ".join(process.info["cmdline"] or []))

    watcher = threading.Thread(target=watch)
    watcher.start()
    outputs = []
    try:
        base = f"http://127.0.0.1:{server.server_port}/v1"
        with ServedAgent(Sampler(recorded(), None, 0.05)) as agent:
            agent_url = agent.url.replace("http://", f"http://user:{PASSWORD}@")
            load = ["--request-rate", "10", "--duration", "3s", "--input-len", "5", "--output-len", "5"]
            outputs += [
                surgeproof("run", *load, *more, cwd=tmp_path, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=base)
                for more in ([], ["--json"])
            ]
            outputs.append(
                surgeproof(
                    "run", "--base-url", base, "--gpu-agent", agent_url, "--api-key", KEY, "--request-rate", "5",
                    "--duration", "2s", "--input-len", "5", "--output-len", "5", cwd=tmp_path,
                )
            )  # fmt: skip
        outputs.append(surgeproof("probe", "--base-url", base, "--model", "m", cwd=tmp_path, OPENAI_API_KEY=KEY))
        outputs.append(
            surgeproof("probe", "--base-url", base, "--model", "m", "--json", cwd=tmp_path, OPENAI_API_KEY=KEY)
        )
        for suffix in ("jsonl", "csv", "parquet", "json"):
            outputs.append(surgeproof("runs", "export", "1", "-o", f"run.{suffix}", cwd=tmp_path))
        outputs.append(surgeproof("run", "--base-url", f"http://user:{PASSWORD}@127.0.0.1:9/v1", "--request-rate", "1",
                                  "--duration", "1s", cwd=tmp_path))  # fmt: skip
        outputs.append(
            surgeproof("runs", "list", "--db", f"postgresql://u@127.0.0.1:9/d?password={PASSWORD}", cwd=tmp_path)
        )
    finally:
        stop.set()
        watcher.join()
        server.shutdown()
        server.server_close()
    assert "[redacted]" in outputs[3].stdout
    for secret in (KEY, PASSWORD):
        assert not [o.args for o in outputs if secret in o.stdout + o.stderr]
        holding = [p for p in tmp_path.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
        assert holding == []
    # The arguments that a caller gave stand in the list until the command has started.
    assert [line for line in lists if "locust" in line and (KEY in line or PASSWORD in line)] == []
