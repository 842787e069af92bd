"""One process's part of a load as Locust sees it: turns of closed-loop users, and its statistics."""

from collections.abc import Callable
from typing import Any

import gevent

from surgeproof.loadgen.engine import Engine
from surgeproof.records import StreamRecord
from surgeproof.scenario import Scenario


class ProcessLoad:
    """Ties an engine to Locust's users and statistics.

    Args:
        environment: Locust's.
    """

    def __init__(self, environment: Any) -> None:
        self.engine: Engine | None = None
        self._fire = environment.events.request.fire
        self._stats: Any = environment.stats
        self._endpoint = ""
        self._on_done: Callable[[], None] = lambda: None

    def attach(self, engine: Engine, scenario: Scenario, on_done: Callable[[], None]) -> None:
        """Use a new run's engine; `on_done` is called when its share or step is sent and answered."""
        self.engine = engine
        self._endpoint = scenario.target.endpoint
        self._on_done = on_done

    def report_done(self) -> None:
        """The engine has finished its share."""
        self._on_done()

    def user_turn(self, request_class: str) -> None:
        """One turn of a closed-loop user."""
        engine = self.engine
        if engine is None or not engine.ask(request_class):
            if engine is not None and engine.step_is_done():
                self._on_done()
            gevent.sleep(0.05)

    def count(self, record: StreamRecord) -> None:
        """Feed Locust's own statistics: its response time is the whole answer, never the head."""
        failed = None if record.ok else Exception(f"{record.outcome}: {record.error or ''}"[:200])
        start = record.intended_at_ns
        end = record.done_at_ns or record.dispatched_at_ns or start
        name = f"{self._endpoint} {record.request_class}"
        self._fire(
            request_type="POST",
            name=name,
            response_time=(end - start) / 1e6,
            response_length=record.body_bytes,
            exception=failed,
            context={},
        )
        if record.first_token_at_ns is not None:
            # A row of its own, not a request of its own: Locust's totals must not count it twice.
            self._stats.get(name, "TTFT").log((record.first_token_at_ns - start) / 1e6, 0)
