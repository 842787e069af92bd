"""The agent and those who ask it: cursors without gaps, restarts, clocks, tokens."""

import httpx2
import pytest

from surgeproof.clock import MonotonicClock
from surgeproof.errors import UsageError
from surgeproof.gpu.agent import RING, Sampler, metrics_text
from surgeproof.gpu.client import AgentClient, open_agents
from tests.unit.gpu.fakes import ServedAgent, recorded

SECOND = 1_000_000_000


def sampler(ahead_s: float = 0.0) -> Sampler:
    """Samples only when it is told to."""
    clock = MonotonicClock()
    clock.anchor_ns += round(ahead_s * SECOND)
    return Sampler(recorded(), None, 3600.0, clock)


def test_a_cursor_sees_every_sample_once() -> None:
    held = sampler()
    seen, cursor = [], 0
    for count in (3, 0, 5):
        for _ in range(count):
            held.take()
        found, cursor, lost = held.since(cursor)
        seen += [s.power_w for s in found]
        assert lost == 0
    assert seen == [400.0, 401.0, 402.0, 400.0, 401.0, 402.0, 400.0, 401.0]


def test_a_client_that_was_away_too_long_is_told_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    held = sampler()
    for _ in range(RING + 10):
        held.take()
    found, cursor, lost = held.since(0)
    assert lost == 10
    assert cursor == 10 + len(found)


def test_samples_come_on_the_runs_clock() -> None:
    """The agent's clock is an hour ahead; what it stamps now is now for us."""
    clock = MonotonicClock()
    with ServedAgent(sampler(ahead_s=3600)) as agent:
        client = AgentClient(agent.url, None, clock.now_ns)
        client.open()
        before = clock.now_ns()
        agent.sampler.take()
        (found,) = client.collect()
        after = clock.now_ns()
        client.close()
    assert client.offset.ahead_ns == pytest.approx(3600 * SECOND, abs=0.2 * SECOND)
    slack = client.offset.uncertainty_ns
    assert before - slack <= found.at_ns <= after + slack


def test_what_was_there_before_the_run_is_not_the_runs() -> None:
    with ServedAgent(sampler()) as agent:
        agent.sampler.take()
        client = AgentClient(agent.url, None, MonotonicClock().now_ns)
        client.open()
        agent.sampler.take()
        assert len(client.collect()) <= 2
        assert client.collect() == []
        client.close()


def test_a_restarted_agent_is_followed_from_its_beginning() -> None:
    clock = MonotonicClock()
    with ServedAgent(sampler()) as agent:
        client = AgentClient(agent.url, None, clock.now_ns)
        client.open()
        client.collect()
        port = agent.port
    assert client.collect() == []
    assert client.failures == 1
    with ServedAgent(sampler(), port=port) as agent:
        for _ in range(4):
            agent.sampler.take()
        assert len(client.collect()) >= 4
    client.close()
    assert client.restarts == 1


def test_a_token_is_asked_for_everywhere_but_at_healthz() -> None:
    with ServedAgent(sampler(), token="s3cret") as agent:
        assert httpx2.get(f"{agent.url}/healthz").json()["ok"]
        for path in ("/gpus", "/samples", "/clock", "/metrics"):
            assert httpx2.get(agent.url + path).status_code == 401
            assert httpx2.get(agent.url + path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            odd = {"Authorization": b"Bearer \xff"}
            assert httpx2.get(agent.url + path, headers=odd).status_code == 401
        open_agents([agent.url], "s3cret")[0].close()
        with pytest.raises(UsageError, match=r"GPU agent http://127.0.0.1:\d+ cannot be used: .*401"):
            open_agents([agent.url], None)
        assert httpx2.get(f"{agent.url}/samples?since=x", headers={"Authorization": "Bearer s3cret"}).status_code == 400


def test_prometheus_finds_dcgms_names_and_no_line_for_what_is_unknown() -> None:
    held = sampler()
    held.take()
    text = metrics_text(held)
    assert 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-A",gpu="0",modelName="NVIDIA H200"} 100' in text
    assert 'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-A",gpu="0",modelName="NVIDIA H200"} 0.4' in text
    assert "DCGM_FI_DEV_GPU_TEMP" not in text


def test_without_a_gpu_the_agent_serves_that() -> None:
    with ServedAgent(Sampler(None, "GPU telemetry unavailable: no library")) as agent:
        found = httpx2.get(f"{agent.url}/gpus").json()
        assert (found["gpus"], found["reason"]) == ([], "GPU telemetry unavailable: no library")
        assert httpx2.get(f"{agent.url}/samples").json()["samples"] == []
        assert httpx2.get(f"{agent.url}/metrics").text == "# no GPU\n"
