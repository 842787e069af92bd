"""The records of a run as columns: the input of all statistics. Pure numpy.

A million records as objects take seconds to walk; as columns they take milliseconds. Whole numbers
are int64 with `MISSING` where there is none; texts are numbers into a vocabulary.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.outcomes import Outcome
from surgeproof.records import StreamRecord

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MISSING = int(np.iinfo(np.int64).min)
INTEGERS = (
    "plan_index", "intended_at_ns", "dispatched_at_ns", "connect_at_ns", "connected_at_ns", "sent_at_ns",
    "headers_at_ns", "first_byte_at_ns", "first_event_at_ns", "first_token_at_ns", "first_token_not_before_at_ns",
    "first_answer_at_ns", "last_token_at_ns", "done_at_ns", "tpot_ns", "max_gap_ns", "max_gap_least_ns", "send_ns",
    "input_tokens", "output_tokens", "cached_tokens", "planned_input_tokens", "planned_output_tokens", "http_status",
    "token_events", "retries", "step", "worker", "items", "task", "turn", "planned_cached_tokens",
)  # fmt: skip
TEXTS = ("request_class", "phase", "outcome", "stamp_source", "finish_reason", "warnings", "model")
_KINDS = tuple((f"<i{size}", int(np.iinfo(f"i{size}").min)) for size in (1, 2, 4, 8))


class TextColumn:
    """Texts as numbers into a vocabulary: a million of them compare in a millisecond.

    Args:
        vocabulary: the texts that occur; None where a record has none.
        codes: which of them each record has.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, vocabulary: Sequence[str | None], codes: npt.NDArray[np.uint32]) -> None:
        self._vocabulary, self._codes = list(vocabulary), codes

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, chosen: Any) -> "TextColumn":
        return TextColumn(self._vocabulary, self._codes[chosen])

    def __eq__(self, text: object) -> Mask:  # type: ignore[override]
        """Which records have this text."""
        mask: Mask = np.isin(self._codes, [i for i, word in enumerate(self._vocabulary) if word == text])
        return mask

    def containing(self, part: str) -> Mask:
        """Which records have a text that holds this one."""
        mask: Mask = np.isin(self._codes, [i for i, word in enumerate(self._vocabulary) if word and part in word])
        return mask

    def __ne__(self, text: object) -> Mask:  # type: ignore[override]
        """Which records have another one, or none."""
        mask: Mask = ~(self == text)
        return mask

    def counts(self) -> dict[str | None, int]:
        """How often each text occurs, for those that do."""
        result = np.bincount(self._codes, minlength=len(self._vocabulary))
        return {word: int(n) for word, n in zip(self._vocabulary, result, strict=True) if n}

    def values(self) -> npt.NDArray[np.object_]:
        """The texts themselves."""
        words = np.empty(len(self._vocabulary), dtype=object)
        words[:] = self._vocabulary
        result: npt.NDArray[np.object_] = words[self._codes]
        return result

    def packed(self) -> tuple[list[str | None], bytes]:
        """Vocabulary and codes, little-endian."""
        return self._vocabulary, self._codes.astype("<u4").tobytes()

    @classmethod
    def of(cls, values: Sequence[str | None]) -> "TextColumn":
        """From the texts themselves."""
        vocabulary = list(dict.fromkeys(values))
        number = {word: index for index, word in enumerate(vocabulary)}
        codes = np.fromiter(map(number.__getitem__, values), dtype=np.uint32, count=len(values))
        return cls(vocabulary, codes)

    @classmethod
    def joined(cls, parts: Sequence["TextColumn"]) -> "TextColumn":
        """All parts as one."""
        number: dict[str | None, int] = {}
        codes = []
        for part in parts:
            places = np.array([number.setdefault(word, len(number)) for word in part._vocabulary], dtype=np.uint32)
            codes.append(places[part._codes] if len(places) else part._codes)
        return cls(list(number), np.concatenate(codes))


