"""How the load generator's own process is doing: CPU, lateness of its event loop, collections, clock steps."""

import gc
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from surgeproof.clock import MonotonicClock, measure_anchor_ns
from surgeproof.loadgen.host_cpu import Taken
from surgeproof.records import HealthSample

_BEAT_NS = 10_000_000
_MIN_INTERVAL_NS = 50_000_000


class Gauges(NamedTuple):
    """What the load is doing at the moment of a sample; read counts are since the last one."""

    in_flight: int
    waiting: int
    reads: int
    late_reads: int


class HealthMonitor:
    """Samples one process; `beat` must be called every 10 ms by its event loop.

    Args:
        clock: the run's clock.
        start_at_ns: before it, lateness does not count.
        gauges: reads what the load is doing, and resets its counts of reads.
        taken: what the host took from the process, in all.
        monotonic_ns, process_time_ns: clocks of the process.
    """

    def __init__(
        self,
        clock: MonotonicClock,
        start_at_ns: int,
        gauges: Callable[[], Gauges],
        *,
        taken: Callable[[], Taken] = Taken,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        process_time_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._clock, self._start_at_ns, self._gauges = clock, start_at_ns, gauges
        self._monotonic_ns, self._process_time_ns = monotonic_ns, process_time_ns
        self._taken, self._taken_before = taken, taken()
        self._sampled_at_ns, self._cpu_ns = monotonic_ns(), process_time_ns()
        self._beat_at_ns = self._sampled_at_ns
        self._lag_ns = 0
        self._gc_pause_ns = 0
        self._gc_started_ns = 0
        self._anchor_ns = measure_anchor_ns()
        self._watcher: Any = None

    def watch(self, loop: Any) -> None:
        """Beat by an event loop of gevent, and time garbage collections, until `close`."""
        self._watcher = loop.timer(_BEAT_NS / 1e9, _BEAT_NS / 1e9)
        self._watcher.start(self.beat)
        gc.callbacks.append(self._on_gc)

    def beat(self) -> None:
        """Note how late the event loop is."""
        now = self._monotonic_ns()
        late = now - self._beat_at_ns - _BEAT_NS
        self._beat_at_ns = now
        if self._clock.now_ns() >= self._start_at_ns:
            self._lag_ns = max(self._lag_ns, late)

    def take(self) -> list[HealthSample]:
        """The sample since the last call, as a list of one; none for too short a time."""
        now, cpu = self._monotonic_ns(), self._process_time_ns()
        if now - self._sampled_at_ns < _MIN_INTERVAL_NS:
            return []
        gauges, taken = self._gauges(), self._taken()
        sample = HealthSample(
            at_ns=self._clock.now_ns(),
            cpu_share=round((cpu - self._cpu_ns) / (now - self._sampled_at_ns), 4),
            loop_lag_ns=self._lag_ns,
            gc_pause_ns=self._gc_pause_ns,
            in_flight=gauges.in_flight,
            waiting=gauges.waiting,
            clock_step_ns=measure_anchor_ns(4) - self._anchor_ns,
            rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            reads=gauges.reads,
            late_reads=gauges.late_reads,
            run_delay_ns=taken.run_delay_ns - self._taken_before.run_delay_ns,
            throttled_ns=taken.throttled_ns - self._taken_before.throttled_ns,
            steal_ns=taken.steal_ns - self._taken_before.steal_ns,
        )
        self._taken_before = taken
        self._sampled_at_ns, self._cpu_ns = now, cpu
        self._lag_ns = self._gc_pause_ns = 0
        return [sample]

    def close(self) -> None:
        """Stop sampling."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._gc_started_ns = now
        else:
            self._gc_pause_ns = max(self._gc_pause_ns, now - self._gc_started_ns)
