"""Datasets as they lie on disk: what a row becomes, in which order, and what is told of rows that cannot be sent."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from surgeproof.errors import TraceError
from surgeproof.traces.dataset import Prompts, choose_prompts, cut_text

SECRET = "the patient's name is Unlucky"


def read(path: Path, count: int = 100, **options: Any) -> Prompts:
    """A word is a token."""
    settings: dict[str, Any] = {
        "column": None, "shuffle_seed": None, "count_tokens": lambda text: len(text.split()), "skip_invalid": False,
    }  # fmt: skip
    return choose_prompts(path, count, **settings | options)


def lines(tmp_path: Path, *rows: Any, name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


CHAT = {"model": "gpt-x", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 7, "stream": False}


def test_a_body_is_sent_as_it_was_but_for_what_the_run_decides(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    (row,) = read(lines(tmp_path, CHAT | {"tools": tools, "top_p": 0.5, "user": "u-17"})).rows
    assert row.content == {"messages": CHAT["messages"], "tools": tools, "top_p": 0.5}
    assert (row.input_tokens, row.output_tokens) == (3, 7)


def test_batch_files_and_completions_are_bodies_too(tmp_path: Path) -> None:
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
    rows = read(lines(tmp_path, batch, {"prompt": "a b", "max_tokens": 3}, {"prompt": [5, 6, 7, 8]})).rows
    assert [row.content for row in rows] == [
        {"messages": CHAT["messages"]},
        {"prompt": "a b"},
        {"prompt": [5, 6, 7, 8]},
    ]
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(3, 7), (2, 3), (4, None)]


@pytest.mark.parametrize("as_list", [True, False])
def test_sharegpt_asks_the_first_question_for_an_answer_of_that_length(as_list: bool, tmp_path: Path) -> None:
    turns = [
        {"from": "system", "value": "be brief"}, {"from": "human", "value": "one two"},
        {"from": "gpt", "value": "a b c d"}, {"from": "human", "value": "and then"}, {"from": "gpt", "value": "e"},
    ]  # fmt: skip
    path = tmp_path / "sharegpt.json"
    row = {"id": "x", "conversations": turns}
    path.write_text(json.dumps([row], indent=1) if as_list else json.dumps(row))
    (found,) = read(path).rows
    assert [message["role"] for message in found.content["messages"]] == ["system", "user"]
    assert (found.input_tokens, found.output_tokens) == (4, 4)


def test_images_and_other_parts_stay_and_only_text_is_counted(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "what is it"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    (row,) = read(lines(tmp_path, {"messages": [{"role": "user", "content": parts}]})).rows
    assert row.content["messages"][0]["content"] == parts
    assert row.input_tokens == 3


def test_a_table_has_a_prompt_column_that_is_known_or_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('id,question,note\n1,"why, and\nhow",x y z\n2,when,z\n')
    assert [row.content["prompt"] for row in read(path).rows] == ["why, and\nhow", "when"]
    assert [row.content["prompt"] for row in read(path, column="note").rows] == ["x y z", "z"]
    with pytest.raises(TraceError, match=r"row 2: no text in answer; the row has id, question, note"):
        read(path, column="answer")


def test_parquet_and_folders_in_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"text": ["c", "d"]}), folder / "train-1.parquet")
    pyarrow.parquet.write_table(pa.table({"text": ["a", "b"]}), folder / "train-0.parquet")
    (folder / "README.md").write_text("not data")
    with (
        pa.OSFile(str(folder / "train-2.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as out,
    ):
        out.write_table(pa.table({"text": ["e"]}))
    assert [row.content["prompt"] for row in read(tmp_path / "hub").rows] == list("abcde")
    with pytest.raises(TraceError, match="the folder holds no file"):
        (tmp_path / "empty").mkdir()
        read(tmp_path / "empty")


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(CHAT).encode()))
    assert read(path).rows[0].input_tokens == 3


def test_the_order_is_kept_as_far_as_needed_or_drawn_by_a_seed(tmp_path: Path) -> None:
    path = lines(tmp_path, *({"prompt": f"p{number}"} for number in range(200)))

    def prompts(**options: Any) -> list[str]:
        return [row.content["prompt"] for row in read(path, **options).rows]

    assert prompts(count=5) == ["p0", "p1", "p2", "p3", "p4"]
    drawn = prompts(count=50, shuffle_seed=1)
    assert drawn == prompts(count=50, shuffle_seed=1) != prompts(count=50, shuffle_seed=2)
    assert len(set(drawn)) == 50
    assert {int(prompt[1:]) // 50 for prompt in drawn} == {0, 1, 2, 3}, "from all parts of the file"
    assert sorted(prompts(count=500, shuffle_seed=1)) == sorted(prompts(count=500))


def test_what_is_not_read_cannot_be_wrong_and_no_prompt_is_in_a_message(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "fine"}) + "\n" + f'{{"prompt": "{SECRET}')
    assert len(read(path, count=1).rows) == 1
    with pytest.raises(TraceError, match=r"data.jsonl, row 2: not valid JSON. Fix the row, or skip") as caught:
        read(path, count=2)
    assert SECRET not in str(caught.value)
    assert read(path, skip_invalid=True).dropped == {"malformed": 1}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (7, "the row is no object"),
        ({"a": SECRET}, "no prompt; the row has a: name a column of text"),
        ({"conversations": [{"from": "gpt", "value": SECRET}]}, "the conversation has no question"),
        ({"conversations": [SECRET]}, "a turn of the conversation is no text"),
        (CHAT | {"max_tokens": -1}, "the answer's limit is -1"),
    ],
)
def test_a_row_that_cannot_be_sent_is_told_by_its_number(row: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        read(lines(tmp_path, CHAT, row))
    assert "row 2" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_rows_without_text_are_left_out_and_a_dataset_of_none_is_an_error(tmp_path: Path) -> None:
    path = lines(tmp_path, {"prompt": ""}, CHAT)
    assert read(path).dropped == {"no_prompt": 1}
    with pytest.raises(TraceError, match=r"no prompt to send \(1 no_prompt\)"):
        read(lines(tmp_path, {"prompt": ""}))
    (tmp_path / "notes").write_text("once upon a time\nthere was\n")
    with pytest.raises(TraceError, match=r"neither JSON nor a table with a header; name a text .txt"):
        read(tmp_path / "notes")


@pytest.mark.parametrize("letters_per_token", [1, 4, 9])
def test_a_text_is_cut_to_the_lengths_that_are_planned(letters_per_token: int, tmp_path: Path) -> None:
    """Words of three to seven letters; a token is a number of letters, so that no word count is given by a length."""
    words = [f"{'abcdefg'[: 1 + index % 5]}{index}" for index in range(5000)]
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(" ".join(words).encode()))

    def count(text: str) -> int:
        return -(-len(text) // letters_per_token)

    lengths = [1, 50, 400, 12_000]
    rows = cut_text(path, lengths, count, 7).rows
    for row, length in zip(rows[1:], lengths[1:], strict=True):
        assert row.input_tokens == count(row.content["prompt"]) == pytest.approx(length, rel=0.02, abs=9)
        assert set(row.content["prompt"].split()) <= set(words)
    again = cut_text(path, lengths, count, 7).rows
    assert [row.content for row in again] == [row.content for row in rows]
    assert len({row.content["prompt"][:30] for row in cut_text(path, [50] * 20, count, 7).rows}) > 15
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(TraceError, match="2 words are too few to cut prompts from"):
        cut_text(tmp_path / "short.txt", [5], count, 1)
