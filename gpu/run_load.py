"""From a run's records to what its engine had to do, window by window. Pure.

A prompt is computed until its first token; then its sequence takes part in every decode step until its
last. How long a step takes is the median time per token of the sequences in flight, so the number of
steps is time over that; the batch is how many sequences decode at once.
"""

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from surgeproof.columns import RecordColumns
from surgeproof.outcomes import Outcome

Floats = npt.NDArray[np.float64]


class Load(NamedTuple):
    """One window.

    Attributes:
        start_s: since the run's first planned time.
        length_s: of the window.
        busy_share: share of it in which any request was in flight: the GPU cannot have been busy longer.
        steps: decode steps in it.
        batch: sequences a step, on average.
        context: tokens in the cache of each, on average.
        prompts: prompts whose first token came in it.
        prompt_tokens: their tokens, those from a prefix cache taken off.
    """

    start_s: float
    length_s: float
    busy_share: float
    steps: float
    batch: float
    context: float
    prompts: int
    prompt_tokens: float


def load_windows(columns: RecordColumns, window_s: float) -> list[Load]:
    """The load of equal windows, those without any request in flight included.

    The last one ends with the last token, and is joined to the one before it where it would be short. Requests that
    failed after their first token count as far as they came: the engine worked for them too.
    """
    streamed = columns.chosen(columns.has("first_token_at_ns") & columns.has("last_token_at_ns"))
    if len(streamed) == 0:
        return []
    origin = int(columns.integers("intended_at_ns").min())

    def seconds(name: str) -> Floats:
        times: Floats = (streamed.integers(name) - origin) / 1e9
        return times

    sent, first, last = (seconds(name) for name in ("sent_at_ns", "first_token_at_ns", "last_token_at_ns"))
    inputs = np.nan_to_num(streamed.numbers("input_tokens"), nan=0.0)
    inputs = np.where(inputs > 0, inputs, streamed.numbers("planned_input_tokens"))
    outputs = np.nan_to_num(streamed.numbers("output_tokens"), nan=0.0)
    events = np.nan_to_num(streamed.numbers("token_events"), nan=0.0)
    answered = streamed.texts("outcome") == Outcome.OK
    unknown = np.where(answered, streamed.numbers("planned_output_tokens"), events)
    outputs = np.maximum(np.where(outputs > 0, outputs, unknown), 1.0)
    computed = np.maximum(inputs - np.nan_to_num(streamed.numbers("cached_tokens"), nan=0.0), 1.0)
    rate = (outputs - 1) / np.maximum(last - first, 1e-6)
    results = []
    count = max(1, round(float(last.max()) / window_s))
    edges = [*(window_s * number for number in range(count)), float(last.max())]
    for start, end in itertools.pairwise(edges):
        overlap = np.maximum(np.minimum(last, end) - np.maximum(first, start), 0.0)
        tokens = overlap * rate
        decoding = overlap > 0
        seconds_decoding = _covered_s(first[decoding], last[decoding], start, end)
        step_s = float(np.median(1 / np.maximum(rate[decoding], 1e-6))) if decoding.any() else 0.0
        steps = seconds_decoding / step_s if step_s > 0 else 0.0
        # Half of an answer stands in the cache on average.
        context = float(((inputs + outputs / 2) * tokens).sum() / tokens.sum()) if tokens.sum() > 0 else 0.0
        # A first token is also the last one where an answer has no more.
        came = (first >= start) & ((first < end) | (end == edges[-1]))
        results.append(
            Load(
                start, end - start, _covered_s(sent, last, start, end) / (end - start), steps,
                float(tokens.sum()) / steps if steps else 0.0, context, int(came.sum()), float(computed[came].sum()),
            )
        )  # fmt: skip
    return results


def _covered_s(starts: Floats, ends: Floats, low: float, high: float) -> float:
    """Length of the union of intervals within a window."""
    starts, ends = np.maximum(starts, low), np.minimum(ends, high)
    used = ends > starts
    order = np.argsort(starts[used])
    starts, ends = starts[used][order], ends[used][order]
    if len(starts) == 0:
        return 0.0
    reached = np.maximum.accumulate(ends)
    gaps = np.maximum(starts[1:] - reached[:-1], 0.0)
    return float(reached[-1] - starts[0] - gaps.sum())
