"""What the client's audit found, frozen: each check with its limit, what a breach can have changed, and by how much."""

from enum import StrEnum

from msgspec import Struct


class Effect(StrEnum):
    """What a breach of an audit check can have done to a run's figures."""

    RECORDS = "records"
    """Records are missing or wrong: nothing that is counted from them stands."""
    LATE_SEND = "late_send"
    """Requests left late: latencies from the planned time hold the client's delay."""
    LATE_READ = "late_read"
    """Answers were read late: latencies and gaps hold the client's delay."""
    CLOCK = "clock"
    """Times are off by a known amount, either way."""
    LESS_LOAD = "less_load"
    """The server had less to do than planned: what it missed stands, what it met does not."""
    MORE_LOAD = "more_load"
    """The server had more to do than planned: what it met stands, what it missed does not."""


class AuditCheck(Struct, frozen=True):
    """One condition that the load generator itself had to meet.

    Attributes:
        effects: what a breach can have changed; unknown where empty, so that it voids all latencies and rates.
    """

    name: str
    observed: float | None
    limit: float
    unit: str
    passed: bool
    remedy: str
    effects: tuple[Effect, ...] = ()

    @classmethod
    def at_most(
        cls, name: str, observed: float, limit: float, unit: str, remedy: str, *effects: Effect
    ) -> "AuditCheck":
        """A check that is passed by values up to the limit."""
        return cls(name, round(observed, 6), limit, unit, observed <= limit, remedy, effects)


class CapWait(Struct, frozen=True):
    """Requests that were due while as many as `--max-concurrency` were in flight: the server's doing, not the client's.

    Attributes:
        cap: requests in flight at most.
        requests: how many waited for a place.
        sent: of how many that were sent.
        p99_ms: wait for a place, over those that were sent.
    """

    cap: int
    requests: int
    sent: int
    p99_ms: float


class ClientError(Struct, frozen=True):
    """How far off single latencies can be by the client's doing at most, ms.

    Attributes:
        send_ms: the largest lag of a send.
        read_ms: the longest time for which the client read nothing.
        clock_ms: error of its clocks, either way.
    """

    send_ms: float = 0.0
    read_ms: float = 0.0
    clock_ms: float = 0.0

    def times(self, count: int) -> "ClientError":
        """Of so many latencies, one after the other."""
        return ClientError(self.send_ms * count, self.read_ms * count, self.clock_ms)


class Audit(Struct, frozen=True):
    """Is the client trustworthy? A breach voids the objectives that it can have changed."""

    checks: tuple[AuditCheck, ...] = ()
    cap_wait: CapWait | None = None
    error: ClientError = ClientError()

    @property
    def breaches(self) -> tuple[AuditCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)
