"""The health of the load generator's process, by clocks that the test moves."""

from surgeproof.clock import MonotonicClock
from surgeproof.loadgen.health import Gauges, HealthMonitor

MS = 1_000_000


class Process:
    """A monitor whose process spends what the test says."""

    def __init__(self, start_in_ms: int = 0) -> None:
        self.now, self.cpu = 0, 0
        clock = MonotonicClock()
        self.monitor = HealthMonitor(
            clock, clock.now_ns() + start_in_ms * MS, lambda: Gauges(7, 2, 100, 3),
            monotonic_ns=lambda: self.now, process_time_ns=lambda: self.cpu,
        )  # fmt: skip

    def beat_after(self, ms: int) -> None:
        self.now += ms * MS
        self.monitor.beat()


def test_the_cpu_share_is_cpu_time_over_wall_time_since_the_last_sample() -> None:
    process = Process()
    process.now, process.cpu = 500 * MS, 125 * MS
    (first,) = process.monitor.take()
    process.now, process.cpu = 1000 * MS, 625 * MS
    (second,) = process.monitor.take()
    assert (first.cpu_share, second.cpu_share) == (0.25, 1.0)
    assert (first.in_flight, first.waiting, first.reads, first.late_reads) == (7, 2, 100, 3)


def test_the_worst_late_heartbeat_counts_once() -> None:
    process = Process()
    for ms in (10, 35, 12):
        process.beat_after(ms)
    process.now += 100 * MS
    (first,) = process.monitor.take()
    process.now += 100 * MS
    (second,) = process.monitor.take()
    assert (first.loop_lag_ns, second.loop_lag_ns) == (25 * MS, 0)


def test_lateness_before_the_start_of_the_load_does_not_count() -> None:
    process = Process(start_in_ms=60_000)
    process.beat_after(300)
    (sample,) = process.monitor.take()
    assert sample.loop_lag_ns == 0


def test_too_short_a_time_gives_no_sample() -> None:
    process = Process()
    process.now = 49 * MS
    assert process.monitor.take() == []
