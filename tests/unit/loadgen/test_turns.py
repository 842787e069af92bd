"""When sockets were last seen empty, by a manual clock: busy turns, sleeps, delays, and waits that report a part."""

from typing import Any

from surgeproof.loadgen.turns import Turns

MS = 1_000_000


class ManualWatcher:
    def start(self, callback: Any) -> None:
        self.fire = callback

    def stop(self) -> None: ...

    def close(self) -> None: ...


class ManualLoop:
    MAXPRI = 2

    def check(self, priority: int) -> ManualWatcher:
        self.watcher = ManualWatcher()
        assert priority == self.MAXPRI
        return self.watcher


class Driven:
    """Turns of a loop: `wait` until something is readable, read for some time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.delay_ns: int | None = 0
        self.loop = ManualLoop()
        self.turns = Turns(self.loop, lambda: self.now_ns, self)
        self.turns.end()

    def total_ns(self) -> int | None:
        return self.delay_ns

    def close(self) -> None: ...

    def turn(self, waited_ms: float, reading_ms: float, reported: int = 1) -> tuple[int, int]:
        """One turn; what is known while it reads."""
        self.now_ns += round(waited_ms * MS)
        self.loop.watcher.fire()
        self.turns.begin(reported)
        known = self.turns.empty_at_ns, self.turns.settled_ns()
        self.now_ns += round(reading_ms * MS)
        self.turns.end()
        return known


def test_a_busy_loop_knows_the_beginning_of_the_wait_before() -> None:
    """Turns of 3 ms without a sleep: waits begin at 0, 3, 6; the turn at 9 reads what the wait at 6 reported."""
    driven = Driven()
    for _ in range(3):
        driven.turn(0, 3)
    assert driven.turn(0, 3) == (6 * MS, 6 * MS)


def test_a_loop_that_slept_was_woken_by_the_first_arrival() -> None:
    """Asleep from 1 to 21 ms: nothing was there until 100 us before it woke."""
    driven = Driven()
    driven.turn(0, 1)
    empty, settled = driven.turn(20, 1)
    assert empty <= 1 * MS
    assert settled == 21 * MS - 100_000


def test_a_delay_of_the_scheduler_is_taken_off() -> None:
    """Of 20 ms it was ready to run for 8: the arrival was up to 8.1 ms before it ran."""
    driven = Driven()
    driven.turn(0, 1)
    driven.delay_ns = 8 * MS
    assert driven.turn(20, 1)[1] == 21 * MS - 8 * MS - 100_000
    driven.delay_ns += 30 * MS
    empty, settled = driven.turn(30, 1)
    assert settled == empty, "it was ready all the time, and may not have slept"


def test_many_sockets_at_once_or_no_statistics_leave_the_wait_itself() -> None:
    driven = Driven()
    driven.turn(0, 1)
    empty, settled = driven.turn(20, 1, reported=5)
    assert settled == empty
    driven.delay_ns = None
    empty, settled = driven.turn(20, 1)
    assert settled == empty


def test_a_wait_that_may_have_reported_a_part_says_nothing_of_the_rest() -> None:
    """64 were reported at 2 ms; the rest may have been readable since the wait at 0."""
    driven = Driven()
    driven.turn(0, 1, reported=1)
    driven.turn(0, 1, reported=64)
    assert driven.turn(0, 1, reported=64)[0] == 0
    driven.turn(0, 1, reported=10)
    assert driven.turn(0, 1)[0] == 3 * MS
