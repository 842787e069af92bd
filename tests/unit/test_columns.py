"""Columns say what the records say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surgeproof.columns import INTEGERS, MISSING, RecordColumns, TextColumn
from surgeproof.records import StreamRecord

numbers = st.none() | st.integers(-(2**62), 2**62) | st.integers(-3, 300)
texts = st.none() | st.sampled_from(["ok", "error:reset", "ü", ""])


@given(
    columns=st.lists(st.tuples(numbers, numbers, texts), max_size=30),
    cut=st.integers(0, 30),
)
def test_packing_in_parts_loses_nothing(columns: list[tuple[int | None, int | None, str | None]], cut: int) -> None:
    def packed(rows: list[tuple[int | None, int | None, str | None]], first: int) -> RecordColumns:
        held = RecordColumns.of(
            {
                "plan_index": [first + i for i in range(len(rows))],
                "done_at_ns": [row[0] for row in rows],
                "http_status": [row[1] for row in rows],
                "outcome": [row[2] for row in rows],
            }
        )
        return RecordColumns.unpacked(held.packed())

    whole = RecordColumns.joined([packed(columns[:cut], 0), packed(columns[cut:], len(columns[:cut]))])
    assert len(whole) == len(columns)
    for name, place in (("done_at_ns", 0), ("http_status", 1)):
        assert whole.integers(name).tolist() == [MISSING if row[place] is None else row[place] for row in columns]
    assert whole.texts("outcome").values().tolist() == [row[2] for row in columns]
    assert (whole.integers("worker") == MISSING).all()


def test_records_become_columns_by_name() -> None:
    record = StreamRecord(
        plan_index=4, request_class="P0", planned_input_tokens=7, planned_output_tokens=8, intended_at_ns=10**18 + 1,
        outcome="ok", warnings=("a", "b"), done_at_ns=10**18 + 5_000_001,
    )  # fmt: skip
    columns = RecordColumns.of_records([record])
    assert {name: columns.integers(name)[0] for name in ("plan_index", "planned_output_tokens", "sent_at_ns")} == {
        "plan_index": 4,
        "planned_output_tokens": 8,
        "sent_at_ns": MISSING,
    }
    assert columns.between_ms("done_at_ns", "intended_at_ns").tolist() == [5.0]
    assert columns.texts("warnings").values().tolist() == ["a,b"]
    assert len(INTEGERS) == 32


def test_a_text_column_compares_and_counts() -> None:
    column = TextColumn.joined([TextColumn.of(["a", None]), TextColumn.of(["b", "a"])])
    assert (column == "a").tolist() == [True, False, False, True]
    assert (column != "a").tolist() == [False, True, True, False]
    assert (column == "c").tolist() == [False] * 4
    assert column[np.array([0, 3])].counts() == {"a": 2}
