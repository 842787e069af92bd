"""Serves the simulated engine over OpenAI's API, as vLLM does; the only place that uses real time.

Streams are a role chunk, deltas, a finish chunk, usage when asked for, and `[DONE]`. A word of the
prompt is a token. Faults are injected by share: http_429, http_500, reset, stall (a stream that
goes silent), slow_start (a second before the head).
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
from surgeproof.strict_json import JsonObject

FAULTS = ("http_429", "http_500", "reset", "stall", "slow_start")
_WORDS = ("time", "load", "the", "queue", "fast", "wave", "step", "answer", "calm", "river", "stone", "light")
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
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
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
        chat = request.path.endswith("/chat/completions")
        try:
            body = msgspec.json.decode(await request.read(), type=JsonObject)
            words = _prompt_words(body, chat=chat)
            limit = _whole(body, "max_completion_tokens", 0) or _whole(body, "max_tokens", 16)
            priority = _whole(body, "priority", 0, least=-(2**31))
            if not isinstance(body.get("stream_options") or {}, dict):
                raise ValueError("stream_options must be an object")  # noqa: TRY004 - it becomes a 400
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
        if len(words) + limit > room:
            return _error(400, "BadRequestError", f"This model's maximum context length is {room} tokens.")
        sequence = self.engine.add(prefix_blocks(words), max(1, len(words)), limit, priority)
        queue = self._queues[sequence] = asyncio.Queue()
        self._work.set()
        self._served += 1
        reply = _Reply(body, self.model, self._served, chat=chat, prompt_tokens=len(words), limit=limit)
        try:
            if body.get("stream"):
                return await self._stream(request, reply, sequence, queue, fault)
            for _ in range(reply.limit):
                await queue.get()
            return web.json_response(reply.whole(sequence.cached_tokens))
        except ConnectionResetError:
            # The client has gone; what would be written now reaches nobody.
            return web.Response(status=499)
        finally:
            self._queues.pop(sequence, None)
            if sequence.generated < sequence.output_tokens:
                self.engine.abort(sequence)

    async def _stream(
        self,
        request: web.Request,
        reply: "_Reply",
        sequence: Sequence,
        queue: "asyncio.Queue[int]",
        fault: str | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        began = time.monotonic()
        if reply.chat:
            await response.write(reply.role())
        cut = max(1, reply.limit // 2)
        for number in range(1, reply.limit + 1):
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


def _whole(body: JsonObject, name: str, default: int, least: int = 0) -> int:
    """A whole number of a request, or its default.

    Raises:
        ValueError: it is something else, or too small or large.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value


class _Reply:
    """The chunks of one answer."""

    def __init__(
        self, body: JsonObject, model: str, number: int, *, chat: bool, prompt_tokens: int, limit: int
    ) -> None:
        self.chat, self.prompt_tokens, self.limit = chat, prompt_tokens, limit
        options = body.get("stream_options") or {}
        self._usage_wanted = bool(options.get("include_usage"))
        kind = "chat.completion.chunk" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        self._head: JsonObject = {
            "id": f"{prefix}-sim-{number}", "object": kind, "created": int(time.time()), "model": model,
        }  # fmt: skip

    def _event(self, choices: list[JsonObject], **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode(self._head | {"choices": choices} | more) + b"\n\n"

    def role(self) -> bytes:
        """The first chunk of a chat, which holds no token."""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _word(self, number: int) -> str:
        return ("" if number == 1 else " ") + _WORDS[number % len(_WORDS)]

    def delta(self, number: int) -> bytes:
        """One token."""
        text = self._word(number)
        part: JsonObject = {"delta": {"content": text}} if self.chat else {"text": text}
        return self._event([{"index": 0, **part, "logprobs": None, "finish_reason": None}])

    def tail(self, cached_tokens: int) -> bytes:
        """Finish, usage and the end."""
        part: JsonObject = {"delta": {}} if self.chat else {"text": ""}
        out = self._event([{"index": 0, **part, "logprobs": None, "finish_reason": "length"}])
        if self._usage_wanted:
            out += self._event([], usage=self._usage(cached_tokens))
        return out + b"data: [DONE]\n\n"

    def _usage(self, cached_tokens: int) -> JsonObject:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.limit,
            "total_tokens": self.prompt_tokens + self.limit,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }

    def whole(self, cached_tokens: int) -> JsonObject:
        """The answer to a request that did not ask for a stream."""
        text = "".join(self._word(number) for number in range(1, self.limit + 1))
        part = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        kind = "chat.completion" if self.chat else "text_completion"
        choice = {"index": 0, **part, "finish_reason": "length"}
        return self._head | {"object": kind, "choices": [choice], "usage": self._usage(cached_tokens)}


def prefix_blocks(words: list[str]) -> list[int]:
    """Ids of the full blocks of a prompt; each id covers everything before it, too."""
    blocks, block = [], 0
    for start in range(0, len(words) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = hash((block, *words[start : start + BLOCK_TOKENS]))
        blocks.append(block)
    return blocks


def _prompt_words(body: JsonObject, *, chat: bool) -> list[str]:
    if not chat:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise ValueError("prompt must be a string")
        return prompt.split()
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ValueError("messages must be a list of objects that is not empty")
    return " ".join(str(message.get("content") or "") for message in messages).split()


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
