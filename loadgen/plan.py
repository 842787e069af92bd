"""The whole plan of a run, made before the first byte: what is sent when, how long, in which class.

Pure. A plan is one numpy table, so that a million requests take a second and 29 MB; it is hashed,
stored with the run and shared among workers as one global schedule. Each dimension has its own
seed: changing the class mix does not move the arrivals.
"""

import hashlib
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.records import NS_PER_S, REQUEST_CLASSES, RequestPlan
from surgeproof.seeds import Dimension, generator

PLAN_DTYPE = np.dtype(
    [
        ("intended_ns", "<i8"),
        ("input_tokens", "<i4"),
        ("output_tokens", "<i4"),
        ("request_class", "u1"),
        ("prompt_seed", "<u8"),
        ("session", "<i4"),
        ("turn", "<i4"),
        ("think_ns", "<i8"),
        ("cached_tokens", "<i4"),
        ("model", "u1"),
        ("items", "<i4"),
    ]
)
_NONE = -1
"""In `intended_ns`, `session` and `think_ns` of the table: there is none."""
_NEEDS_ANSWERS, _WITH_ANSWERS = 1, 2


class Blocks(NamedTuple):
    """The hash ids of all requests in one array: those of request i are `ids[ends[i-1]:ends[i]]`."""

    ids: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def of(self, index: int) -> tuple[int, ...]:
        """The hash ids of one request."""
        start = int(self.ends[index - 1]) if index else 0
        return tuple(self.ids[start : int(self.ends[index])].tolist())


class Steps(NamedTuple):
    """What the requests of conversations and tasks wait for, and whose answers they tell.

    Attributes:
        after: indexes of the requests that each waits for, those of request i are `after[ends[i-1]:ends[i]]`.
        ends: shape (n,).
        continues: index of the request whose conversation each goes on with, -1 for none; shape (n,).
        flags: whether each needs those answers (1) and whether it tells them (2); shape (n,).
    """

    after: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    continues: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]

    def of(self, index: int) -> tuple[int, ...]:
        """What one request waits for."""
        start = int(self.ends[index - 1]) if index else 0
        return tuple(self.after[start : int(self.ends[index])].tolist())

    def uses(self) -> npt.NDArray[np.int64]:
        """How many requests tell the answer of each; shape (n,)."""
        told = np.repeat(self.flags & _WITH_ANSWERS > 0, np.diff(self.ends, prepend=0))
        users = np.concatenate((self.continues[self.continues >= 0], self.after[told]))
        return np.bincount(users, minlength=len(self.ends))


