"""Gaps between arrivals of output, as histograms in time: kept for every run, however long. Pure.

Buckets are 1 % wide, so a quantile is off by half a per cent at most. They are counted by class and
by ten seconds of planned time, so that a verdict knows how alike neighbours are.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from surgeproof.records import Phase, StreamRecord
from surgeproof.results import Distribution

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK_NS = 10_000_000_000
_RATIO = 1.01
_BUCKETS = 2300  # up to two hours


class GapTally:
    """Counts gaps as records come in.

    Args:
        start_at_ns: time of block 0, where histograms counted from it are to be included; else the
            first record's planned time.
    """

    def __init__(self, start_at_ns: int | None = None) -> None:
        self._start_at_ns = start_at_ns
        self._counts: dict[tuple[str, int], Counts] = {}

    def add(self, records: Sequence[StreamRecord]) -> None:
        """Count the gaps of answered requests that are judged."""
        parts: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        for record in records:
            if record.arrivals is None or not record.ok or record.phase != Phase.MAIN:
                continue
            if self._start_at_ns is None:
                self._start_at_ns = record.intended_at_ns
            block = (record.intended_at_ns - self._start_at_ns) // BLOCK_NS
            # The first step is the time from the send to the first arrival: it is no gap.
            parts[record.request_class, block].append(record.arrivals[4:])
        for key, packed in parts.items():
            steps = np.frombuffer(b"".join(packed), dtype="<u4")
            # Events that came in one read are one arrival: there is no wait between them to count.
            counts = np.bincount(bucket_of(steps[steps > 0]), minlength=_BUCKETS)
            self._counts[key] = self._counts.get(key, np.zeros(_BUCKETS, dtype=np.int64)) + counts

    def include(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Add histograms that were stored before."""
        for key, counts in unpacked(rows).items():
            self._counts[key] = self._counts.get(key, np.zeros(_BUCKETS, dtype=np.int64)) + counts

    def packed(self) -> Iterator[tuple[str, int, bytes]]:
        """Class, block and histogram, ready to be stored."""
        for (name, block), counts in sorted(self._counts.items()):
            used = np.flatnonzero(counts)
            table = np.column_stack((used, counts[used])).astype("<u4")
            yield name, block, zlib.compress(table.tobytes(), 1)


class Gaps:
    """The stored histograms of a run.

    Args:
        rows: what `GapTally.packed` gave.
    """

    def __init__(self, rows: Iterable[tuple[str, int, bytes]] = ()) -> None:
        self._counts = unpacked(rows)

    @classmethod
    def joined(cls, parts: Sequence["Gaps"]) -> "Gaps":
        """Histograms of several runs, one after the other."""
        whole, first = cls(), 0
        for part in parts:
            whole._counts |= {(name, block + first): counts for (name, block), counts in part._counts.items()}
            first += max((block for _, block in part._counts), default=-1) + 1
        return whole

    def by_block(self, request_class: str) -> Counts:
        """Counts of one class or of `all`; shape (blocks, buckets), blocks without a gap left out."""
        blocks: dict[int, Counts] = {}
        for (name, block), counts in self._counts.items():
            if request_class in ("all", name):
                blocks[block] = blocks.get(block, np.zeros(_BUCKETS, dtype=np.int64)) + counts
        results = [blocks[block] for block in sorted(blocks)]
        return np.array(results) if results else np.zeros((0, _BUCKETS), dtype=np.int64)

    def distribution_ms(self, request_class: str, quantiles: Sequence[float]) -> Distribution:
        """Number, mean and quantiles of a class's gaps, ms."""
        counts = self.by_block(request_class).sum(axis=0)
        total = int(counts.sum())
        if total == 0:
            return Distribution(0)
        values = values_ms()
        below = np.cumsum(counts)
        ranks = [max(1, int(np.ceil(q * total - 1e-9))) for q in quantiles]
        values_at = {q: float(values[np.searchsorted(below, rank)]) for q, rank in zip(quantiles, ranks, strict=True)}
        return Distribution.of_quantiles(total, float((counts * values).sum() / total), values_at)


def unpacked(rows: Iterable[tuple[str, int, bytes]]) -> dict[tuple[str, int], Counts]:
    """Histograms by class and block."""
    results = {}
    for name, block, packed in rows:
        table = np.frombuffer(zlib.decompress(packed), dtype="<u4").reshape(-1, 2)
        counts = np.zeros(_BUCKETS, dtype=np.int64)
        counts[table[:, 0]] = table[:, 1]
        results[name, block] = counts
    return results


def bucket_of(steps_us: npt.NDArray[np.uint32]) -> Counts:
    """Bucket of each gap in microseconds."""
    logs = np.log(np.maximum(steps_us, 1)) / np.log(_RATIO)
    buckets: Counts = np.minimum(np.round(logs), _BUCKETS - 1).astype(np.int64)
    return buckets


def values_ms() -> Floats:
    """The gap that each bucket stands for, ms."""
    values: Floats = np.power(_RATIO, np.arange(_BUCKETS, dtype=np.float64)) / 1e3
    return values
