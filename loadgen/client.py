"""The client: any number of requests to one endpoint over kept-alive connections, and their timeouts.

Each `Exchange` is driven by callbacks of gevent's event loop, without a greenlet of its own, so ten
thousand streams cost ten thousand sockets and little else. A turn of the loop first receives from
every socket that is readable, then parses what came: two tight loops cost a sixth less than one
that alternates between kernel and parser. Nothing is monkey-patched here.
"""

import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable

import gevent

from surgeproof.clock import MonotonicClock
from surgeproof.loadgen.connection import READ_BYTES, Connection
from surgeproof.loadgen.dial import keep_stamping_on
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.target import Target
from surgeproof.loadgen.timer import NEVER_NS
from surgeproof.loadgen.turns import Turns
from surgeproof.outcomes import Outcome
from surgeproof.scenario import Timeouts

logger = logging.getLogger(__name__)

DONE_GRACE_S = 0.1
"""How long a body may stay open after `[DONE]` before its connection is closed."""
_SWEEP_S = 0.01


class Client:
    """Sends exchanges to one target over kept-alive connections, without a cap of its own.

    Args:
        target: a resolved target.
        timeouts: limits of each phase.
        reuse: keep connections alive; off, each request opens its own.
        clock: the run's clock.
    """

    def __init__(
        self,
        target: Target,
        timeouts: Timeouts | None = None,
        *,
        reuse: bool = True,
        clock: MonotonicClock | None = None,
    ) -> None:
        self.target = target
        self.timeouts = timeouts or Timeouts()
        self.reuse = reuse
        self.clock = clock or MonotonicClock()
        self.loop = gevent.get_hub().loop
        self.idle: deque[Connection] = deque()
        self.in_flight: set[Exchange] = set()
        self._deadlines: list[tuple[int, int, list[Exchange]]] = []
        self._sequence = itertools.count()
        self._sweeper = self.loop.timer(_SWEEP_S, _SWEEP_S)
        self._sweeper.start(self._sweep)
        self._stamping = keep_stamping_on()
        self.reads = self.late_reads = 0
        self.next_due_ns = NEVER_NS
        self.on_due: Callable[[], None] = lambda: None
        # One buffer for all connections: a read is copied out of it before the next one begins.
        self.read_view = memoryview(bytearray(READ_BYTES))
        self.readable: list[Connection] = []
        self.turns = Turns(self.loop, self.clock.now_ns)
        # Called after the loop has reported the readable sockets, and last before it waits again: what ran between its
        # end and the wait would be taken for sleep.
        self._reading = self.loop.prepare(priority=self.loop.MINPRI)
        self._reading.start(self._read_all)

    def start(self, exchange: Exchange) -> None:
        """Send now, on an idle connection or a new one; `on_done` is called exactly once."""
        now = self.clock.now_ns()
        exchange.dispatched_at_ns = exchange.dispatched_at_ns or now
        exchange.attempt_started_at_ns = exchange.last_activity_at_ns = now
        self.in_flight.add(exchange)
        while self.idle:
            connection = self.idle.pop()
            if connection.is_quiet():
                exchange.reused = True
                self.watch(exchange)
                connection.send(exchange)
                return
        Connection(self, exchange).open()

    def finish(self, exchange: Exchange) -> None:
        """The exchange is over: report it to its owner."""
        if exchange.finished:
            return
        exchange.finished = True
        exchange.connection = None
        self.in_flight.discard(exchange)
        # Deadlines stay in the heap for minutes; the exchanges they watch must be freed earlier.
        for watch in exchange.watches:
            watch.clear()
        exchange.watches.clear()
        exchange.on_done(exchange)

    def retry_fresh(self, exchange: Exchange) -> None:
        """Once more on a new connection: the reused one had died before a byte was received."""
        exchange.retries += 1
        exchange.restart()
        exchange.reader.warn("stale_connection_retry")
        exchange.attempt_started_at_ns = exchange.last_activity_at_ns = self.clock.now_ns()
        Connection(self, exchange).open()

    def cancel_all(self, outcome: Outcome, reason: str) -> None:
        """End every exchange in flight with a given outcome, unless its answer has come already."""
        for exchange in list(self.in_flight):
            if exchange.connection is not None:
                exchange.connection.on_readable()
            if not exchange.finished:
                self.abandon(exchange, outcome, reason)

    def abandon(self, exchange: Exchange, outcome: Outcome, reason: str) -> None:
        """End one exchange with a given outcome and drop its connection."""
        exchange.reader.on_fault(outcome, reason, self.clock.now_ns())
        if exchange.connection is not None:
            exchange.connection.close()
        self.finish(exchange)

    def close(self) -> None:
        """Cancel what is in flight, close idle connections, stop reading and the timeout sweep."""
        self.cancel_all(Outcome.CANCELLED, "the client was closed")
        for watcher in (self._sweeper, self._reading):
            watcher.stop()
            watcher.close()
        while self.idle:
            self.idle.pop().close()
        self.readable.clear()
        self.turns.close()
        if self._stamping is not None:
            self._stamping.close()

    # -- reading --------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Receive from all sockets that are readable, then parse."""
        self.turns.begin(len(self.readable))
        if self.readable:
            connections = self.readable.copy()
            self.readable.clear()
            self._step_all(self._step_all(connections, Connection.receive), Connection.parse)
        self.turns.end()

    def _step_all(self, connections: list[Connection], step: Callable[[Connection], bool]) -> list[Connection]:
        """Run one step of each connection, return those with another step; send due requests in between."""
        more = []
        for connection in connections:
            # There may be hundreds, and the loop looks at timers only after them.
            if time.monotonic_ns() >= self.next_due_ns:
                self._send_due()
            if connection.guarded(step):
                more.append(connection)
        return more

    def _send_due(self) -> None:
        """A failing start must not lose data that other connections have received."""
        try:
            self.on_due()
        except Exception:
            logger.exception("client error while sending due requests")

    # -- timeouts -------------------------------------------------------------------------------

    def watch(self, exchange: Exchange) -> None:
        """A new phase with its own limit has begun."""
        if exchange.finished:
            return
        due, _, _ = self._next_deadline(exchange)
        watch = [exchange]
        exchange.watches.append(watch)
        heapq.heappush(self._deadlines, (due, next(self._sequence), watch))

    def _next_deadline(self, exchange: Exchange) -> tuple[int, Outcome | None, str]:
        """The next deadline of the exchange: (time, outcome, message); no outcome, only to look again."""
        limits = self.timeouts
        if exchange.connect_at_ns is not None and exchange.connected_at_ns is None:
            due = exchange.connect_at_ns + _ns(limits.connect_s)
            message = f"connect timeout: no connection after {limits.connect_s:g} s"
            return due, Outcome.CONNECT, message
        reader = exchange.reader
        if reader.saw_done and reader.done_at_ns is not None:
            return reader.done_at_ns + _ns(DONE_GRACE_S), Outcome.DISCONNECT, "the body was not terminated"
        candidates = []
        if limits.read_s is not None:
            silence = f"read timeout: idle, no byte for {limits.read_s:g} s"
            candidates.append((exchange.last_activity_at_ns + _ns(limits.read_s), silence))
        if limits.first_token_s is not None and reader.first_token_at_ns is None:
            since = exchange.sent_at_ns or exchange.attempt_started_at_ns
            late = f"first-token timeout: none after {limits.first_token_s:g} s"
            candidates.append((since + _ns(limits.first_token_s), late))
        if limits.total_s is not None:
            since = exchange.sent_at_ns or exchange.attempt_started_at_ns
            candidates.append((since + _ns(limits.total_s), f"total timeout after {limits.total_s:g} s"))
        # Without a limit, look again in a second: `[DONE]` may have come by then.
        due, message = min(candidates, default=(self.clock.now_ns() + 10**9, ""))
        return due, Outcome.TIMEOUT if message else None, message

    def _sweep(self) -> None:
        now = self.clock.now_ns()
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            _, _, watch = heapq.heappop(heap)
            if not watch:
                continue
            exchange = watch[0]
            due, outcome, _ = self._next_deadline(exchange)
            if due <= now and outcome and exchange.connection is not None:
                # Bytes may have reached the kernel while the client was busy: that is not a timeout.
                exchange.connection.on_readable()
                if exchange.finished:
                    continue
            due, outcome, message = self._next_deadline(exchange)
            if due <= now and outcome:
                self.abandon(exchange, outcome, message)
            else:
                heapq.heappush(heap, (due, next(self._sequence), watch))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
