"""Collects an agent's samples during a run: follows its cursor, survives its restarts, aligns its clock."""

import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import httpx2
import msgspec

from surgeproof.clock import ClockOffset, estimate_offset
from surgeproof.errors import UsageError
from surgeproof.proxies import proxy_for
from surgeproof.records import GpuFacts, GpuSample
from surgeproof.redaction import without_userinfo
from surgeproof.stored_runs import AgentReport
from surgeproof.strict_json import JsonObject

_EXCHANGES = 8
_POLL_S = 0.5
_TIMEOUT_S = 5.0


class AgentClient:
    """One agent.

    Args:
        url: of the agent, http://HOST:9464.
        token: bearer token, where it asks for one.
        now_ns: the run's clock.
    """

    def __init__(self, url: str, token: str | None, now_ns: Callable[[], int]) -> None:
        self.url = without_userinfo(url.rstrip("/"))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        proxy = proxy_for(urlsplit(url))
        self._http = httpx2.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT_S, proxy=proxy.geturl() if proxy else None,
            trust_env=False,
        )  # fmt: skip
        self._now_ns = now_ns
        self._instance = ""
        self._cursor = 0
        self.offset = ClockOffset(0, 0)
        self.lost = 0
        self.restarts = 0
        self.failures = 0
        self.facts: dict[str, GpuFacts] = {}
        self.reason: str | None = None

    def open(self) -> None:
        """Connect to the agent; samples from now on count.

        Raises:
            UsageError: it does not answer, or refuses the token.
        """
        try:
            self._connect()
            newest = self._get("/samples?since=0")
            self._cursor = int(newest["next"])
            while newest["samples"]:
                newest = self._get(f"/samples?since={self._cursor}")
                self._cursor = int(newest["next"])
        except (httpx2.HTTPError, ValueError, KeyError, msgspec.ValidationError) as exc:
            raise UsageError(f"GPU agent {self.url} cannot be used: {exc}") from exc

    def collect(self) -> list[GpuSample]:
        """Samples since the last call, on the run's clock; an agent that does not answer is asked again later."""
        results: list[GpuSample] = []
        try:
            while True:
                answer = self._get(f"/samples?since={self._cursor}")
                if answer["instance"] != self._instance:
                    # It was restarted: its numbers begin at 0 again, and its earlier samples are lost.
                    self.restarts += 1
                    self._connect()
                    self._cursor = 0
                    continue
                self.lost += int(answer["lost"])
                self._cursor = int(answer["next"])
                samples = msgspec.convert(answer["samples"], list[GpuSample])
                results += [
                    msgspec.structs.replace(sample, at_ns=sample.at_ns - self.offset.ahead_ns) for sample in samples
                ]
                if not samples:
                    return results
        except (httpx2.HTTPError, ValueError, KeyError, msgspec.ValidationError):
            self.failures += 1
            return results

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _connect(self) -> None:
        result = self._get("/gpus")
        self._instance = str(result["instance"])
        self.facts |= {facts.uuid: facts for facts in msgspec.convert(result["gpus"], list[GpuFacts])}
        self.reason = result.get("reason")
        exchanges = []
        for _ in range(_EXCHANGES):
            asked = self._now_ns()
            answer = self._get("/clock")
            exchanges.append((asked, int(answer["received"]), int(answer["replied"]), self._now_ns()))
        self.offset = estimate_offset(exchanges)

    def _get(self, path: str) -> JsonObject:
        reply = self._http.get(path)
        reply.raise_for_status()
        result: JsonObject = reply.json()
        return result


class GpuCollector:
    """Collects from several agents in a thread of its own.

    Args:
        agents: already opened.
    """

    def __init__(self, agents: Sequence[AgentClient]) -> None:
        self.agents = list(agents)
        self._samples: list[GpuSample] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if self.agents:
            self._thread.start()

    def take(self) -> list[GpuSample]:
        """Samples that arrived since the last call."""
        with self._lock:
            result, self._samples = self._samples, []
        return result

    def stop(self) -> None:
        """Ask every agent once more, and stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_S + 1)
        for agent in self.agents:
            agent.close()

    def report(self) -> tuple[AgentReport, ...]:
        """How the collection from each agent went, for the run's environment."""
        return tuple(
            AgentReport(
                url=agent.url,
                gpus=tuple(agent.facts.values()),
                reason=agent.reason,
                clock_ahead_ns=agent.offset.ahead_ns,
                clock_uncertainty_ns=agent.offset.uncertainty_ns,
                samples_lost=agent.lost,
                restarts=agent.restarts,
                failed_requests=agent.failures,
            )
            for agent in self.agents
        )

    def _run(self) -> None:
        while True:
            last = self._stop.wait(_POLL_S)
            for agent in self.agents:
                fresh = agent.collect()
                with self._lock:
                    self._samples += fresh
            if last:
                return


def open_agents(urls: Sequence[str], token: str | None, now_ns: Callable[[], int] = time.time_ns) -> list[AgentClient]:
    """Connect to every agent.

    Raises:
        UsageError: one does not answer.
    """
    agents = [AgentClient(url, token, now_ns) for url in urls]
    try:
        for agent in agents:
            agent.open()
    except UsageError:
        for agent in agents:
            agent.close()
        raise
    return agents