class Contents(NamedTuple):
    """Rows of datasets as JSON, one after the other, and which of them each request asks; -1 for none."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    def of(self, index: int) -> bytes | None:
        """The content of one request; None for one whose prompt is made."""
        row = int(self.rows[index])
        if row < 0:
            return None
        start = int(self.ends[row - 1]) if row else 0
        return self.data[start : int(self.ends[row])].tobytes()


class Plan:
    """A table of planned requests.

    Args:
        rows: structured array of `PLAN_DTYPE`, in order of intended time.
        blocks: what their prompts share, where they share anything.
        contents: what they ask, where a dataset says it.
        steps: what they wait for, where any does.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.void],
        blocks: Blocks | None = None,
        contents: Contents | None = None,
        steps: Steps | None = None,
    ) -> None:
        self.rows = rows
        self.blocks = blocks
        self.contents = contents
        self.steps = steps
        self._uses = steps.uses() if steps is not None else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> RequestPlan:
        values = self.rows[index].item()
        at_ns, inputs, outputs, request_class, seed, session, turn, think_ns, cached, model, items = values
        hash_ids = self.blocks.of(index) if self.blocks is not None else ()
        name = REQUEST_CLASSES[request_class]
        at_ns, session, think_ns = (None if value == _NONE else value for value in (at_ns, session, think_ns))
        content = self.contents.of(index) if self.contents is not None else None
        plan = RequestPlan(
            index, at_ns, name, inputs, outputs, seed, session, turn, think_ns, cached, hash_ids, model, content, items
        )
        if self.steps is None or self._uses is None:
            return plan
        continues, flags = int(self.steps.continues[index]), int(self.steps.flags[index])
        return msgspec.structs.replace(
            plan,
            after=self.steps.of(index),
            continues=continues if continues >= 0 else None,
            needs_answers=bool(flags & _NEEDS_ANSWERS),
            with_answers=bool(flags & _WITH_ANSWERS),
            answer_uses=int(self._uses[index]),
        )

    @property
    def span_s(self) -> float:
        """Planned time of the last request, seconds."""
        return max(float(self.rows["intended_ns"].max()) / 1e9, 0.0) if len(self.rows) else 0.0

    @property
    def digest(self) -> str:
        """SHA-256 of the table: two runs with the same digest asked for the same."""
        digest = hashlib.sha256(self.rows.tobytes())
        if self.blocks is not None:
            digest.update(self.blocks.ids.tobytes())
            digest.update(self.blocks.ends.tobytes())
        for parts in (self.contents, self.steps):
            for part in parts or ():
                digest.update(part.tobytes())
        return digest.hexdigest()

    def without_contents(self) -> "Plan":
        """The plan as it may be stored: prompts of users are not kept."""
        return Plan(self.rows, self.blocks, None, self.steps)

    def workers_of(self, workers: int) -> npt.NDArray[np.int64]:
        """Which of `workers` sends each request: every `workers`-th, but the turns of a session stay together."""
        sessions = self.rows["session"].astype(np.int64)
        shares: npt.NDArray[np.int64] = np.where(sessions >= 0, sessions, np.arange(len(self.rows))) % workers
        return shares

    def share(self, worker: int, workers: int) -> Iterator[RequestPlan]:
        """The requests of one of `workers` workers that have a time of their own, of the one global schedule."""
        own = self.workers_of(workers) == worker
        return (self[int(index)] for index in np.flatnonzero(own & ~self._waits()))

    def steps_of(self, worker: int, workers: int) -> Iterator[RequestPlan]:
        """The requests of one of `workers` workers that wait for the answers of others."""
        own = self.workers_of(workers) == worker
        return (self[int(index)] for index in np.flatnonzero(own & self._waits()))

    def _waits(self) -> npt.NDArray[np.bool_]:
        if self.steps is None:
            return np.zeros(len(self.rows), dtype=np.bool_)
        return np.diff(self.steps.ends, prepend=0) > 0

    def pack(self) -> bytes:
        """The table as bytes, for a worker on another host, and for the database."""
        buffer = io.BytesIO()
        self._write(buffer)
        return zlib.compress(buffer.getvalue(), 1)

    @classmethod
    def unpack(cls, packed: bytes) -> "Plan":
        """Read what `pack` made."""
        return cls._read(io.BytesIO(zlib.decompress(packed)))

    def save(self, path: Path) -> None:
        """Write the table where workers can load it."""
        with path.open("wb") as file:
            self._write(file)

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read what `save` wrote."""
        with path.open("rb") as file:
            return cls._read(file)

    def _write(self, file: IO[bytes]) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {"rows": self.rows}
        if self.blocks is not None:
            arrays |= {"ids": self.blocks.ids, "ends": self.blocks.ends}
        if self.contents is not None:
            arrays |= {f"content_{name}": part for name, part in self.contents._asdict().items()}
        if self.steps is not None:
            arrays |= {f"step_{name}": part for name, part in self.steps._asdict().items()}
        np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def _read(cls, file: IO[bytes]) -> "Plan":
        with np.load(file, allow_pickle=False) as arrays:
            blocks = Blocks(arrays["ids"], arrays["ends"]) if "ids" in arrays else None
            contents = Contents(*_named(arrays, "content_", Contents._fields)) if "content_data" in arrays else None
            steps = Steps(*_named(arrays, "step_", Steps._fields)) if "step_after" in arrays else None
            return cls(_current(arrays["rows"]), blocks, contents, steps)


def _named(arrays: Any, prefix: str, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    return [arrays[f"{prefix}{name}"] for name in names]


def _current(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The table of an earlier release with the columns that it lacks."""
    if rows.dtype == PLAN_DTYPE:
        return rows
    current = np.zeros(len(rows), dtype=PLAN_DTYPE)
    current["items"] = 1
    for name in rows.dtype.names or ():
        current[name] = rows[name]
    return current


def make_plan(
    intended_ns: npt.NDArray[np.int64] | None,
    lengths: npt.NDArray[np.int64],
    class_weights: dict[str, float],
    seed: int,
    fixed_classes: Sequence[str | None] | None = None,
) -> Plan:
    """Put times, lengths and classes together.

    Args:
        intended_ns: planned offsets, ns, sorted; shape (n,). None for a closed loop.
        lengths: input and output tokens; shape (n, 2).
        class_weights: share of each class, in any scale.
        seed: the run's seed.
        fixed_classes: classes that the trace itself names; None entries are drawn.
    """
    count = len(lengths)
    rows = np.zeros(count, dtype=PLAN_DTYPE)
    rows["intended_ns"] = _NONE if intended_ns is None else intended_ns
    rows["input_tokens"] = lengths[:, 0]
    rows["output_tokens"] = lengths[:, 1]
    rows["request_class"] = _draw_classes(count, class_weights, generator(seed, Dimension.CLASSES))
    if fixed_classes is not None:
        for index, name in enumerate(fixed_classes):
            if name is not None:
                rows["request_class"][index] = REQUEST_CLASSES.index(name)
    rows["prompt_seed"] = generator(seed, Dimension.PROMPTS).integers(0, 2**63, size=count, dtype=np.uint64)
    rows["session"] = rows["think_ns"] = _NONE
    rows["items"] = 1
    return Plan(rows)


