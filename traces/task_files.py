"""Files of agents' tasks: our own JSON lines, Weka's traces of coding agents, OpenTelemetry spans by trace.

Weka's form is that of the kv-cache-tester project and of SemiAnalysis's `cc-traces-weka` datasets: lengths, times and
prompt blocks of every call, sub-agents inside. What waited for what follows from the times that were recorded
(`tasks.graph_of`), in Weka's files and in spans.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from surgeproof.errors import TraceError
from surgeproof.records import BLOCK_TOKENS, NS_PER_S, REQUEST_CLASSES
from surgeproof.strict_json import JsonObject
from surgeproof.traces.compression import text_lines
from surgeproof.traces.dataset import CountTokens
from surgeproof.traces.formats.otel import OtelJson, Span
from surgeproof.traces.formats.rows import (
    MALFORMED,
    BadValueError,
    Dropped,
    Malformed,
    field,
    hash_ids,
    offset_ns,
    tokens,
)
from surgeproof.traces.request_text import text_of
from surgeproof.traces.tasks import Call, Step, Task, graph_of

_SUFFIXES = (".json", ".jsonl", ".gz", ".zst")
_SCOPE_BITS = 40
"""Local block ids of a task get its number above these bits."""
_HEAD_LINES = 5
"""Lines of a document over many lines within which its outermost field stands."""
_INSTANT_S = 1e-6
"""Least length of a call: one that ends when it begins would wait for itself."""
_LEFT_TO_THE_RUN = ("model", "stream", "stream_options", "user")


class TaskFile(NamedTuple):
    """The tasks of a file or folder.

    Attributes:
        block_tokens: tokens of a block that a hash id names.
        dropped: rows left out, by reason.
    """

    tasks: list[Task]
    block_tokens: int
    dropped: dict[str, int]


def read_tasks(path: Path, count_tokens: CountTokens, *, skip_invalid: bool) -> TaskFile:
    """All tasks of a file, or of a folder's files in order of their names.

    Args:
        path: the file or folder.
        count_tokens: length of a text.
        skip_invalid: count malformed tasks instead of stopping at the first.

    Raises:
        TraceError: nothing can be read, or a task is malformed.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
    dropped: dict[str, int] = {}
    tasks: list[Task] = []
    sizes: set[int] = set()
    for file in files:
        for place, read in _readers(file, count_tokens, sizes):
            try:
                tasks.append(read(len(tasks)))
            except (BadValueError, AttributeError, TypeError) as exc:
                problem = exc if isinstance(exc, BadValueError) else f"it has not the form of a task ({exc})"
                if not skip_invalid:
                    raise TraceError(f"{place}: {problem}. Fix it, or skip such tasks with --skip-invalid.") from exc
                dropped[MALFORMED] = dropped.get(MALFORMED, 0) + 1
    if not tasks:
        raise TraceError(f"{path}: no task ({dropped.get(MALFORMED, 0)} malformed)")
    if len(sizes) > 1:
        raise TraceError(
            f"{path}: its traces have blocks of {', '.join(map(str, sorted(sizes)))} tokens; give one size"
        )
    return TaskFile(tasks, sizes.pop() if sizes else BLOCK_TOKENS, dropped)


Read = Callable[[int], Task]
"""Makes the task of a given number."""


def _readers(file: Path, count_tokens: CountTokens, sizes: set[int]) -> Iterator[tuple[str, Read]]:
    """What makes each task of a file, with its place."""
    lines = text_lines(file, "task file")
    head = list(islice(lines, _HEAD_LINES))
    if any('"resourceSpans"' in line for line in head):
        yield from _span_tasks(file, chain(head, lines))
        return
    for number, value in _objects(file, chain(head, lines)):
        place = f"{file}, row {number}"
        if isinstance(value, Malformed):
            yield place, _raiser(value.problem)
        elif "requests" in value:
            sizes.add(int(value.get("block_size") or BLOCK_TOKENS))
            yield place, partial(_weka, value, place)
        else:
            yield place, partial(_own, value, place, count_tokens)


def _raiser(problem: str) -> Read:
    def read(_number: int) -> Task:
        raise BadValueError(problem)

    return read


