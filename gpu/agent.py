"""The GPU agent: samples GPUs in its own thread, and serves the samples over HTTP.

    /healthz   is it sampling?            /gpus      what there is
    /samples   ?since=N: newer samples    /clock     its time, for an exchange of time stamps
    /metrics   Prometheus, with DCGM-exporter's names where they exist

Read-only. It binds to loopback unless a token is set, and then every path but /healthz asks for it. The
ring is bounded: a client that falls behind gets the number of samples it lost.
"""

import hmac
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from surgeproof.clock import MonotonicClock
from surgeproof.errors import UsageError
from surgeproof.gpu.nvml import Gpus
from surgeproof.records import GpuSample

RING = 36_000
_MAX_AT_ONCE = 5_000
_METRICS = (
    ("DCGM_FI_DEV_GPU_UTIL", "time_active_pct", 1.0, "Share of time in which any kernel ran (in %)."),
    ("DCGM_FI_DEV_FB_USED", "memory_used_bytes", 1 / (1 << 20), "Memory used (in MiB)."),
    ("DCGM_FI_DEV_POWER_USAGE", "power_w", 1.0, "Power draw (in W)."),
    ("DCGM_FI_DEV_SM_CLOCK", "sm_clock_mhz", 1.0, "SM clock (in MHz)."),
    ("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_mhz", 1.0, "Memory clock (in MHz)."),
    ("DCGM_FI_DEV_GPU_TEMP", "temperature_c", 1.0, "Temperature (in C)."),
    ("DCGM_FI_PROF_SM_ACTIVE", "sm_pct", 0.01, "Share of time in which an SM had a warp, over all SMs."),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "occupancy_pct", 0.01, "Warps on SMs as a share of the maximum."),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_pct", 0.01, "Share of time in which the tensor pipe was active."),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "dram_pct", 0.01, "Share of the memory's bandwidth in use."),
)


Answer = Callable[[web.Request], web.Response]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Sampler:
    """Samples the GPUs at a fixed interval and keeps the samples.

    Args:
        gpus: the GPUs; None where there are none, with the reason.
        reason: why there are none.
        interval_s: between samples.
        clock: stamps them.
    """

    def __init__(
        self, gpus: Gpus | None, reason: str | None = None, interval_s: float = 0.1, clock: MonotonicClock | None = None
    ) -> None:
        self.gpus, self.reason, self.interval_s = gpus, reason, interval_s
        self.clock = clock or MonotonicClock()
        self.instance = uuid.uuid4().hex
        self._ring: deque[tuple[int, GpuSample]] = deque(maxlen=RING)
        self._next = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        if self.gpus is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling; returns when the thread has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def take(self) -> None:
        """One sample of each GPU, now."""
        if self.gpus is None:
            return
        fresh = self.gpus.sample(self.clock.now_ns())
        with self._lock:
            for sample in fresh:
                self._ring.append((self._next, sample))
                self._next += 1

    def since(self, cursor: int) -> tuple[list[GpuSample], int, int]:
        """Samples from a cursor on, the next cursor, and how many in between were overwritten."""
        with self._lock:
            oldest = self._ring[0][0] if self._ring else self._next
            lost = max(0, oldest - cursor)
            start = max(cursor, oldest) - oldest
            results = [sample for _, sample in list(self._ring)[start : start + _MAX_AT_ONCE]]
            return results, max(cursor, oldest) + len(results), lost

    def latest(self) -> Sequence[GpuSample]:
        """The newest sample of each GPU."""
        with self._lock:
            by_gpu = {sample.gpu: sample for _, sample in self._ring}
        return list(by_gpu.values())

    def collect(self) -> Iterator[Metric]:
        """The newest samples as a Prometheus collector; a field that a GPU does not report has no line."""
        known = self.gpus.facts() if self.gpus else ()
        labels = {facts.uuid: (str(place), facts.uuid, facts.name or "") for place, facts in enumerate(known)}
        latest = self.latest()
        for metric, field, factor, text in _METRICS:
            values = [(sample.gpu, getattr(sample, field)) for sample in latest]
            family = GaugeMetricFamily(metric, text, labels=("gpu", "UUID", "modelName"))
            for gpu, value in values:
                if value is not None:
                    family.add_metric(labels[gpu], value * factor)
            if family.samples:
                yield family

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.take()
            due = max(due + self.interval_s, time.monotonic())
            self._stop.wait(max(0.0, due - time.monotonic()))


def serve_agent(sampler: Sampler, token: str | None, host: str, port: int) -> None:
    """Serve until stopped.

    Raises:
        UsageError: the address cannot be bound.
    """
    try:
        web.run_app(make_app(sampler, token), host=host, port=port, print=None, access_log=None)
    except OSError as exc:
        raise UsageError(f"--bind {host}:{port} cannot be used: {exc.strerror or exc}") from exc


def make_app(sampler: Sampler, token: str | None = None) -> web.Application:
    """The service.

    Args:
        sampler: where samples come from; started and stopped with the service.
        token: bearer token that every path but /healthz asks for; None for none.
    """
    app = web.Application(middlewares=[_guard(token)])

    async def start(_: web.Application) -> None:
        sampler.start()

    async def stop(_: web.Application) -> None:
        sampler.stop()

    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    routes: dict[str, Answer] = {
        "/healthz": lambda _: _json({"ok": True, "gpus": len(_facts(sampler)), "reason": sampler.reason}),
        "/gpus": lambda _: _json({"instance": sampler.instance, "reason": sampler.reason, "gpus": _facts(sampler)}),
        "/samples": lambda request: _samples(sampler, request),
        "/clock": lambda request: _clock(sampler, request),
        "/metrics": lambda _: web.Response(text=metrics_text(sampler), content_type="text/plain"),
    }
    for path, answer in routes.items():
        app.router.add_get(path, _handler(answer))
    return app


def _handler(answer: Answer) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    return handle


def _guard(token: str | None) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is not None and request.path != "/healthz":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
                raise web.HTTPUnauthorized(text="a bearer token is needed\n")
        return await handler(request)

    return guard


def _facts(sampler: Sampler) -> list[object]:
    return [] if sampler.gpus is None else [msgspec.to_builtins(facts) for facts in sampler.gpus.facts()]


def _samples(sampler: Sampler, request: web.Request) -> web.Response:
    try:
        cursor = int(request.query.get("since", "0"))
    except ValueError:
        raise web.HTTPBadRequest(text="since must be a whole number\n") from None
    result, following, lost = sampler.since(max(0, cursor))
    return _json({"instance": sampler.instance, "next": following, "lost": lost, "samples": result})


def _clock(sampler: Sampler, request: web.Request) -> web.Response:
    received = sampler.clock.now_ns()
    asked = request.query.get("asked", "0")
    return _json({"asked": asked, "received": received, "replied": sampler.clock.now_ns()})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def metrics_text(sampler: Sampler) -> str:
    """The newest samples in Prometheus' text form."""
    return generate_latest(sampler).decode() or "# no GPU\n"
