"""From records to what an engine had to do: a load whose numbers are known by hand."""

import pytest

from surgeproof.columns import RecordColumns
from surgeproof.gpu.run_load import load_windows

S = 1_000_000_000


def test_steps_batch_and_context_follow_from_the_records() -> None:
    """Two sequences of 100 prompt tokens decode side by side, 101 tokens each in 2 s: 50 steps a second, batch 2."""
    columns = RecordColumns.of(
        {
            "plan_index": [0, 1],
            "intended_at_ns": [0, 0],
            "sent_at_ns": [0, 0],
            "first_token_at_ns": [1 * S, 1 * S],
            "last_token_at_ns": [3 * S, 3 * S],
            "done_at_ns": [3 * S, 3 * S],
            "input_tokens": [100, 100],
            "cached_tokens": [0, 64],
            "output_tokens": [101, 101],
            "planned_input_tokens": [1, 1],
            "planned_output_tokens": [1, 1],
            "outcome": ["ok", "ok"],
        }
    )
    prefill, *decode = load_windows(columns, 1.0)
    assert (prefill.steps, prefill.busy_share) == (0.0, 1.0)
    assert [w.prompts for w in (prefill, *decode)] == [0, 2, 0]
    assert decode[0].prompt_tokens == 136
    for window in decode:
        assert window.steps == pytest.approx(50)
        assert window.batch == pytest.approx(2)
        assert window.context == pytest.approx(150.5)


def test_what_was_cut_off_counts_as_far_as_it_came() -> None:
    """41 events in 2 s before the time ran out, of 1,000 planned: 20 steps a second all the same."""
    columns = RecordColumns.of(
        {
            "plan_index": [0],
            "intended_at_ns": [0],
            "sent_at_ns": [0],
            "first_token_at_ns": [0],
            "last_token_at_ns": [2 * S],
            "done_at_ns": [3 * S],
            "token_events": [41],
            "planned_input_tokens": [100],
            "planned_output_tokens": [1000],
            "outcome": ["error:timeout"],
        }
    )
    assert [w.steps for w in load_windows(columns, 1.0)] == [pytest.approx(20), pytest.approx(20)]


def test_time_without_requests_is_not_busy() -> None:
    columns = RecordColumns.of(
        {
            "plan_index": [0, 1],
            "intended_at_ns": [0, 6 * S],
            "sent_at_ns": [0, 6 * S],
            "first_token_at_ns": [S // 2, 6 * S + S // 2],
            "last_token_at_ns": [1 * S, 7 * S],
            "done_at_ns": [1 * S, 7 * S],
            "output_tokens": [11, 11],
            "outcome": ["ok", "ok"],
            "planned_input_tokens": [1, 1],
            "planned_output_tokens": [1, 1],
        }
    )
    windows = load_windows(columns, 1.0)
    assert [w.busy_share for w in windows] == pytest.approx([1, 0, 0, 0, 0, 0, 1])
    assert load_windows(RecordColumns.of({"plan_index": []}), 1.0) == []


@pytest.mark.parametrize(("last", "lengths"), [(3.4, [1.0, 1.0, 1.4]), (3.6, [1.0, 1.0, 1.0, 0.6]), (0.3, [0.3])])
def test_the_last_window_ends_with_the_last_token(last: float, lengths: list[float]) -> None:
    """One request in flight all along: a window that lasted longer than the run would halve its shares."""
    columns = RecordColumns.of(
        {
            "plan_index": [0], "intended_at_ns": [0], "sent_at_ns": [0], "first_token_at_ns": [S // 10],
            "last_token_at_ns": [round(last * S)], "done_at_ns": [round(last * S)], "input_tokens": [10],
            "cached_tokens": [0], "output_tokens": [11], "planned_input_tokens": [10], "planned_output_tokens": [11],
            "outcome": ["ok"],
        }
    )  # fmt: skip
    windows = load_windows(columns, 1.0)
    assert [window.length_s for window in windows] == pytest.approx(lengths)
    assert [window.busy_share for window in windows] == pytest.approx([1.0] * len(lengths))
    assert sum(window.prompts for window in windows) == 1
