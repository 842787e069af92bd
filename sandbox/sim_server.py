"""Serves the simulated engine over the APIs of `sim_replies`, as vLLM does; the only place that uses real time.

Faults are injected by share: http_429, http_500, reset, stall (a stream that goes silent), slow_start (a second
before the head).
"""

import asyncio
import contextlib
import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from surgeproof.errors import ConfigError
from surgeproof.sandbox.sim_engine import BLOCK_TOKENS, EngineOptions, Sequence, SimEngine
from surgeproof.sandbox.sim_replies import Asked, Reply, answer_words, read_request, reply_of, whole_number
from surgeproof.strict_json import JsonObject

FAULTS = ("http_429", "http_500", "reset", "stall", "slow_start")
_PATHS = ("/chat/completions", "/completions", "/responses", "/messages", "/embeddings", "/rerank")
_STALL_S = 3600.0


class SimServer:
    """One model behind one engine.

    Args:
        options: shape of the engine.
        model: the model's name.
        faults: share of requests by fault.
    """

    def __init__(self, options: EngineOptions, model: str, faults: dict[str, float] | None = None) -> None:
        self.engine = SimEngine(options)
        self.model = model
        self.faults = faults or {}
        self._random = random.Random(options.seed + 1)
        self._queues: dict[Sequence, asyncio.Queue[int]] = {}
        self._work = asyncio.Event()
        self._served = 0
        self._ttft_sum_s = 0.0
        self._ttft_count = 0

    def application(self) -> web.Application:
        """The routes; the engine starts and stops with the application."""
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        for path in _PATHS:
            app.router.add_post(f"/v1{path}", self._complete)
        app.router.add_post("/tokenize", self._tokenize)
        app.cleanup_ctx.append(self._stepping)
        return app

    async def _stepping(self, _app: web.Application) -> Any:
        task = asyncio.create_task(self._step_for_ever())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _step_for_ever(self) -> None:
        """Steps follow one another in absolute time, so that a late wake-up is not added up."""
        loop = asyncio.get_running_loop()
        while True:
            if not self.engine.busy:
                self._work.clear()
                await self._work.wait()
            due = loop.time()
            while self.engine.busy:
                result = self.engine.step()
                due = max(due + result.duration_s, loop.time() - 1.0)
                await asyncio.sleep(max(0.0, due - loop.time()))
                for sequence in result.tokens:
                    queue = self._queues.get(sequence)
                    if queue is not None:
                        queue.put_nowait(1)

    # -- requests -------------------------------------------------------------------------------

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = msgspec.json.decode(await request.read(), type=JsonObject)
            asked = read_request(request.path, body)
            priority = whole_number(body, "priority", 0, least=-(2**31))
        except (msgspec.MsgspecError, ValueError) as exc:
            return _error(400, "BadRequestError", f"invalid request: {exc}")
        if body.get("model", self.model) != self.model:
            return _error(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        fault = self._draw_fault()
        if fault == "http_429":
            return _error(429, "RateLimitError", "injected overload", {"Retry-After": "1"})
        if fault == "http_500":
            return _error(500, "InternalServerError", "injected fault")
        if fault == "slow_start":
            await asyncio.sleep(1.0)
        room = self.engine.capacity_tokens()
        if max(map(len, asked.prompts)) + asked.limit > room:
            return _error(400, "BadRequestError", f"This model's maximum context length is {room} tokens.")
        self._served += 1
        reply = reply_of(request.path, body, self.model, self._served, asked)
        return await self._answer(request, reply, asked, priority, fault, streamed=bool(body.get("stream")))

    async def _answer(
        self, request: web.Request, reply: Reply, asked: Asked, priority: int, fault: str | None, *, streamed: bool
    ) -> web.StreamResponse:
        sequences = [self._add(words, asked.limit, priority) for words in asked.prompts]
        self._work.set()
        try:
            if streamed:
                return await self._stream(request, reply, sequences[0], asked.limit, fault)
            for sequence in sequences:
                for _ in range(asked.limit):
                    await self._queues[sequence].get()
            return web.json_response(reply.whole(sum(sequence.cached_tokens for sequence in sequences)))
        except ConnectionResetError:
            # The client has gone; what would be written now reaches nobody.
            return web.Response(status=499)
        finally:
            for sequence in sequences:
                self._queues.pop(sequence, None)
                if sequence.generated < sequence.output_tokens:
                    self.engine.abort(sequence)

    def _add(self, words: list[str], limit: int, priority: int) -> Sequence:
        """Give the engine one prompt; the words of its answer are known by now, so its cache can hold them, too."""
        blocks = prefix_blocks(words + answer_words(limit))
        sequence = self.engine.add(blocks, max(1, len(words)), limit, priority)
        self._queues[sequence] = asyncio.Queue()
        return sequence

    async def _stream(
        self,
        request: web.Request,
        reply: Reply,
        sequence: Sequence,
        limit: int,
        fault: str | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        began = time.monotonic()
        if begin := reply.begin():
            await response.write(begin)
        cut, queue = max(1, limit // 2), self._queues[sequence]
        for number in range(1, limit + 1):
            await queue.get()
            if number == 1:
                self._ttft_sum_s += time.monotonic() - began
                self._ttft_count += 1
            await response.write(reply.delta(number))
            if number == cut and fault == "stall":
                await asyncio.sleep(_STALL_S)
            if number == cut and fault == "reset" and request.transport is not None:
                _reset(request.transport)
                return response
        await response.write(reply.tail(sequence.cached_tokens))
        await response.write_eof()
        return response

    def _draw_fault(self) -> str | None:
        draw = self._random.random()
        for name, share in self.faults.items():
            if draw < share:
                return name
            draw -= share
        return None

    # -- about the server -----------------------------------------------------------------------

    async def _tokenize(self, request: web.Request) -> web.Response:
        """As vLLM's: of chat messages or a prompt."""
        try:
            body = msgspec.json.decode(await request.read(), type=JsonObject)
            asked = read_request("/chat/completions" if "messages" in body else "/completions", body)
        except (msgspec.MsgspecError, ValueError) as exc:
            return _error(400, "BadRequestError", f"invalid request: {exc}")
        count = len(asked.prompts[0])
        return web.json_response(
            {"count": count, "max_model_len": self.engine.capacity_tokens(), "tokens": list(range(count))}
        )

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "surgeproof",
            "max_model_len": self.engine.capacity_tokens(),
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self), content_type="text/plain", charset="utf-8")

    def collect(self) -> Iterator[Metric]:
        """The engine's metrics under vLLM's names, as a Prometheus collector."""
        engine = self.engine
        gauges = {
            "vllm:num_requests_running": ("Requests in the batch.", len(engine.running)),
            "vllm:num_requests_waiting": ("Requests in the queue.", engine.waiting),
            "vllm:kv_cache_usage_perc": ("Share of the KV cache in use.", round(engine.kv_usage, 6)),
        }
        counters = {
            "vllm:num_preemptions": ("Sequences that lost their KV cache.", engine.preemptions),
            "vllm:prompt_tokens": ("Prompt tokens computed.", engine.prompt_tokens),
            "vllm:generation_tokens": ("Tokens generated.", engine.generation_tokens),
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", engine.prefix_queries),
            "vllm:prefix_cache_hits": ("Prompt tokens found there.", engine.prefix_hits),
        }
        families: list[Metric] = []
        for kind, values in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in values.items():
                family = kind(name, text, labels=("model_name",))
                family.add_metric((self.model,), value)
                families.append(family)
        ttft = SummaryMetricFamily(
            "vllm:time_to_first_token_seconds", "Time to the first token.", labels=("model_name",)
        )
        ttft.add_metric((self.model,), count_value=self._ttft_count, sum_value=self._ttft_sum_s)
        yield from (*families, ttft)


def prefix_blocks(words: list[str]) -> list[int]:
    """Ids of the full blocks of a prompt; each id covers everything before it, too."""
    blocks, block = [], 0
    for start in range(0, len(words) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = hash((block, *words[start : start + BLOCK_TOKENS]))
        blocks.append(block)
    return blocks


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)


def _reset(transport: asyncio.BaseTransport) -> None:
    """Close with RST instead of FIN."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    transport.abort()  # type: ignore[attr-defined]


def read_faults(pairs: dict[str, str]) -> dict[str, float]:
    """Shares of injected faults from text.

    Raises:
        ConfigError: a fault is unknown or its share lies outside 0..1.
    """
    faults = {}
    for name, text in pairs.items():
        if name not in FAULTS:
            raise ConfigError(f"--inject: unknown fault {name!r}; known are {', '.join(FAULTS)}")
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise ConfigError(f"--inject: the share of {name} must lie between 0 and 1, not {text!r}")
        faults[name] = share
    if sum(faults.values()) > 1:
        raise ConfigError("--inject: the shares add up to more than 1")
    return faults


def serve(host: str, port: int, options: JsonObject, faults: dict[str, str]) -> None:
    """Serve until SIGINT or SIGTERM; prints the address when it is ready."""
    model = options.pop("model")
    server = SimServer(EngineOptions(**options), model, read_faults(faults))
    asyncio.run(_serve(server, host, port))


async def _serve(server: SimServer, host: str, port: int) -> None:
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=4096)
    try:
        await site.start()
    except OSError as exc:
        await runner.cleanup()
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    address = runner.addresses[0]
    print(json.dumps({"base_url": f"http://{address[0]}:{address[1]}/v1", "model": server.model}), flush=True)  # noqa: T201
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()
