"""Datasets of prompts as they lie on disk: bodies of requests, ShareGPT, tables with a prompt column, folders of these.

A row becomes the part of a request's body that says what is asked: messages or prompt, and whatever else the row
holds of a request (tools, response format, sampling). Prompts are never part of an error. How long a prompt is, the
caller's tokenizer counts, or estimates.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from surgeproof.errors import TraceError
from surgeproof.strict_json import JsonObject
from surgeproof.traces.compression import is_parquet, text_lines
from surgeproof.traces.formats.rows import MALFORMED, BadValueError, csv_records
from surgeproof.traces.formats.rows import Malformed as BadRow
from surgeproof.traces.request_text import text_of, token_ids_of

PROMPT_COLUMNS = ("prompt", "text", "question", "instruction", "input", "query")
"""Columns of a table that are taken for the prompt, in this order, where none is named."""
_NOT_OF_THE_ROW = ("model", "stream", "stream_options", "user")
"""Fields that the run decides, or that name a person."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_HUMAN, _MODEL = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
_SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
_MIN_WORDS = 100
_SAMPLE_WORDS = 20_000
_EMPTY = "no_prompt"

CountTokens = Callable[[str], int]
Chosen = TypeVar("Chosen")


class PromptRow(NamedTuple):
    """One request of a dataset.

    Attributes:
        place: file and row.
        content: what goes into the body.
        input_tokens: length of the prompt.
        output_tokens: length of the answer, where the row says it; None else.
    """

    place: str
    content: JsonObject
    input_tokens: int
    output_tokens: int | None


class Prompts(NamedTuple):
    """The rows that a plan uses, in order, and how many were left out, by reason."""

    rows: list[PromptRow]
    dropped: dict[str, int]


def choose_prompts(
    path: Path,
    count: int,
    *,
    column: str | None,
    shuffle_seed: int | None,
    count_tokens: CountTokens,
    skip_invalid: bool,
) -> Prompts:
    """Rows for `count` requests; a dataset with fewer is begun again by the caller.

    Args:
        path: the file, or a folder of files.
        count: how many are needed.
        column: the prompt's column of a table; None for the first known one.
        shuffle_seed: draw rows at random; None keeps the file's order, and reads no further than needed.
        count_tokens: length of a text.
        skip_invalid: count malformed rows instead of stopping at the first.

    Raises:
        TraceError: nothing can be read, or a row is malformed.
    """
    dropped: dict[str, int] = {}
    rows = _usable(path, column, count_tokens, dropped, skip_invalid=skip_invalid)
    return Prompts(chosen_of(path, rows, count, shuffle_seed, dropped), dropped)


def chosen_of(
    path: Path, rows: Iterator[Chosen], count: int, shuffle_seed: int | None, dropped: Mapping[str, int]
) -> list[Chosen]:
    """The first rows of a file, or a random sample of all in random order.

    Raises:
        TraceError: there is none.
    """
    chosen = _first(rows, count) if shuffle_seed is None else _sample(rows, count, np.random.default_rng(shuffle_seed))
    if not chosen:
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items()) or "no rows at all"
        raise TraceError(f"{path}: no prompt to send ({reasons})")
    return chosen


def cut_text(path: Path, lengths: Sequence[int], count_tokens: CountTokens, seed: int) -> Prompts:
    """Prompts of given lengths, cut out of a text at random places, so that a text stays text.

    Args:
        path: the text.
        lengths: tokens of each prompt.
        count_tokens: length of a text.
        seed: of the places.

    Raises:
        TraceError: the file cannot be read, or holds under a hundred words.
    """
    words = " ".join(text_lines(path, "dataset")).split()
    if len(words) < _MIN_WORDS:
        raise TraceError(
            f"{path}: {len(words)} words are too few to cut prompts from; at least {_MIN_WORDS} are needed"
        )
    per_word = max(1e-3, count_tokens(" ".join(words[:_SAMPLE_WORDS])) / len(words[:_SAMPLE_WORDS]))
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        start = int(rng.integers(0, len(words)))
        text = _cut(words, start, length / per_word)
        # Once more by the length that this piece has.
        text = _cut(words, start, len(text.split()) * length / max(1, count_tokens(text)))
        rows.append(PromptRow(f"{path}, piece {number}", {"prompt": text}, count_tokens(text), None))
    return Prompts(rows, {})


