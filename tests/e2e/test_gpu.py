"""A run beside an agent: samples are stored, shown, judged; the estimator answers on the command line."""

import json
import socket
import threading
from pathlib import Path

import pytest

from surgeproof.gpu.agent import Sampler
from surgeproof.sandbox.sim_process import SimProcess
from tests.e2e.test_run import rows, surgeproof
from tests.unit.gpu.fakes import ServedAgent, recorded
from tests.unit.gpu.test_sm_estimate import DATA, LLAMA_8B


def test_a_run_collects_judges_and_estimates(sim: SimProcess, tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text("['gpu_memory max <= 18GB', 'gpu_sm mean > 90%', 'ttft p50 < 9s']")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    with ServedAgent(Sampler(recorded(), None, 0.05)) as agent:
        result = surgeproof(
            "run", "--base-url", sim.base_url, "--request-rate", "30", "--duration", "7s", "--input-len", "20",
            "--output-len", "10", "--slo", "slo.yaml", "--gpu-agent", agent.url, "--json", cwd=tmp_path,
        )  # fmt: skip
    assert result.returncode in (3, 5), result.stdout + result.stderr
    run = json.loads(result.stdout)
    verdicts = {verdict["rule"]: verdict["verdict"] for verdict in run["verdicts"]}
    assert verdicts["gpu_memory max <= 18GB"] == "PASS"
    assert verdicts["gpu_sm mean > 90%"] == "FAIL"
    assert rows(tmp_path / "surgeproof.db", "SELECT count(*) FROM gpu_samples")[0][0] >= 40
    assert run["summary"]["gpus"]["figures"]["GPU-A"]["sm_pct"]["mean"] == 40.0
    assert any("its memory 30 %: it is not full" in line for line in run["summary"]["gpus"]["diagnosis"])
    assert run["environment"]["gpu_agents"][0]["samples_lost"] == 0
    assert "SMs were 40 % busy, its memory 30 %: it is not full" in " ".join(
        surgeproof("runs", "show", "1", cwd=tmp_path).stdout.split()
    )
    # Samples lie on the run's own time axis.
    ((first, last),) = rows(tmp_path / "surgeproof.db", "SELECT min(at_ns), max(at_ns) FROM gpu_samples")
    ((start, end),) = rows(tmp_path / "surgeproof.db", "SELECT min(intended_at_ns), max(done_at_ns) FROM records")
    assert first < end
    assert last > start
    found = surgeproof("estimate", "--run", "1", "--gpu", "H200", "--config", "config.json", "--json", cwd=tmp_path)
    windows = json.loads(found.stdout)
    assert windows[-1]["label"] == "whole run"
    assert all(0 <= w["sm_low"] <= w["sm_pct"] <= w["sm_high"] <= 100 for w in windows)


@pytest.mark.faults
def test_agents_that_vanish_or_have_no_gpu_are_told(sim: SimProcess, tmp_path: Path) -> None:
    blind = ServedAgent(Sampler(None, "GPU telemetry unavailable: no driver", 0.05))
    agent = ServedAgent(Sampler(recorded(), None, 0.05)).__enter__()
    with blind:
        stopping = threading.Timer(6.0, agent.__exit__, (None, None, None))
        stopping.start()
        result = surgeproof(
            "run", "--base-url", sim.base_url, "--request-rate", "5", "--duration", "14s", "--input-len", "20",
            "--output-len", "5", "--gpu-agent", agent.url, "--gpu-agent", blind.url, cwd=tmp_path,
        )  # fmt: skip
        stopping.join()
    told = " ".join(result.stdout.split())
    assert f"GPU agent {blind.url} reports no GPU (GPU telemetry unavailable: no driver)" in told
    assert f"GPU agent {agent.url}: no sample after" in told
    assert "figures of its GPUs are of the other" in told


def test_an_agent_that_is_away_is_told_before_anything_is_sent(sim: SimProcess, tmp_path: Path) -> None:
    result = surgeproof(
        "run", "--base-url", sim.base_url, "--num-prompts", "1", "--request-rate", "1",
        "--gpu-agent", "http://127.0.0.1:9", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2
    assert "GPU agent http://127.0.0.1:9 cannot be used" in result.stderr


def test_steps_are_estimated_from_a_file(tmp_path: Path) -> None:
    result = surgeproof("estimate", "--steps", str(DATA / "h200_step_counters.json"), "--json", cwd=tmp_path)
    found = json.loads(result.stdout)
    assert len(found) == 35
    names = {"sm_pct", "sm_low", "sm_high", "dram_pct", "dram_low", "dram_high", "tensor_pct", "limit"}
    assert all(names <= row.keys() for row in found)
    assert surgeproof("estimate", cwd=tmp_path).returncode == 2
    (tmp_path / "bad.json").write_text('{"rows": [{"tag": "decode"}]}')
    bad = surgeproof("estimate", "--steps", "bad.json", "--gpu", "H200", cwd=tmp_path)
    assert bad.returncode == 2
    assert "row 0" in bad.stderr


def test_the_agent_refuses_to_be_reached_without_a_token(tmp_path: Path) -> None:
    result = surgeproof("agent", "--bind", "0.0.0.0:9464", cwd=tmp_path)
    assert result.returncode == 2
    assert "set a token" in result.stderr


def test_an_agent_on_a_used_port_is_told_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        bind = f"127.0.0.1:{held.getsockname()[1]}"
        refused = surgeproof("agent", "--bind", bind, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"--bind {bind} cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr
