"""An aiohttp application served on a free port of loopback, in a thread of its own."""

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web


class ServedApp:
    """Serves an application while it is entered.

    Args:
        app: the application.
        port: 0 for any free one.
        runner_options: of `aiohttp.web.AppRunner`.
    """

    def __init__(self, app: web.Application, port: int = 0, **runner_options: Any) -> None:
        self.port = port
        self._app, self._options = app, runner_options
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app, access_log=None, **self._options)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()