def _cut(words: Sequence[str], start: int, count: float) -> str:
    """So many words from a place on, from the beginning again at the end."""
    wanted = max(1, round(count))
    return " ".join(words[(start + index) % len(words)] for index in range(wanted))


def _first(rows: Iterator[Chosen], count: int) -> list[Chosen]:
    return [row for _, row in zip(range(count), rows, strict=False)]


def _sample(rows: Iterator[Chosen], count: int, rng: np.random.Generator) -> list[Chosen]:
    """A random sample in random order, in one pass and with `count` rows in memory (Vitter's algorithm R)."""
    kept: list[Chosen] = []
    for number, row in enumerate(rows):
        if number < count:
            kept.append(row)
        elif (place := int(rng.integers(0, number + 1))) < count:
            kept[place] = row
    return [kept[index] for index in rng.permutation(len(kept)).tolist()]


def _usable(
    path: Path, column: str | None, count_tokens: CountTokens, dropped: dict[str, int], *, skip_invalid: bool
) -> Iterator[PromptRow]:
    for place, value in rows_of(path):
        try:
            if isinstance(value, BadRow):
                raise BadValueError(value.problem)
            content, output_tokens = _content(value, column, count_tokens)
        except BadValueError as exc:
            if not skip_invalid:
                raise TraceError(f"{place}: {exc}. Fix the row, or skip such rows with --skip-invalid.") from exc
            dropped[MALFORMED] = dropped.get(MALFORMED, 0) + 1
            continue
        tokens = token_ids_of(content)
        tokens = count_tokens(text_of(content)) if tokens is None else tokens
        if tokens == 0:
            dropped[_EMPTY] = dropped.get(_EMPTY, 0) + 1
            continue
        yield PromptRow(place, content, tokens, output_tokens)


def _content(value: Any, column: str | None, count_tokens: CountTokens) -> tuple[JsonObject, int | None]:
    """What a row asks, and how long its answer is.

    Raises:
        BadValueError: it holds no prompt of a known form.
    """
    if not isinstance(value, dict):
        raise BadValueError("the row is no object")
    if column is not None:
        return {"prompt": _text(value, column)}, None
    body = value.get("body")
    if isinstance(body, dict):
        value = body
    if any(isinstance(value.get(name), list) for name in ("messages", "prompt", "input", "documents")):
        return _of_body(value)
    turns = value.get("conversations", value.get("conversation"))
    if isinstance(turns, list):
        return _of_conversation(turns, count_tokens)
    if "prompt" in value and isinstance(value["prompt"], str) and any(limit in value for limit in _LIMITS):
        return _of_body(value)
    name = next((known for known in PROMPT_COLUMNS if isinstance(value.get(known), str)), None)
    if name is None:
        raise BadValueError(f"no prompt; the row has {', '.join(map(str, value)) or 'nothing'}: name a column of text")
    return {"prompt": value[name]}, None


def _text(value: Mapping[str, Any], column: str) -> str:
    found = value.get(column)
    if not isinstance(found, str):
        raise BadValueError(f"no text in {column}; the row has {', '.join(map(str, value)) or 'nothing'}")
    return found


def _of_body(body: JsonObject) -> tuple[JsonObject, int | None]:
    """A request's body as it was sent, but for what this run decides."""
    limit = next((body[name] for name in _LIMITS if isinstance(body.get(name), int)), None)
    if limit is not None and not 0 < limit < 2**31:
        raise BadValueError(f"the answer's limit is {limit}, not a number of tokens")
    return {key: value for key, value in body.items() if key not in (*_NOT_OF_THE_ROW, *_LIMITS)}, limit


def _of_conversation(turns: list[Any], count_tokens: CountTokens) -> tuple[JsonObject, int | None]:
    """ShareGPT: the first question, with the length of the answer that it got; a system prompt stays before it."""
    messages: list[JsonObject] = []
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise BadValueError("a turn of the conversation is no text")
        speaker = turn.get("from")
        if speaker in _HUMAN:
            if any(message["role"] == "user" for message in messages):
                break
            messages.append({"role": "user", "content": turn["value"]})
        elif speaker in _MODEL:
            if messages and messages[-1]["role"] == "user":
                return {"messages": messages}, max(1, count_tokens(turn["value"]))
        elif speaker == "system":
            messages.append({"role": "system", "content": turn["value"]})
    if not messages or messages[-1]["role"] != "user":
        raise BadValueError("the conversation has no question")
    return {"messages": messages}, None


# -- files ------------------------------------------------------------------------------------------


def rows_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows with their place, of one file or of a folder's files in order of their names."""
    if not path.is_dir():
        yield from _of_file(path)
        return
    files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.name != "dataset_info.json")
    if not files:
        raise TraceError(f"{path}: the folder holds no file of {', '.join(_SUFFIXES)}")
    for file in files:
        yield from _of_file(file)


def _of_file(path: Path) -> Iterator[tuple[str, Any]]:
    rows = _arrow_rows(path) if path.suffix == ".arrow" or is_parquet(path, "dataset") else _text_rows(path)
    for number, value in rows:
        yield f"{path}, row {number}", value


def _text_rows(path: Path) -> Iterator[tuple[int, Any]]:
    first = next((line for line in text_lines(path, "dataset") if line.strip()), "")
    if first.lstrip().startswith("["):
        yield from enumerate(_json_list(path, "".join(text_lines(path, "dataset"))), 1)
    elif first.lstrip().startswith("{"):
        yield from _json_lines(text_lines(path, "dataset"))
    else:
        yield from _table_rows(path, text_lines(path, "dataset"))


def _json_list(path: Path, text: str) -> list[Any]:
    try:
        return list(json.loads(text))
    except (ValueError, RecursionError) as exc:
        raise TraceError(f"{path} is not a list of JSON objects: {type(exc).__name__}") from exc


def _json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                # The line itself may be somebody's prompt.
                yield number, BadRow(number, "not valid JSON")


def _table_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1))
    records = csv_records((number, line) for number, line in numbered if line.strip())
    header = next(records, None)
    if header is None or isinstance(header, BadRow):
        raise TraceError(f"{path}: the file is empty, or its header cannot be read")
    names = header[1]
    if len(names) < 2 and names[0].strip() not in PROMPT_COLUMNS:
        raise TraceError(f"{path}: neither JSON nor a table with a header; name a text .txt to cut prompts from it")
    for record in records:
        if isinstance(record, BadRow):
            yield record.line, BadRow(record.line, "a quoted field has no end, or a quote is in the wrong place")
        elif len(record[1]) != len(names):
            yield record[0], BadRow(record[0], f"{len(record[1])} columns instead of {len(names)}")
        else:
            yield record[0], dict(zip(names, record[1], strict=True))


def _arrow_rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        from pyarrow import ipc, memory_map, parquet
    except ModuleNotFoundError as exc:
        raise TraceError("Parquet and Arrow files need: pip install 'surgeproof[ui]'") from exc
    try:
        if path.suffix == ".arrow":
            with memory_map(str(path)) as source:
                batches: Any = list(ipc.open_stream(source))
        else:
            batches = parquet.ParquetFile(path).iter_batches()
        number = 0
        for batch in batches:
            for value in batch.to_pylist():
                number += 1
                yield number, value
    except (OSError, ValueError) as exc:
        raise TraceError(f"{path} cannot be read as Parquet or Arrow: {exc}") from exc
