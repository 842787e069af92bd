"""An endpoint that keeps a log of what it answered: the truth that stored records are counted against."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from tests.e2e.test_run import rows
from tests.served_app import ServedApp


class LoggingEndpoint(ServedApp):
    """Streams five tokens within 50 ms, in a thread of its own.

    Attributes:
        asked_at_s: when each request was read, monotonic.
        answered: plan indexes of requests whose answer was written to its end.
    """

    def __init__(self) -> None:
        self.asked_at_s: list[float] = []
        self.answered: list[int] = []
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        super().__init__(app, shutdown_timeout=0.1)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def asked_after(self, at_s: float) -> int:
        """Requests read later than this, monotonic."""
        return sum(asked > at_s for asked in self.asked_at_s)

    def missing(self, database: Path) -> set[int]:
        """Answered requests whose record does not say so."""
        stored = {index for (index,) in rows(database, "SELECT plan_index FROM records WHERE outcome = 'ok'")}
        return set(self.answered) - stored

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
