"""The records of a run as columns, and the latencies that follow from them. Pure numpy."""

import copy
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.audit_results import ClientError
from surgeproof.columns import MISSING, TEXTS, RecordColumns
from surgeproof.outcomes import NOT_JUDGED, Outcome
from surgeproof.records import GpuSample, Phase
from surgeproof.send_lag import cap_wait_ms, own_lag_ms
from surgeproof.slo.fluidity import fluidity_of
from surgeproof.slo.gaps import Gaps
from surgeproof.slo.rules import Selector

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TIMES = (
    "intended_at_ns", "dispatched_at_ns", "connect_at_ns", "connected_at_ns", "sent_at_ns",
    "headers_at_ns", "first_byte_at_ns", "first_event_at_ns", "first_token_at_ns",
    "first_answer_at_ns", "last_token_at_ns", "done_at_ns",
)  # fmt: skip
NUMBERS = (
    "tpot_ns", "max_gap_ns", "max_gap_least_ns", "input_tokens", "output_tokens", "cached_tokens",
    "planned_input_tokens", "planned_output_tokens", "http_status", "token_events", "retries", "step", "worker",
    "items", "task", "turn", "planned_cached_tokens",
)  # fmt: skip
_ENDS = {
    "ttft": "first_token_at_ns", "first_answer": "first_answer_at_ns", "last_token": "last_token_at_ns",
    "e2e": "done_at_ns", "task": "done_at_ns",
}  # fmt: skip
_SHED_STATUS = (429, 503)


