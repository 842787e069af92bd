"""Retries with exponential backoff what the database refuses: it may be locked, full or restarting.

Nothing is lost meanwhile: what is measured stands in the spools until it is stored.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from surgeproof.errors import StoreError

Result = TypeVar("Result")

_INITIAL_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 5.0
RETRY_LIMIT_S = 60.0
"""How long to try after the load has ended; a try that waits for a lock may take 30 s more."""


class StoreRetry:
    """Calls what writes to the database until it succeeds.

    Args:
        say: shows a sentence to the user.
        monotonic_s: a clock.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._say, self._monotonic_s, self._sleep = say, monotonic_s, sleep
        self._backoff_s = _INITIAL_BACKOFF_S
        self._not_before_s = 0.0
        self._failing = False

    def attempt(self, write: Callable[[], Result]) -> Result | None:
        """One try, unless the last one failed a moment ago; None where nothing was written."""
        if self._monotonic_s() < self._not_before_s:
            return None
        try:
            result = write()
        except StoreError as exc:
            self._note_failure(exc)
            return None
        self._note_success()
        return result

    def until_stored(self, write: Callable[[], Result], give_up: Callable[[], bool]) -> Result:
        """Tries until it succeeds.

        Args:
            write: what to do; it must be possible to do it twice.
            give_up: asked before each wait.

        Raises:
            StoreError: it failed for `RETRY_LIMIT_S`, or `give_up` said so.
        """
        deadline_s = self._monotonic_s() + RETRY_LIMIT_S
        while True:
            try:
                result = write()
            except StoreError as exc:
                self._note_failure(exc)
                if self._monotonic_s() >= deadline_s or give_up():
                    raise
                self._sleep(max(0.0, self._not_before_s - self._monotonic_s()))
            else:
                self._note_success()
                return result

    def _note_failure(self, exc: StoreError) -> None:
        if not self._failing:
            self._say(f"{exc}; trying again, what is measured meanwhile is kept in the spools")
        self._failing = True
        self._not_before_s = self._monotonic_s() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    def _note_success(self) -> None:
        if self._failing:
            self._say("the database can be written again")
        self._failing, self._backoff_s = False, _INITIAL_BACKOFF_S
