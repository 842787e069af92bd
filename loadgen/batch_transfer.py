"""Batches from a worker on another host: kept in a file there until the master has acknowledged each.

`BatchSender` is the worker's side, `BatchReceiver` the master's. Neither knows how messages travel: the
sender is given a function that sends, and both are called with what arrived. A batch may be sent twice;
storing one twice changes nothing.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from surgeproof.loadgen.spool import Batch, SpoolWriter, decode_frame, encode_frame, spool_path

logger = logging.getLogger(__name__)

_RESEND_S = 2.0
_MAX_RESENT = 16


class BatchSender:
    """An outbox whose batches are written to a local spool and sent to the master.

    Args:
        path: the local spool.
        send: sends one frame under its number; may fail silently.
        monotonic_s: a clock, for deciding when to send again.
    """

    def __init__(
        self, path: Path, send: Callable[[int, bytes], None], monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._spool = SpoolWriter(path)
        self._send = send
        self._monotonic_s = monotonic_s
        self._next = 0
        self._size = 0
        # Offset of each frame in the spool, so that memory does not grow while the master is silent.
        self._unacknowledged: dict[int, tuple[int, int]] = {}
        self._last_progress_s = monotonic_s()

    def append(self, batch: Batch) -> None:
        """Keep a batch and send it."""
        frame = encode_frame(batch)
        self._spool.append_frame(frame)
        if not self._unacknowledged:
            self._last_progress_s = self._monotonic_s()
        number, self._next = self._next, self._next + 1
        self._unacknowledged[number] = (self._size, len(frame))
        self._size += len(frame)
        self._send(number, frame)
        self.send_again()

    def acknowledged(self, number: int) -> None:
        """The master has written this batch to its disk."""
        self._unacknowledged.pop(number, None)
        self._last_progress_s = self._monotonic_s()

    @property
    def unwritten_bytes(self) -> int:
        """Size of the batches that the local spool could not take yet."""
        return self._spool.unwritten_bytes

    def write_rest(self) -> bool:
        """Try once more to write them."""
        return self._spool.write_rest()

    @property
    def unacknowledged(self) -> int:
        """Number of batches that the master has not acknowledged."""
        return len(self._unacknowledged)

    def send_again(self) -> None:
        """Send the oldest ones again when nothing was acknowledged for a while."""
        if not self._unacknowledged or self._monotonic_s() - self._last_progress_s < _RESEND_S:
            return
        self._last_progress_s = self._monotonic_s()
        with self.path.open("rb") as file:
            for number, (offset, size) in list(self._unacknowledged.items())[:_MAX_RESENT]:
                file.seek(offset)
                self._send(number, file.read(size))

    def close(self) -> None:
        """No more batches; those not acknowledged stay in the file."""
        self._spool.close()

    def remove(self) -> None:
        """Remove the local spool: the master has everything."""
        self.path.unlink(missing_ok=True)


class BatchReceiver:
    """Where the master writes what workers on other hosts send.

    Args:
        run_dir: the run's folder; a received spool looks like one written here.
        owner_of: the worker whose share a request is, by its plan index.
    """

    def __init__(self, run_dir: Path, owner_of: Callable[[int], int]) -> None:
        self._run_dir, self._owner_of = run_dir, owner_of
        self._spools: dict[int, SpoolWriter] = {}

    def take(self, worker: int, frame: bytes) -> bool:
        """Write a frame; True when it may be acknowledged, False when it is damaged or the disk is full.

        A worker reports its own requests only: whatever else it sends must not take the place of another's records.
        """
        batch = decode_frame(frame)
        if batch is None:
            return False
        foreign = [r for r in batch.records if r.worker != worker or self._owner_of(r.plan_index) != worker]
        if batch.worker != worker or foreign:
            logger.warning("worker %d sent records of requests that are not its own: dropped", worker)
            return False
        if worker not in self._spools:
            self._spools[worker] = SpoolWriter(spool_path(self._run_dir, worker))
        return self._spools[worker].append_frame(frame, keep=False)

    def close(self) -> None:
        """Close the files."""
        for spool in self._spools.values():
            spool.close()
