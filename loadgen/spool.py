"""A worker's file of measurements: append-only, readable after a crash.

A spool is a sequence of frames, each a batch of records and health samples. A frame that a crash
cut short is recognised by its length or checksum and ends the reading; everything before it counts.

    frame = length (uint32) crc32 (uint32) payload (MessagePack of `Batch`), little-endian
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from surgeproof.records import HealthSample, StreamRecord, WorkerFacts

_HEAD = struct.Struct("<II")
SUFFIX = ".spool"


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
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def is_whole(frame: bytes) -> bool:
    """Whether bytes are exactly one frame, undamaged."""
    if len(frame) < _HEAD.size:
        return False
    length, checksum = _HEAD.unpack_from(frame)
    return bool(len(frame) == _HEAD.size + length and zlib.crc32(frame[_HEAD.size :]) == checksum)


class SpoolWriter:
    """Appends frames; each is handed to the kernel at once, so a killed process loses none."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def append(self, batch: Batch) -> None:
        """Write one batch."""
        self.append_frame(encode_frame(batch))

    def append_frame(self, frame: bytes) -> None:
        """Write one frame that was made elsewhere."""
        self._file.write(frame)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SpoolReader:
    """Reads the whole frames of a growing file; call `batches` again for what came since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def batches(self) -> Iterator[Batch]:
        """The batches that are complete now and were not returned before."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while True:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                length, checksum = _HEAD.unpack(head)
                payload = file.read(length)
                if len(payload) < length or zlib.crc32(payload) != checksum:
                    return
                self._offset += _HEAD.size + length
                yield _decoder.decode(payload)


def spool_path(run_dir: Path, worker: int | None) -> Path:
    """Where a worker spools; None is the master's own file of notes."""
    return run_dir / (f"master{SUFFIX}" if worker is None else f"worker-{worker:03d}{SUFFIX}")
