"""Requests that wait for the answers of others: the later turns of conversations, the steps of tasks. Pure.

An answer makes steps due: at once, after the time that its user thinks or its tool works, or at a time of their own.
Where a step needs the answers that it waits for and one of them failed, it is skipped, and so is all that waits for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from surgeproof.records import RequestPlan


class Freed(NamedTuple):
    """What an answer decides.

    Attributes:
        due: steps with the time at which they are to leave, ns.
        skipped: steps that are not sent.
    """

    due: list[tuple[RequestPlan, int]]
    skipped: list[RequestPlan]


class WaitingSteps:
    """The steps of one worker that wait.

    Args:
        start_at_ns: time of the plan's 0, for steps that have a time of their own.
    """

    def __init__(self, start_at_ns: int) -> None:
        self._start_at_ns = start_at_ns
        self._steps: dict[int, RequestPlan] = {}
        self._missing: dict[int, int] = {}
        self._answered_at: dict[int, int] = {}
        self._followers: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[RequestPlan]:
        return iter(self._steps.values())

    def add(self, plan: RequestPlan) -> None:
        """Let a request wait for those that it names."""
        self._steps[plan.index] = plan
        self._missing[plan.index] = len(plan.after)
        for index in plan.after:
            self._followers.setdefault(index, []).append(plan.index)

    def answered(self, index: int, at_ns: int, *, ok: bool) -> Freed:
        """A request has ended: what follows is due, or is skipped.

        Args:
            index: the request.
            at_ns: when it ended.
            ok: whether there is an answer to go on with.
        """
        freed = Freed([], [])
        self._settle(index, at_ns, freed, ok=ok)
        return freed

    def _settle(self, index: int, at_ns: int, freed: Freed, *, ok: bool) -> None:
        ended = [(index, ok)]
        while ended:
            index, ok = ended.pop()
            for follower in self._followers.pop(index, ()):
                plan = self._steps.get(follower)
                if plan is None:
                    continue
                if not ok and plan.needs_answers:
                    freed.skipped.append(self._take(follower))
                    ended.append((follower, False))
                    continue
                latest = self._answered_at[follower] = max(self._answered_at.get(follower, 0), at_ns)
                self._missing[follower] -= 1
                if not self._missing[follower]:
                    freed.due.append((self._take(follower), self._due_ns(plan, latest)))

    def _take(self, index: int) -> RequestPlan:
        self._missing.pop(index)
        self._answered_at.pop(index, None)
        return self._steps.pop(index)

    def _due_ns(self, plan: RequestPlan, answered_ns: int) -> int:
        """After the wait that is known; else at its own time, but not before the answers."""
        if plan.think_ns is not None:
            return answered_ns + plan.think_ns
        return max(answered_ns, self._start_at_ns + (plan.intended_ns or 0))

    def clear(self) -> None:
        """Forget all that wait."""
        for kept in (self._steps, self._missing, self._answered_at, self._followers):
            kept.clear()
