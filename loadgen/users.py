"""Locust's user classes and load shapes.

Locust owns users, distribution and lifecycle; the schedule, the sockets and the records are the
engine's. A user of a closed loop asks the engine of its process; a shape blocks until the controller
says that a step, or the whole plan, is over.
"""

from typing import Protocol

import gevent
from locust import LoadTestShape, User, constant, task

from surgeproof.scenario import Scenario


class LoadProgress(Protocol):
    """What a shape asks of the run controller."""

    scenario: Scenario

    def worker_count(self) -> int:
        """How many processes share the load."""
        ...

    def wait_until_answered(self) -> None:
        """Open loop: block until the whole plan has been answered."""
        ...

    def wait_until_step_is_over(self) -> None:
        """Closed loop: block until the step's time is over or its requests are answered."""
        ...

    def enter_step(self, users: int) -> None:
        """The ladder's next step begins."""
        ...


class ClassUser(User):
    """A user who asks, waits for the whole answer and asks again."""

    abstract = True
    wait_time = constant(0)
    request_class = "P1"

    @task
    def ask(self) -> None:
        """One request of this user's class."""
        self.environment.surgeproof.load.user_turn(self.request_class)


class P0User(ClassUser):
    """Urgent, payment-like traffic."""

    weight = 5
    request_class = "P0"


class P1User(ClassUser):
    """Ordinary queries."""

    weight = 3
    request_class = "P1"


class P2User(ClassUser):
    """Background, log-like traffic."""

    weight = 1
    request_class = "P2"


class ReplayUser(User):
    """Placeholder user of one worker's open loop, so that Locust shows the active workers."""

    wait_time = constant(0)

    @task
    def watch(self) -> None:
        """The open loop sends on its own; this user does nothing."""
        gevent.sleep(3600)


USER_CLASSES: dict[str, type[ClassUser]] = {"P0": P0User, "P1": P1User, "P2": P2User}


class OpenLoopShape(LoadTestShape):
    """One placeholder user a worker until the whole plan has been answered."""

    abstract = True

    def __init__(self, progress: LoadProgress) -> None:
        super().__init__()
        self._progress = progress
        self._started = False

    def reset_time(self) -> None:
        """A new test begins."""
        super().reset_time()
        self._started = False

    def tick(self) -> tuple[int, float] | None:
        """Block until the load is over; Locust asks again at once when we return."""
        workers = self._progress.worker_count()
        if not self._started:
            self._started = True
            return workers, float(workers)
        self._progress.wait_until_answered()
        return None


class LadderShape(LoadTestShape):
    """A closed loop in steps of users, each for a time or a number of requests."""

    abstract = True

    def __init__(self, progress: LoadProgress) -> None:
        super().__init__()
        self._progress = progress
        self._step = -1

    def reset_time(self) -> None:
        """A new test begins."""
        super().reset_time()
        self._step = -1

    def tick(self) -> tuple[int, float] | None:
        """Block until the step is over, then name the next one's users."""
        steps = self._progress.scenario.load.concurrency
        if self._step >= 0:
            self._progress.wait_until_step_is_over()
        self._step += 1
        if self._step >= len(steps):
            return None
        users = steps[self._step]
        self._progress.enter_step(users)
        return users, float(users)
