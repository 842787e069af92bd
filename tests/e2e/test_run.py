"""The product as a user meets it: real processes, real sockets, a database at the end."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surgeproof import loadgen
from surgeproof.sandbox.sim_process import SimProcess

LOCUSTFILE = Path(loadgen.__file__).with_name("locustfile.py")
PATIENCE_S = 90


def surgeproof(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "surgeproof", *arguments],
        cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def trusted(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A run whose client was trustworthy: on a busy machine the audit rightly voids one now and then."""
    for _ in range(4):
        (cwd / "surgeproof.db").unlink(missing_ok=True)
        result = surgeproof("run", *arguments, cwd=cwd)
        if result.returncode != 5:
            break
    return result


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def trace(tmp_path: Path, count: int = 60, every_s: float = 0.05) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps({"at_s": i * every_s, "input_tokens": 20, "output_tokens": 5}) for i in range(count)]
    path.write_text("\n".join(lines))
    return path


def test_a_trace_is_replayed_on_time_and_judged(sim: SimProcess, tmp_path: Path) -> None:
    """One record for each planned request, the recorded gaps, the same figures everywhere."""
    scenario = tmp_path / "replay.yaml"
    scenario.write_text("load: {trace: trace.jsonl}\nslo: {all: ['ttft p50 < 2s', 'success >= 90%']}\n")
    trace(tmp_path)
    result = trusted("replay.yaml", "--base-url", sim.base_url, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    shown = json.loads(result.stdout)
    found = rows(
        tmp_path / "surgeproof.db",
        "SELECT plan_index, intended_at_ns, sent_at_ns, outcome, output_tokens FROM records ORDER BY 1",
    )
    assert [row[0] for row in found] == list(range(60))
    assert {row[3] for row in found} == {"ok"}
    assert {row[4] for row in found} == {5}
    planned = np.diff([row[1] for row in found]) / 1e9
    assert planned == pytest.approx(0.05, abs=1e-6)
    assert all(sent >= intended for _, intended, sent, _, _ in found)
    stored = json.loads(surgeproof("runs", "show", "1", "--json", cwd=tmp_path).stdout)
    assert stored == shown
    assert [v["verdict"] for v in stored["verdicts"]] == ["PASS", "PASS"]
    listed = json.loads(surgeproof("runs", "list", "--json", cwd=tmp_path).stdout)
    assert (listed[0]["id"], listed[0]["verdict"], listed[0]["name"]) == (1, "PASS", "replay")
    assert not (tmp_path / "surgeproof.db.spool").exists()


@pytest.mark.parametrize(
    ("slo", "code"),
    [("ttft p50 < 2s", 0), ("ttft p50 < 1us", 3), ("ttft p99.99 < 2s", 4)],
)
def test_exit_codes_tell_the_verdict(sim: SimProcess, tmp_path: Path, slo: str, code: int) -> None:
    (tmp_path / "slo.yaml").write_text(json.dumps([slo]))
    result = trusted(
        "--base-url", sim.base_url, "--max-concurrency", "4", "--num-prompts", "30",
        "--output-len", "3", "--input-len", "10", "--slo", "slo.yaml", "--goodput", "ttft:500", "tpot:50", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == code, result.stdout + result.stderr
    assert "goodput" in result.stdout
    assert rows(tmp_path / "surgeproof.db", "SELECT count(*), count(DISTINCT plan_index) FROM records") == [(30, 30)]
    assert surgeproof("gate", "1", cwd=tmp_path).returncode == code
    (tmp_path / "other.yaml").write_text("['success < 1%']")
    assert surgeproof("gate", "1", "--slo", "other.yaml", cwd=tmp_path).returncode == 3
    assert surgeproof("gate", "9", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://127.0.0.1:9/v1"], "not reachable"),
        (["--trace", "bad.jsonl"], "bad.jsonl, row 2"),
        (["--slo", "bad.yaml"], "unknown metric 'tftt'; did you mean ttft"),
        (["--request-rate", "fast"], "neither a number nor inf"),
        (["--db", "sqlite:////no/such/dir/x.db"], "does not exist"),
        (["--header", "secret-without-equals"], "KEY=VALUE"),
        (["--db", "sqlite://"], "write sqlite:///FILE"),
        (["--db", "foo"], "write sqlite:///FILE"),
        (["--seed", "-1"], "load.seed"),
        (["goodput.yaml"], "goodput 'foo:1.0': unknown metric"),
        (["--window", "5"], "load.window_s"),
        (["--bogus"], "No such option"),
        (["nowhere.yaml"], "cannot read scenario nowhere.yaml"),
        (["a.yaml", "b.yaml"], "give one scenario file, not 2"),
        (["--tokenizer", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_left(
    sim: SimProcess, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Exit 2 before any request is sent."""
    (tmp_path / "bad.jsonl").write_text('{"at_s": 0, "input_tokens": 1, "output_tokens": 1}\n{"at_s": "x"}')
    (tmp_path / "bad.yaml").write_text("['tftt p99 < 1s']")
    (tmp_path / "goodput.yaml").write_text("goodput: {foo: 1}")
    base = [] if "--base-url" in arguments else ["--base-url", sim.base_url]
    load = [] if {"--trace", "--request-rate"} & set(arguments) else ["--request-rate", "5"]
    result = surgeproof("run", *base, *load, "--duration", "1s", *arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert "secret-without-equals" not in result.stderr
    assert not list(tmp_path.glob("*.spool"))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_keeps_and_judges_what_was_measured(sim: SimProcess, tmp_path: Path, processes: str) -> None:
    """Every planned request has its record, the run is marked interrupted, and the exit is prompt."""
    child = subprocess.Popen(
        [
            sys.executable, "-m", "surgeproof", "run", "--base-url", sim.base_url, "--request-rate", "40",
            "--duration", "60s", "--output-len", "40", "--processes", processes,
        ],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    database = tmp_path / "surgeproof.db"
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if database.exists() and rows(database, "SELECT count(*) FROM sqlite_master WHERE name='records'")[0][0]:
            if rows(database, "SELECT count(*) FROM records")[0][0] >= 20:
                break
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    output = child.communicate(timeout=30)[0]
    took_s = time.monotonic() - began
    assert child.returncode == 130, output
    assert took_s < 10, "3 s on an idle machine"
    ((state, requests),) = rows(database, "SELECT state, requests FROM runs JOIN plans ON run_id = id")
    outcomes = dict(rows(database, "SELECT outcome, count(*) FROM records GROUP BY 1"))
    assert state == "interrupted"
    assert outcomes["ok"] >= 20
    assert sum(outcomes.values()) == requests
    assert "Traceback" not in output


def test_a_ladder_steps_through_its_users(sim: SimProcess, tmp_path: Path) -> None:
    result = trusted(
        "--base-url", sim.base_url, "--concurrency", "2,5", "--duration", "2s",
        "--output-len", "5", "--input-len", "10", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    steps = rows(tmp_path / "surgeproof.db", "SELECT step, count(*) FROM records GROUP BY 1 ORDER BY 1")
    assert [step for step, _ in steps] == [2, 5]
    assert steps[1][1] > steps[0][1]


def test_worker_processes_share_one_schedule(sim: SimProcess, tmp_path: Path) -> None:
    """The merged records are the plan, and both workers took part."""
    result = surgeproof(
        "run", "--base-url", sim.base_url, "--request-rate", "40", "--duration", "3s", "--processes", "2",
        "--output-len", "5", "--input-len", "10", "--seed", "5", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode in (0, 5), result.stdout + result.stderr
    database = tmp_path / "surgeproof.db"
    ((planned,),) = rows(database, "SELECT requests FROM plans")
    found = rows(database, "SELECT plan_index, worker, outcome FROM records ORDER BY 1")
    assert [row[0] for row in found] == list(range(planned))
    assert {row[2] for row in found} == {"ok"}
    assert [row[1] for row in found] == [row[0] % 2 for row in found], result.stdout


def test_headless_locust_works_literally(sim: SimProcess, tmp_path: Path) -> None:
    """Locust's own flags, its CSV and HTML, and a run in the database."""
    host = sim.base_url.removesuffix("/v1")
    result = subprocess.run(
        [
            sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-u", "10", "-r", "10",
            "--run-time", "3s", "--host", host, "--csv=baseline", "--html", "report.html",
            "--output-len", "5", "--input-len", "10",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    # With no objectives only an audit that the busy machine breached gives another code.
    assert result.returncode in (0, 5), result.stdout + result.stderr
    stats = (tmp_path / "baseline_stats.csv").read_text().splitlines()
    of_class = {line.split(",")[1]: int(line.split(",")[2]) for line in stats if line.startswith("POST")}
    stored = rows(
        tmp_path / "surgeproof.db",
        "SELECT 'chat ' || request_class, count(*) FROM records WHERE outcome = 'ok' GROUP BY 1",
    )
    assert of_class == dict(stored)
    assert any(line.startswith("TTFT") for line in stats)
    (total,) = (int(line.split(",")[2]) for line in stats if line.split(",")[1] == "Aggregated")
    assert total == sum(of_class.values())
    assert set(of_class) == {"chat P0", "chat P1", "chat P2"}
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_headless_locust_judges_a_scenario(sim: SimProcess, tmp_path: Path) -> None:
    """Open-loop replay, with our exit code."""
    (tmp_path / "s.yaml").write_text("load: {trace: trace.jsonl}\nslo: ['success < 50%']\n")
    trace(tmp_path, 20)
    host = sim.base_url.removesuffix("/v1")
    result = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--scenario", "s.yaml", "--host", host],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert result.returncode in (3, 5), result.stdout + result.stderr
    assert rows(tmp_path / "surgeproof.db", "SELECT count(*) FROM records WHERE outcome = 'ok'") == [(20,)]


def test_headless_locust_refuses_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-u", "1", "-t", "2s",
            "--host", "http://127.0.0.1:9",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "Error: endpoint http://127.0.0.1:9/v1 is not reachable" in result.stderr


def test_injected_faults_are_counted_by_class(tmp_path: Path) -> None:
    """Every fault of the simulated endpoint becomes its own outcome, and 429 is shed load."""
    shares = [argument for name in ("http_429", "http_500", "reset") for argument in ("--inject", f"{name}=0.2")]
    with SimProcess("--time-scale", "0.1", *shares) as faulty:
        result = surgeproof(
            "run", "--base-url", faulty.base_url, "--request-rate", "inf", "--max-concurrency", "8",
            "--num-prompts", "200", "--output-len", "6", "--input-len", "10", "--json", cwd=tmp_path,
        )  # fmt: skip
    summary = json.loads(result.stdout)["summary"]["classes"]["all"]
    assert set(summary["outcomes"]) == {"ok", "error:http_429", "error:http_500", "error:reset"}
    assert summary["shed"] == summary["outcomes"]["error:http_429"]
    assert summary["failed"] == 200 - summary["ok"]


def test_keys_reach_the_endpoint_and_nothing_else(sim: SimProcess, tmp_path: Path) -> None:
    """Neither database nor output nor the process list holds the key."""
    key = "sk-very-secret-0123456789"
    child = subprocess.Popen(
        [
            sys.executable, "-m", "surgeproof", "run", "--base-url", sim.base_url, "--request-rate", "5",
            "--duration", "3s", "--output-len", "3", "--api-key", key, "--header", f"X-Token={key}",
        ],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "surgeproof.db").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    output = child.communicate(timeout=PATIENCE_S)[0]
    assert child.returncode in (0, 5), output
    assert "surgeproof run" in listed
    assert key not in output
    assert key not in listed
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()


def test_probe_answers_json_and_exit_codes(sim: SimProcess, tmp_path: Path) -> None:
    good = surgeproof("probe", "--base-url", sim.base_url, "--max-tokens", "4", "--json", cwd=tmp_path)
    facts = json.loads(good.stdout)
    assert good.returncode == 0
    assert (facts["outcome"], facts["output_tokens"], len(facts["arrivals_ms"])) == ("ok", 4, 4)
    assert facts["ttft_ms"] <= facts["last_token_ms"] <= facts["done_ms"]
    bad = surgeproof("probe", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--json", cwd=tmp_path)
    assert bad.returncode == 3
    assert json.loads(bad.stdout)["outcome"] == "error:connect"


def test_help_answers_at_once_for_every_command(tmp_path: Path) -> None:
    result = surgeproof("--help", cwd=tmp_path)
    assert result.returncode == 0
    for command in ("demo", "gate", "probe", "run", "runs", "sim", "traces", "ui"):
        assert command in result.stdout
        assert surgeproof(command, "--help", cwd=tmp_path).returncode == 0