def add_models(plan: Plan, weights: Sequence[float], seed: int) -> None:
    """Draw each request's model by its weight; the turns of a session keep to one."""
    rng = generator(seed, Dimension.MODELS)
    shares = np.array(weights, dtype=np.float64)
    drawn = rng.choice(len(shares), size=len(plan), p=shares / shares.sum()).astype(np.uint8)
    sessions = plan.rows["session"]
    firsts = {int(session): index for index, session in reversed(list(enumerate(sessions))) if session >= 0}
    for index, session in enumerate(sessions):
        if session >= 0:
            drawn[index] = drawn[firsts[int(session)]]
    plan.rows["model"] = drawn


def add_sessions(plan: Plan, sessions: Sequence[int | None], think_s: Sequence[float | None]) -> None:
    """Note of which conversation each request is a turn; None for a request on its own."""
    turns: dict[int, int] = {}
    for index, (session, think) in enumerate(zip(sessions, think_s, strict=True)):
        if session is not None:
            row = plan.rows[index]
            row["session"], row["turn"] = session, turns.get(session, 0)
            row["think_ns"] = _NONE if think is None else round(think * NS_PER_S)
            turns[session] = turns.get(session, 0) + 1


def with_blocks(plan: Plan, hash_ids: Sequence[tuple[int, ...]], cached: Sequence[int]) -> Plan:
    """The plan with prompts that share what their hash ids say, and the cache hits to be expected."""
    plan.rows["cached_tokens"] = cached
    ends = np.cumsum([len(ids) for ids in hash_ids], dtype=np.int64)
    flat = np.fromiter((block for ids in hash_ids for block in ids), dtype=np.int64, count=int(ends[-1]))
    return Plan(plan.rows, Blocks(flat, ends), plan.contents, plan.steps)


def with_contents(plan: Plan, contents: Sequence[bytes], rows: npt.NDArray[np.int64]) -> Plan:
    """The plan with what its requests ask.

    Args:
        plan: the plan.
        contents: JSON of the datasets' rows.
        rows: which of them each request asks, -1 for none; shape (n,).
    """
    data = np.frombuffer(b"".join(contents), dtype=np.uint8)
    ends = np.cumsum([len(content) for content in contents], dtype=np.int64)
    return Plan(plan.rows, plan.blocks, Contents(data, ends, rows), plan.steps)


class StepPlan(NamedTuple):
    """How one request of a conversation or task depends on others; see `RequestPlan`."""

    after: tuple[int, ...] = ()
    continues: int = _NONE
    needs_answers: bool = False
    with_answers: bool = False


def with_steps(plan: Plan, steps: Sequence[StepPlan]) -> Plan:
    """The plan with what each of its requests waits for; shape (n,)."""
    flat = [index for step in steps for index in step.after]
    flags = [_NEEDS_ANSWERS * step.needs_answers + _WITH_ANSWERS * step.with_answers for step in steps]
    arrays = Steps(
        np.array(flat, dtype=np.int64),
        np.cumsum([len(step.after) for step in steps], dtype=np.int64),
        np.array([step.continues for step in steps], dtype=np.int64),
        np.array(flags, dtype=np.uint8),
    )
    return Plan(plan.rows, plan.blocks, plan.contents, arrays)


def turns_after_responses(plan: Plan) -> Plan:
    """The plan whose later turns wait for the answer before, whatever it was."""
    last: dict[int, int] = {}
    steps = []
    for index, session in enumerate(plan.rows["session"].tolist()):
        steps.append(StepPlan((last[session],)) if session in last else StepPlan())
        if session >= 0:
            last[session] = index
    return with_steps(plan, steps)


def _draw_classes(count: int, weights: dict[str, float], rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    shares = np.array([weights.get(name, 0.0) for name in REQUEST_CLASSES], dtype=np.float64)
    return rng.choice(len(REQUEST_CLASSES), size=count, p=shares / shares.sum()).astype(np.uint8)