def _objects(file: Path, lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """An object a line, or one over the whole file."""
    first = next(lines, "")
    try:
        whole = [json.loads(first)] if first.strip() else []
    except (ValueError, RecursionError):
        whole = None
    if whole is None:
        text = "".join(chain([first], lines))
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise TraceError(f"{file} holds neither JSON lines nor one JSON document: {type(exc).__name__}") from exc
        yield from enumerate(found if isinstance(found, list) else [found], 1)
        return
    for number, line in enumerate(chain([first], lines), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = Malformed(number, "not valid JSON")
            yield number, value if isinstance(value, dict | Malformed) else Malformed(number, "not an object")


# -- our own form -----------------------------------------------------------------------------------


def _own(value: JsonObject, place: str, count_tokens: CountTokens, _number: int) -> Task:
    """A task with `steps`."""
    listed = field(value, "steps")
    if not isinstance(listed, list) or not listed:
        raise BadValueError("steps is no list with a step")
    known: dict[str, int] = {}
    steps: list[Step] = []
    for number, one in enumerate(listed):
        if not isinstance(one, dict):
            raise BadValueError(f"step {number} is no object")
        steps.append(_own_step(one, number, known, count_tokens))
        name = str(one.get("id", number))
        if name in known:
            raise BadValueError(f"two steps have the id {name!r}")
        known[name] = number
    request_class = value.get("request_class")
    if request_class is not None and request_class not in REQUEST_CLASSES:
        raise BadValueError(f"request_class is {request_class!r}; known are {', '.join(REQUEST_CLASSES)}")
    at_s = value.get("at_s")
    return Task(
        place,
        tuple(steps),
        None if at_s is None else offset_ns("at_s", at_s, NS_PER_S) / NS_PER_S,
        request_class,
    )


def _own_step(one: JsonObject, number: int, known: Mapping[str, int], count_tokens: CountTokens) -> Step:
    after = one.get("after", [number - 1] if number else [])
    if not isinstance(after, list):
        raise BadValueError(f"step {number}: after is no list of ids")
    if "after" in one:
        after = [_place(name, number, known) for name in after]
    continues = one.get("continues")
    before = None if continues is None else _place(continues, number, known)
    if before is not None and before not in after:
        raise BadValueError(f"step {number} continues {continues!r}, so it must come after it")
    content = _own_content(one)
    made = content is None
    return Step(
        tokens("input_tokens", field(one, "input_tokens")) if made else max(1, count_tokens(text_of(content or {}))),
        tokens("output_tokens", one.get("output_tokens", 0)),
        tuple(after),
        before,
        bool(one.get("with_answers", False)),
        offset_ns("wait_s", one.get("wait_s", 0), NS_PER_S) / NS_PER_S,
        content,
    )


def _place(name: Any, number: int, known: Mapping[str, int]) -> int:
    if str(name) not in known:
        raise BadValueError(f"step {number} names {name!r}, which is no step before it")
    return known[str(name)]


def _own_content(one: JsonObject) -> JsonObject | None:
    """What a step asks beside its place in the graph; None where its text is to be made."""
    body = one.get("body") or {}
    if not isinstance(body, dict):
        raise BadValueError("body is no object")
    asked = {name: one[name] for name in ("messages", "prompt") if name in one}
    rest = {name: value for name, value in body.items() if name not in _LEFT_TO_THE_RUN}
    content = rest | asked
    return content if "messages" in content or "prompt" in content else None


# -- Weka's traces ----------------------------------------------------------------------------------


class _WekaCall(NamedTuple):
    call: Call
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


def _weka(value: JsonObject, place: str, number: int) -> Task:
    """One conversation of a coding agent, with its sub-agents."""
    scope = 0 if value.get("hash_id_scope") == "global" else (number + 1) << _SCOPE_BITS
    calls = sorted(_weka_calls(field(value, "requests"), 0.0, scope), key=lambda one: one.call)
    if not calls:
        raise BadValueError("requests is empty")
    steps = [
        Step(one.input_tokens, one.output_tokens, after, wait_s=wait_s, hash_ids=one.hash_ids)
        for one, (after, wait_s) in zip(calls, graph_of([one.call for one in calls]), strict=True)
    ]
    return Task(place, tuple(steps))


def _weka_calls(requests: Iterable[JsonObject], start_s: float, scope: int) -> Iterator[_WekaCall]:
    """All calls with their times since the task's beginning, those of sub-agents among them."""
    for request in requests:
        at_s = start_s + offset_ns("t", field(request, "t"), NS_PER_S) / NS_PER_S
        if request.get("type") == "subagent":
            nested = request.get("requests") or []
            # Some producers count a sub-agent's times from its marker, others from the root.
            relative = any(float(one.get("t", 0)) < at_s - _INSTANT_S for one in nested)
            yield from _weka_calls(nested, at_s if relative else 0.0, scope)
            continue
        took_s = max(_INSTANT_S, float(request.get("api_time") or 0.0))
        yield _WekaCall(
            Call(at_s, at_s + took_s),
            max(1, tokens("in", field(request, "in"))),
            max(1, tokens("out", field(request, "out"))),
            tuple(scope + block for block in hash_ids(request.get("hash_ids"))),
        )


# -- OpenTelemetry ----------------------------------------------------------------------------------


def _span_tasks(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, Read]]:
    """The generations of each trace, in order of their beginning."""
    by_trace: dict[str, list[Span]] = {}
    for parsed in OtelJson().spans(enumerate(lines, 1)):
        if isinstance(parsed, Malformed):
            yield f"{file}, row {parsed.line}", _raiser(parsed.problem)
        elif not isinstance(parsed, Dropped):
            by_trace.setdefault(parsed.trace, []).append(parsed)
    first_ns = min((span.row.at_ns for spans in by_trace.values() for span in spans), default=0)
    for name, spans in by_trace.items():
        yield (
            f"{file}, trace {name}",
            partial(_of_spans, f"{file}, trace {name}", spans, first_ns),
        )


def _of_spans(place: str, spans: list[Span], first_ns: int, _number: int) -> Task:
    spans = sorted(spans, key=lambda span: (span.row.at_ns, span.end_ns))
    start_ns = spans[0].row.at_ns
    calls = [
        Call(
            (span.row.at_ns - start_ns) / NS_PER_S,
            (max(span.end_ns, span.row.at_ns + 1000) - start_ns) / NS_PER_S,
        )
        for span in spans
    ]
    steps = [
        Step(span.row.input_tokens, span.row.output_tokens, after, wait_s=wait_s)
        for span, (after, wait_s) in zip(spans, graph_of(calls), strict=True)
    ]
    return Task(place, tuple(steps), (start_ns - first_ns) / NS_PER_S)
