"""Conversations of a dataset as tasks in a line: the users' turns are sent, the recorded answers only tell a length.

ShareGPT's form, lists of messages, and bodies of chat requests. Texts are never part of an error.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from surgeproof.errors import TraceError
from surgeproof.strict_json import JsonObject
from surgeproof.traces.dataset import CountTokens, chosen_of, rows_of
from surgeproof.traces.formats.rows import MALFORMED, BadValueError, Malformed
from surgeproof.traces.request_text import text_of
from surgeproof.traces.tasks import Step, Task

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""ShareGPT's speakers by the role that chat has for them."""
_FIELDS = ("tools", "tool_choice", "response_format", "temperature", "top_p", "seed", "stop")
"""What a body says beside its messages and is sent with each turn."""
_NO_QUESTION = "no_question"


class Conversations(NamedTuple):
    """What a plan uses, in order, and how many rows were left out, by reason."""

    tasks: list[Task]
    dropped: dict[str, int]


def read_conversations(
    path: Path, count: int, *, shuffle_seed: int | None, count_tokens: CountTokens, skip_invalid: bool
) -> Conversations:
    """Conversations for `count` sessions; a dataset with fewer is begun again by the caller.

    Args:
        path: the file, or a folder of files.
        count: how many are needed.
        shuffle_seed: draw rows at random; None keeps the file's order.
        count_tokens: length of a text.
        skip_invalid: count malformed rows instead of stopping at the first.

    Raises:
        TraceError: nothing can be read, or a row is malformed.
    """
    dropped: dict[str, int] = {}
    tasks = _tasks(path, count_tokens, dropped, skip_invalid=skip_invalid)
    return Conversations(chosen_of(path, tasks, count, shuffle_seed, dropped), dropped)


def _tasks(path: Path, count_tokens: CountTokens, dropped: dict[str, int], *, skip_invalid: bool) -> Iterator[Task]:
    for place, value in rows_of(path):
        try:
            if isinstance(value, Malformed):
                raise BadValueError(value.problem)
            steps = _steps(value, count_tokens)
        except BadValueError as exc:
            if not skip_invalid:
                raise TraceError(f"{place}: {exc}. Fix the row, or skip such rows with --skip-invalid.") from exc
            dropped[MALFORMED] = dropped.get(MALFORMED, 0) + 1
            continue
        if steps:
            yield Task(place, tuple(steps))
        else:
            dropped[_NO_QUESTION] = dropped.get(_NO_QUESTION, 0) + 1


def _steps(row: Any, count_tokens: CountTokens) -> list[Step]:
    """A step for each question, with what stands before it since the last answer.

    Raises:
        BadValueError: the row holds no conversation.
    """
    messages, fields = _messages(row)
    steps: list[Step] = []
    asked: list[JsonObject] = []
    for message in [*messages, {"role": "assistant", "content": ""}]:
        if message["role"] != "assistant":
            asked.append(message)
            continue
        if any(one["role"] != "system" for one in asked):
            line = len(steps) - 1
            steps.append(
                Step(
                    count_tokens(text_of({"messages": asked})),
                    count_tokens(text_of({"messages": [message]})),
                    after=(line,) if steps else (),
                    continues=line if steps else None,
                    content=fields | {"messages": asked},
                )
            )
            asked = []
    return steps


def _messages(row: Any) -> tuple[list[JsonObject], JsonObject]:
    """The messages of a row, and the other fields of a body.

    Raises:
        BadValueError: there are none.
    """
    if not isinstance(row, Mapping):
        raise BadValueError("the row is no object")
    body = row.get("body") if isinstance(row.get("body"), Mapping) else row
    if isinstance(body, Mapping) and isinstance(body.get("messages"), list):
        fields = {name: body[name] for name in _FIELDS if name in body}
        return [_message(turn) for turn in body["messages"]], fields
    turns = row.get("conversations", row.get("conversation"))
    if not isinstance(turns, list):
        raise BadValueError(f"no conversation; the row has {', '.join(map(str, row)) or 'nothing'}")
    return [_message(turn) for turn in turns], {}


def _message(turn: Any) -> JsonObject:
    if not isinstance(turn, Mapping):
        raise BadValueError("a turn of the conversation is no object")
    if "from" in turn:
        speaker, content = turn["from"], turn.get("value")
        return {"role": _ROLES.get(str(speaker), str(speaker)), "content": _told(content)}
    return dict(turn) | {"role": str(turn.get("role")), "content": _told(turn.get("content"))}


def _told(content: Any) -> Any:
    if content is None:
        # An answer that is a tool call has no text.
        return ""
    if not isinstance(content, str | list):
        raise BadValueError("a turn of the conversation is no text")
    return content