class Measured:
    """Records as columns; missing numbers are NaN, times are seconds since the run's first one.

    Args:
        columns: the run's records.
        gaps: histograms of the gaps between their arrivals.
        arrivals: packed arrival times by plan index, where a rule asks for them.
        gpu: samples of GPUs beside the run.
        closed_loop: whether users waited for their answer before they asked again.
        runs: number of each record's run, from 0, where several runs are laid end to end.
        cap: requests in flight at most, over all workers; None without a cap, and in a closed loop.
        left_out: share of the load's requests that are due in busier minutes than any that was played.
        own_lag_ms: how late the client was for each record, where its times do not show that.
    """

    def __init__(
        self,
        columns: RecordColumns,
        gaps: Gaps | None = None,
        arrivals: Mapping[int, bytes | None] | None = None,
        gpu: Sequence[GpuSample] = (),
        *,
        closed_loop: bool = False,
        runs: npt.NDArray[np.int64] | None = None,
        cap: int | None = None,
        left_out: float = 0.0,
        own_lag_ms: Floats | None = None,
    ) -> None:
        self.left_out, self._cap = left_out, cap
        self._runs = runs
        self.closed_loop = closed_loop
        self._gpu = gpu
        self._arrivals = arrivals or {}
        self.gaps = gaps if gaps is not None else Gaps()
        self.columns = columns
        self._error = ClientError()
        self._at_best = False
        self._latencies: dict[tuple[str, str], Floats] = {}
        self._lag = own_lag_ms
        self.texts = {name: columns.texts(name) for name in TEXTS}
        self.count = len(columns)
        # Epoch nanoseconds do not fit a double exactly: differences are taken as integers.
        intended = columns.integers("intended_at_ns")
        self._origin_ns = int(intended.min()) if self.count else 0
        self.times_s = {name: _seconds(columns.integers(name), self._origin_ns) for name in TIMES}
        self.numbers = {name: columns.numbers(name) for name in NUMBERS}
        outcome = self.texts["outcome"]
        self.ok: Mask = outcome == Outcome.OK
        self.sent: Mask = np.logical_and.reduce([outcome != name for name in NOT_JUDGED])
        self.main: Mask = self.texts["phase"] == Phase.MAIN
        self.judged: Mask = self.main & self.sent
        self.shed: Mask = np.isin(self.numbers["http_status"], _SHED_STATUS)

    @classmethod
    def together(cls, runs: Sequence["Measured"]) -> "Measured":
        """Several runs of one load as one long run: the judged requests of each begin where those before it ended."""
        columns, gpu, numbers = [], [], []
        arrivals: dict[int, bytes | None] = {}
        next_ns, first_index = None, 0
        for number, run in enumerate(runs):
            start_ns, end_ns = run._judged_span_ns()
            move_ns = 0 if next_ns is None else next_ns - start_ns
            indexes = run.columns.integers("plan_index")
            columns.append(run.columns.moved(move_ns, first_index))
            arrivals |= {index + first_index: packed for index, packed in run._arrivals.items()}
            gpu += [msgspec.structs.replace(sample, at_ns=sample.at_ns + move_ns) for sample in run._gpu]
            numbers.append(np.full(run.count, number))
            first_index += int(indexes.max(initial=-1)) + 1
            next_ns = end_ns + move_ns
        return cls(
            RecordColumns.joined(columns),
            Gaps.joined([run.gaps for run in runs]),
            arrivals,
            gpu,
            closed_loop=any(run.closed_loop for run in runs),
            runs=np.concatenate(numbers),
            cap=runs[0]._cap,
            left_out=min(run.left_out for run in runs),
        )

    def _judged_span_ns(self) -> tuple[int, int]:
        """First planned time of the judged requests, and when the next one would have been due."""
        planned = self.columns.integers("intended_at_ns")[self.judged]
        if len(planned) == 0:
            return self._origin_ns, self._origin_ns
        start, end = int(planned.min()), int(planned.max())
        return start, end + (end - start) // max(1, len(planned) - 1)

    def with_client_error(self, error: ClientError) -> "Measured":
        """The same records, with latencies that can be off by so much beyond what each record shows."""
        other = copy.copy(self)
        other._error, other._latencies = error, {}
        return other

    def at_best(self) -> "Measured":
        """The same records, with the least latencies that they can have had."""
        other = copy.copy(self)
        other._at_best, other._latencies = True, {}
        return other

    @property
    def client_error(self) -> ClientError:
        """By how much latencies can be off beyond what each record shows."""
        return self._error

    def run_numbers(self) -> npt.NDArray[np.int64]:
        """The run of each record, from 0."""
        return self._runs if self._runs is not None else np.zeros(self.count, dtype=np.int64)

    @property
    def run_count(self) -> int:
        """How many runs are laid end to end."""
        return 1 if self._runs is None else int(self._runs.max(initial=-1)) + 1

    def by_run(self) -> list[Mask]:
        """The records of each run."""
        if self._runs is None:
            return [np.ones(self.count, dtype=np.bool_)]
        return [self._runs == number for number in range(self.run_count)]

    def steps(self) -> list[int]:
        """Numbers of users of a ladder's steps, ascending; empty for an open loop."""
        steps = self.numbers["step"]
        return [int(step) for step in np.unique(steps[self.judged]) if step > 0]

    def of_class(self, name: str) -> Mask:
        """Records of one class, or of all."""
        if name == "all":
            return np.ones(self.count, dtype=np.bool_)
        return self.texts["request_class"] == name

    def selected(self, selectors: Iterable[Selector]) -> Mask:
        """Records that match all selectors."""
        mask = np.ones(self.count, dtype=np.bool_)
        for selector in selectors:
            if selector.column in TEXTS:
                mask &= self.texts[selector.column] == selector.value
                continue
            values = self.columns.integers(selector.column)
            if selector.value is not None:
                mask &= values == selector.value
            if selector.low is not None:
                mask &= values >= selector.low
            if selector.high is not None:
                mask &= values < selector.high
        return mask

    def latency_ms(self, metric: str, view: str = "response") -> Floats:
        """A latency of every record, ms; NaN where it has none.

        Args:
            metric: one of `rules.LATENCIES`.
            view: `response` counts from the intended time, `service` from the send, as both do in a closed loop.
        """
        if self.closed_loop:
            # Users ask when they are ready: there is no schedule to be behind.
            view = "service"
        if (metric, view) not in self._latencies:
            measured = self._latency_ms(metric, view)
            self._latencies[metric, view] = self._ends_ms(metric, view, measured)[0] if self._at_best else measured
        return self._latencies[metric, view]

    def _latency_ms(self, metric: str, view: str) -> Floats:
        if metric == "tpot":
            return self.numbers["tpot_ns"] / 1e6
        if metric == "max_gap":
            # All in one read: the gaps inside it were not seen.
            gaps = self.numbers["max_gap_ns"] / 1e6
            return np.where(gaps > 0, gaps, np.nan)
        start = "intended_at_ns" if view == "response" else "sent_at_ns"
        latency = self.columns.between_ms(_ENDS[metric], start)
        if metric == "last_token":
            return np.where(np.isnan(latency), self.columns.between_ms("done_at_ns", start), latency)
        return latency

    def latency_ends_ms(self, metric: str, view: str = "response") -> tuple[Floats, Floats]:
        """The least and the most that a latency of every request can have been, whatever the client did, ms.

        A request that the client sent late would have waited as much less; a first token that was read with later ones
        may have come before them, and so may the events between which a gap was seen.
        """
        value = self.latency_ms(metric, view)
        return (value, value) if self._at_best else self._ends_ms(metric, view, value)

    def _ends_ms(self, metric: str, view: str, value: Floats) -> tuple[Floats, Floats]:
        error = self._error
        early = np.maximum(0.0, np.nan_to_num(
            self.columns.between_ms("first_token_at_ns", "first_token_not_before_at_ns")
        ))  # fmt: skip
        if metric == "tpot":
            later = np.maximum(1, np.nan_to_num(self._streamed_tokens(), nan=2.0) - 1)
            # Through a proxy that buffers, the first token may have left the server as early as the request came.
            early = np.where(self.buffered, self.columns.between_ms("first_token_at_ns", "sent_at_ns"), early)
            off = (error.send_ms + error.clock_ms) / later
            return np.maximum(0.0, value - off - error.read_ms / later), value + early / later + off
        if metric == "max_gap":
            least = self.numbers["max_gap_least_ns"] / 1e6
            least = np.where(np.isnan(least), value, np.fmin(least, value))
            around = error.send_ms + error.clock_ms
            return np.maximum(0.0, least - error.read_ms - around), value + around
        # Requests that left late made others wait, or left them more of the server, for as long as they were late.
        own = self.own_lag_ms() if view == "response" else np.zeros(self.count)
        least = value - np.maximum(own, error.send_ms)
        if metric == "ttft":
            least = least - early
        elif metric == "first_answer":
            same = self.columns.integers("first_answer_at_ns") == self.columns.integers("first_token_at_ns")
            least = least - np.where(same, early, 0.0)
        return np.maximum(0.0, least - error.read_ms - error.clock_ms), value + error.send_ms + error.clock_ms

    @property
    def buffered(self) -> Mask:
        """Answers whose tokens a proxy delivered many at a time, so that times per token are not what they seem."""
        return self.texts["warnings"].containing("buffered_in_parts")

    def own_lag_ms(self) -> Floats:
        """How late the client sent each request, ms; 0 in a closed loop, which has no schedule."""
        if self.closed_loop:
            return np.zeros(self.count)
        if self._lag is None:
            workers = max(1, len(np.unique(self.columns.integers("worker"))))
            waits = (
                np.zeros(self.count) if self._cap is None else cap_wait_ms(self.columns, max(1, self._cap // workers))
            )
            self._lag = np.maximum(0.0, np.nan_to_num(own_lag_ms(self.columns, waits)))
        return self._lag

    def unknown(self, metric: str) -> Mask:
        """Answered requests whose latency was not measured; those that cannot have one are not included.

        One token has no time per token, one event no gap, a streamed answer without text no first text.
        """
        unseen = self.ok & np.isnan(self.latency_ms(metric))
        events, tokens = self.numbers["token_events"], self.numbers["output_tokens"]
        if metric == "first_answer":
            unseen &= np.isnan(self.latency_ms("ttft"))
        elif metric == "max_gap":
            unseen &= events != 1
        elif metric == "tpot":
            unseen &= ~((tokens <= 1) | (np.isnan(tokens) & (events == 1)))
        return unseen

    def fluidity(self, first_ms: float, next_ms: float) -> Floats:
        """The fluidity index of every record; NaN where its arrivals are not known."""
        lag_ms = self.columns.between_ms("sent_at_ns", "intended_at_ns")
        places = self.columns.integers("plan_index")
        return fluidity_of(places, lag_ms, self._streamed_tokens(), self._arrivals, first_ms, next_ms)

    def _streamed_tokens(self) -> Floats:
        """Tokens that came as a stream, by the time per token, which leaves out hidden ones; NaN where unknown."""
        spans_ns = self.columns.between_ms("last_token_at_ns", "first_token_at_ns") * 1e6
        with np.errstate(divide="ignore", invalid="ignore"):
            tokens = 1 + np.round(spans_ns / self.numbers["tpot_ns"])
        return np.where(np.isfinite(tokens), tokens, np.nan)

    def gpu_values(self, field: str) -> tuple[Floats, Floats]:
        """A field of all GPU samples that have it and their times, s since the run's first planned time."""
        pairs = [(getattr(sample, field), sample.at_ns - self._origin_ns) for sample in self._gpu]
        known = [(value, at) for value, at in pairs if value is not None]
        values, times = zip(*known, strict=True) if known else ((), ())
        return np.array(values, dtype=np.float64), np.array(times, dtype=np.float64) / 1e9

    def gpu_count(self) -> int:
        """How many GPUs were sampled."""
        return len({sample.gpu for sample in self._gpu})

    def gpu_coverage(self, field: str, start_s: float, end_s: float) -> float:
        """Share of 20 equal parts of a time that hold a sample of a field, of the GPU that has the fewest."""
        parts: dict[str, set[int]] = {sample.gpu: set() for sample in self._gpu}
        for sample in self._gpu:
            place = ((sample.at_ns - self._origin_ns) / 1e9 - start_s) / (end_s - start_s) * 20
            if getattr(sample, field) is not None and 0 <= place < 20:
                parts[sample.gpu].add(int(place))
        return min((len(covered) for covered in parts.values()), default=0) / 20

    def span_s(self, mask: Mask) -> tuple[float, float]:
        """First planned time and last end of some records, s."""
        if not mask.any():
            return 0.0, 0.0
        ends = self.times_s["done_at_ns"][mask]
        start = float(np.nanmin(self.times_s["intended_at_ns"][mask]))
        end = float(np.nanmax(ends)) if not np.isnan(ends).all() else start
        return start, end


def _seconds(values: npt.NDArray[np.int64], origin_ns: int) -> Floats:
    known = values != MISSING
    return np.where(known, (np.where(known, values, origin_ns) - origin_ns) / 1e9, np.nan)