class RecordColumns:
    """One array for each column, all of one length, in any one order.

    Args:
        integers: int64 arrays by name of `INTEGERS`.
        texts: columns by name of `TEXTS`.
    """

    def __init__(self, integers: Mapping[str, Ints], texts: Mapping[str, TextColumn]) -> None:
        self._integers, self._texts = integers, texts

    def __len__(self) -> int:
        return len(self._integers["plan_index"])

    def integers(self, name: str) -> Ints:
        """A column of whole numbers; `MISSING` where there is none."""
        return self._integers[name]

    def numbers(self, name: str) -> Floats:
        """A column as floats; NaN where there is none. Not for times: epoch nanoseconds do not fit a double."""
        values = self._integers[name]
        return np.where(values == MISSING, np.nan, values)

    def has(self, name: str) -> Mask:
        """Which records have a value in a column."""
        known: Mask = self._integers[name] != MISSING
        return known

    def texts(self, name: str) -> TextColumn:
        """A column of texts."""
        return self._texts[name]

    def between_ms(self, end: str, start: str) -> Floats:
        """Milliseconds between two times of each record; NaN where one is missing."""
        ends, starts = self._integers[end], self._integers[start]
        known = (ends != MISSING) & (starts != MISSING)
        return np.where(known, (ends - np.where(known, starts, ends)) / 1e6, np.nan)

    def chosen(self, rows: Any) -> "RecordColumns":
        """Some of the records, by mask or indexes."""
        return RecordColumns(
            {name: column[rows] for name, column in self._integers.items()},
            {name: column[rows] for name, column in self._texts.items()},
        )

    def moved(self, time_ns: int, indexes: int) -> "RecordColumns":
        """The same records at later times and with higher plan indexes."""
        steps = {name: time_ns for name in INTEGERS if name.endswith("_at_ns")} | {"plan_index": indexes}
        integers = {
            name: np.where(column == MISSING, MISSING, column + steps[name]) if name in steps else column
            for name, column in self._integers.items()
        }
        return RecordColumns(integers, self._texts)

    @classmethod
    def of(cls, values: Mapping[str, Sequence[Any]]) -> "RecordColumns":
        """From lists with None where a value is missing; absent columns are all missing."""
        count = len(next(iter(values.values()))) if values else 0
        nothing = [None] * count
        return cls(
            {name: _integers(values.get(name, nothing)) for name in INTEGERS},
            {name: TextColumn.of(values.get(name, nothing)) for name in TEXTS},
        )

    @classmethod
    def of_records(cls, records: Sequence[StreamRecord]) -> "RecordColumns":
        """From records as they are measured."""
        values: dict[str, Sequence[Any]] = {name: list(map(attrgetter(name), records)) for name in (*INTEGERS, *TEXTS)}
        values["warnings"] = [",".join(names) or None for names in values["warnings"]]
        return cls.of(values)

    @classmethod
    def joined(cls, parts: Iterable["RecordColumns"]) -> "RecordColumns":
        """All parts as one: of several records of one request the first that was sent counts."""
        chunks = list(parts)
        if not chunks:
            return cls.of({"plan_index": ()})
        whole = cls(
            {name: np.concatenate([part.integers(name) for part in chunks]) for name in INTEGERS},
            {name: TextColumn.joined([part.texts(name) for part in chunks]) for name in TEXTS},
        )
        indexes = whole.integers("plan_index")
        if len(indexes) == 0 or np.bincount(indexes).max() == 1:
            return whole
        # Sorted by request, then by whether it was sent, then the first last.
        order = np.lexsort((-np.arange(len(indexes)), whole.texts("outcome") != Outcome.NOT_SENT, indexes))
        last = np.append(np.diff(indexes[order]) != 0, True)
        return whole.chosen(order[last])

    def packed(self) -> bytes:
        """All columns, compressed."""
        integers = {name: _narrowed(column) for name, column in self._integers.items()}
        texts = {name: column.packed() for name, column in self._texts.items()}
        return zstd.compress(msgspec.msgpack.encode((integers, texts)), 1)

    @classmethod
    def unpacked(cls, packed: bytes) -> "RecordColumns":
        """Read what `packed` made; a column that an earlier version did not know is missing."""
        integers, texts = msgspec.msgpack.decode(
            zstd.decompress(packed),
            type=tuple[dict[str, tuple[str, int, bytes]], dict[str, tuple[list[str | None], bytes]]],
        )
        count = len(_widened(*integers["plan_index"]))
        missing = np.full(count, MISSING, dtype=np.int64)
        nothing = TextColumn([None], np.zeros(count, dtype=np.uint32))
        return cls(
            {name: _widened(*integers[name]) if name in integers else missing for name in INTEGERS},
            {
                name: TextColumn(texts[name][0], np.frombuffer(texts[name][1], dtype="<u4"))
                if name in texts
                else nothing
                for name in TEXTS
            },
        )


def _integers(values: Sequence[Any]) -> Ints:
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except TypeError:
        return np.array([MISSING if value is None else value for value in values], dtype=np.int64)


def _narrowed(column: Ints) -> tuple[str, int, bytes]:
    """A column in the smallest type for its range: (type, what to add, bytes); the type's least value is `MISSING`."""
    known = column != MISSING
    values = column if known.all() else column[known]
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    kind, smallest = next((kind, least) for kind, least in _KINDS if high - low < -2 * least - 2)
    if kind == "<i8":
        return kind, 0, column.astype(kind).tobytes()
    base = low - smallest - 1
    return kind, base, np.where(known, column - base, smallest).astype(kind).tobytes()


def _widened(kind: str, base: int, data: bytes) -> Ints:
    """Read what `_narrowed` made."""
    narrow = np.frombuffer(data, dtype=kind)
    if kind == "<i8":
        return narrow
    return np.where(narrow == dict(_KINDS)[kind], MISSING, narrow.astype(np.int64) + base)
