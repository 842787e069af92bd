"""An endpoint that keeps a log of what it answered: the truth that stored records are counted against."""

import asyncio
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from aiohttp import web

from tests.e2e.test_run import rows


class LoggingEndpoint:
    """Streams five tokens within 50 ms, in a thread of its own.

    Attributes:
        asked_at_s: when each request was read, monotonic.
        answered: plan indexes of requests whose answer was written to its end.
    """

    def __init__(self) -> None:
        self.asked_at_s: list[float] = []
        self.answered: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> "LoggingEndpoint":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def asked_after(self, at_s: float) -> int:
        """Requests read later than this, monotonic."""
        return sum(asked > at_s for asked in self.asked_at_s)

    def missing(self, database: Path) -> set[int]:
        """Answered requests whose record does not say so."""
        stored = {index for (index,) in rows(database, "SELECT plan_index FROM records WHERE outcome = 'ok'")}
        return set(self.answered) - stored

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self._port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.asked_at_s.append(time.monotonic())
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionError):
            await self._answer(request, reply)
        return reply

    async def _answer(self, request: web.Request, reply: web.StreamResponse) -> None:
        await reply.prepare(request)
        for index in range(5):
            await asyncio.sleep(0.01)
            chunk = {"choices": [{"index": 0, "delta": {"content": f"t{index} "}, "finish_reason": None}]}
            await reply.write(f"data: {json.dumps(chunk)}\n\n".encode())
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage}
        await reply.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        await reply.write_eof()
        self.answered.append(int(request.headers["traceparent"].split("-")[2], 16) - 1)
