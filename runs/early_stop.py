"""When a run is not worth going on: its first requests all failed. Pure."""

from collections import Counter
from collections.abc import Iterable

from surgeproof.outcomes import NOT_JUDGED
from surgeproof.records import StreamRecord

DEFAULT_ABORT_AFTER = 20
_HOPELESS = (401, 403, 404)
"""Statuses that no further request will change: a wrong key, a wrong address, a model that is not there."""


class EarlyStop:
    """Watches the first requests of a run.

    Args:
        abort_after: how many must have failed, without one answered; None for the default number, of the statuses 401,
            403 and 404 only; 0 for never.
    """

    def __init__(self, abort_after: int | None) -> None:
        self._any_failure = abort_after is not None
        self._limit = DEFAULT_ABORT_AFTER if abort_after is None else abort_after
        self._outcomes: Counter[str] = Counter()
        self._said: str | None = None
        self._over = self._limit == 0

    def take(self, records: Iterable[StreamRecord]) -> str | None:
        """Note requests that have ended; why the run should end, once it should."""
        if self._over:
            return None
        for record in records:
            if record.outcome in NOT_JUDGED:
                continue
            hopeless = self._any_failure or record.http_status in _HOPELESS
            if record.ok or not hopeless:
                self._over = True
                return None
            self._outcomes[record.outcome] += 1
            self._said = self._said or record.error
        failed = self._outcomes.total()
        if failed < self._limit:
            return None
        self._over = True
        name, count = self._outcomes.most_common(1)[0]
        said = f": {self._said}" if self._said else ""
        return (
            f"stopped, as none of the first {failed} requests was answered ({count} × {name}{said}); see --abort-after"
        )
