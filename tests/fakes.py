"""Hand-written stand-ins: a clock that tests move, a timer that they fire, a sender that answers on demand."""

from collections.abc import Callable

from surgeproof.loadgen.loop_protocols import OnRecord
from surgeproof.outcomes import Outcome
from surgeproof.records import RequestPlan, StreamRecord


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, now_ns: int = 0) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        return self.time_ns


class ManualTimer:
    """Fires a loop when the clock is moved past the time that was set."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.at_ns: int | None = None
        self.fire: Callable[[], None] = lambda: None

    def set(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def cancel(self) -> None:
        self.at_ns = None

    def advance_to(self, now_ns: int) -> None:
        """Move the clock from one set time to the next, firing at each, as far as `now_ns`."""
        while self.at_ns is not None and self.at_ns <= now_ns:
            self.clock.time_ns = max(self.clock.time_ns, self.at_ns)
            self.at_ns = None
            self.fire()
        self.clock.time_ns = max(self.clock.time_ns, now_ns)


class ManualSender:
    """Notes what is sent and when; `answer` ends a request. `broken` indexes raise, `slow_ns` is spent in each send."""

    def __init__(self, clock: ManualClock, broken: tuple[int, ...] = (), slow_ns: int = 0) -> None:
        self.clock, self.broken, self.slow_ns = clock, broken, slow_ns
        self.sent: list[tuple[int, int, int]] = []
        self.steps: list[int] = []
        self.phases: list[str] = []
        self.plans: list[RequestPlan] = []
        self.forgotten: list[int] = []
        self._unanswered: dict[int, tuple[RequestPlan, int, OnRecord]] = {}

    @property
    def in_flight(self) -> int:
        return len(self._unanswered)

    def payload(self, plan: RequestPlan) -> bytes:
        return b"%d" % plan.index

    def forget(self, plan: RequestPlan) -> None:
        self.forgotten.append(plan.index)

    def send(
        self, plan: RequestPlan, payload: bytes, intended_at_ns: int, phase: str, step: int, on_record: OnRecord
    ) -> None:
        assert payload == self.payload(plan)
        if plan.index in self.broken:
            raise OSError("no socket")
        self.sent.append((plan.index, intended_at_ns, self.clock.now_ns()))
        self.steps.append(step)
        self.phases.append(phase)
        self.plans.append(plan)
        self._unanswered[plan.index] = (plan, intended_at_ns, on_record)
        self.clock.time_ns += self.slow_ns

    def answer(self, index: int, outcome: str = Outcome.OK) -> None:
        plan, intended_at_ns, on_record = self._unanswered.pop(index)
        record = StreamRecord(
            plan_index=index,
            request_class=plan.request_class,
            planned_input_tokens=plan.input_tokens,
            planned_output_tokens=plan.output_tokens,
            intended_at_ns=intended_at_ns,
            done_at_ns=self.clock.now_ns(),
            task=plan.session,
            turn=plan.turn,
            outcome=outcome,
        )
        on_record(record, plan)
