"""A worker's file of measurements: append-only, readable after a crash.

A spool is a sequence of frames, each a batch of records and health samples. What is not a whole frame is
recognised by its magic, length or checksum: at the end it may still be written, before other frames it is damage,
which costs itself only.

    frame = magic (4 bytes) length (uint32) crc32 (uint32) payload (MessagePack of `Batch`), little-endian
"""

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from surgeproof.records import HealthSample, StreamRecord, WorkerFacts

logger = logging.getLogger(__name__)

_MAGIC = b"\xf5SP\x02"
_HEAD = struct.Struct("<4sII")
SUFFIX = ".spool"
_PORTION_BYTES = 8 << 20


class Batch(msgspec.Struct, omit_defaults=True):
    """One frame's content: a worker's records and health, or the master's notes on workers (`worker` None).

    `ended` marks a worker's orderly end.
    """

    worker: int | None
    records: list[StreamRecord] = []
    health: list[HealthSample] = []
    ended: bool = False
    facts: list[WorkerFacts] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def encode_frame(batch: Batch) -> bytes:
    """One frame, ready to be appended or sent."""
    payload = _encoder.encode(batch)
    return _HEAD.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload


def decode_frame(frame: bytes) -> Batch | None:
    """The batch of exactly one frame; None where it is damaged, or of another version."""
    return _decoded_frame(frame, 0, len(frame)) if _frame_end(frame, 0) == len(frame) else None


def _decoded_frame(data: bytes, start: int, end: int) -> Batch | None:
    """The batch of the whole frame between two places; None where it is of another version."""
    try:
        return _decoder.decode(memoryview(data)[start + _HEAD.size : end])
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def _frame_end(data: bytes, start: int) -> int | None:
    """Where the whole frame that begins at `start` ends; None if there is none."""
    if len(data) < start + _HEAD.size:
        return None
    magic, length, checksum = _HEAD.unpack_from(data, start)
    begin = start + _HEAD.size
    end: int = begin + length
    if magic != _MAGIC or end > len(data) or zlib.crc32(memoryview(data)[begin:end]) != checksum:
        return None
    return end


class SpoolWriter:
    """Appends frames; each is handed to the kernel at once, so a killed process loses none.

    Frames that cannot be written, because the disk is full, are kept and tried again with the next one. The file is
    locked while it is open: `is_being_written` tells a run whose load goes on from one that was killed.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)
        self._unwritten: list[bytes] = []
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def unwritten_bytes(self) -> int:
        """Size of the frames that could not be written yet."""
        return sum(map(len, self._unwritten))

    def append(self, batch: Batch) -> None:
        """Write one batch."""
        self.append_frame(encode_frame(batch))

    def append_frame(self, frame: bytes, *, keep: bool = True) -> bool:
        """Write one frame that was made elsewhere; whether it, and all before it, are in the file.

        Args:
            frame: the frame.
            keep: hold it in memory where it cannot be written; off where whoever sent it does so.
        """
        if not keep:
            return self._write(frame)
        self._unwritten.append(frame)
        return self.write_rest()

    def write_rest(self) -> bool:
        """Try once more to write what could not be written; whether all is in the file now."""
        while self._unwritten:
            if not self._write(self._unwritten[0]):
                return False
            del self._unwritten[0]
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, frame: bytes) -> bool:
        """Write a frame wholly, or nothing of it."""
        try:
            if self._file.write(frame) == len(frame):
                self._size += len(frame)
                return True
        except OSError as exc:
            logger.warning("cannot write %s: %s; trying again", self._file.name, exc.strerror)
        with suppress(OSError):
            # A part of a frame would have to be skipped as damage.
            self._file.truncate(self._size)
        return False


class SpoolReader:
    """Reads the whole frames of a growing file, in portions that are confirmed once they are stored.

    Attributes:
        damaged_bytes: bytes between whole frames that are no frame.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._next_offset = 0
        self._next_damaged = 0
        self.damaged_bytes = 0

    def read(self) -> list[Batch]:
        """The next batches, some megabytes of them; the same ones again until they are confirmed."""
        with self._path.open("rb") as file:
            size = _PORTION_BYTES
            while True:
                file.seek(self._offset)
                data = file.read(size)
                batches = list(self._decoded(data))
                if batches or len(data) < size:
                    return batches
                # One frame, or what is left of one, is longer than a portion.
                size *= 4

    def confirm(self) -> None:
        """What `read` returned last is stored: go on after it."""
        self._offset, self.damaged_bytes = self._next_offset, self.damaged_bytes + self._next_damaged
        self._next_damaged = 0

    def _decoded(self, data: bytes) -> Iterator[Batch]:
        at = damaged = 0
        self._next_offset, self._next_damaged = self._offset, 0
        while True:
            start = at
            while (end := _frame_end(data, start)) is None:
                start = data.find(_MAGIC, start + 1)
                if start < 0:
                    return
            damaged += start - at
            batch = _decoded_frame(data, start, end)
            if batch is None:
                damaged += end - start
            at = end
            self._next_offset, self._next_damaged = self._offset + at, damaged
            if batch is not None:
                yield batch


def is_being_written(path: Path) -> bool:
    """Whether the process that writes a spool still lives."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # A file system without locks cannot tell.
            return False
    return False


def spool_path(run_dir: Path, worker: int | None) -> Path:
    """Where a worker spools; None is the master's own file of notes."""
    return run_dir / (f"master{SUFFIX}" if worker is None else f"worker-{worker:03d}{SUFFIX}")
