"""Tasks from files in the forms that are public, and the graphs that recorded times imply."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from surgeproof.errors import TraceError
from surgeproof.traces.conversations import read_conversations
from surgeproof.traces.task_files import TaskFile, read_tasks
from surgeproof.traces.tasks import Call, Step, earliest_s, graph_of, history_tokens


def count(text: str) -> int:
    return len(text.split())


def tasks_of(path: Path, *rows: Any, skip_invalid: bool = False) -> TaskFile:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return read_tasks(path, count, skip_invalid=skip_invalid)


# -- graphs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "graph"),
    [
        # One after the other, with 1 s between them.
        ([(0, 2), (3, 4), (5, 6)], [((), 0), ((0,), 1), ((1,), 1)]),
        # Two at one time after the first; the last one joins them.
        ([(0, 1), (2, 5), (2, 4), (6, 7)], [((), 0), ((0,), 1), ((0,), 1), ((1, 2), 1)]),
        # A sub-agent of two calls beside the main agent's second one.
        ([(0, 1), (1, 9), (1, 2), (3, 4), (9, 10)], [((), 0), ((0,), 0), ((0,), 0), ((2,), 1), ((1, 3), 0)]),
        ([(0, 5), (1, 2)], [((), 0), ((), 0)]),
    ],
)
def test_a_call_waits_for_what_had_ended_when_it_began(calls: Any, graph: Any) -> None:
    assert graph_of([Call(*call) for call in calls]) == graph


def test_times_and_histories_follow_the_graph() -> None:
    steps = [
        Step(10, 5),
        Step(20, 0, (0,), 0, wait_s=2.0),
        Step(30, 5, (0,), wait_s=1.0),
        Step(7, 5, (1, 2), 1, with_answers=True, wait_s=0.5),
    ]
    assert earliest_s(steps) == [0.0, 2.0, 1.0, 2.5]
    # The last one tells 10 + 5 + 20 + 8 tokens of its conversation and 5 of the branch; 8 is the default of an answer.
    assert history_tokens(steps, default_output=8) == [0, 15, 0, 48]


# -- our own form -------------------------------------------------------------------------------------


def test_our_form_names_steps_waits_and_texts(tmp_path: Path) -> None:
    found = tasks_of(
        tmp_path / "t.jsonl",
        {
            "at_s": 1.5,
            "request_class": "P0",
            "steps": [
                {"id": "plan", "messages": [{"role": "user", "content": "make a plan"}], "output_tokens": 50},
                {"id": "search", "after": ["plan"], "input_tokens": 200, "output_tokens": 20, "wait_s": 1.2},
                {"after": ["plan", "search"], "continues": "plan", "with_answers": True, "prompt": "now write",
                 "body": {"tools": [1], "model": "theirs"}},
            ],
        },
        {"steps": [{"input_tokens": 5}, {"input_tokens": 6}]},
    )  # fmt: skip
    first, second = found.tasks
    assert (first.at_s, first.request_class) == (1.5, "P0")
    assert first.steps[0] == Step(3, 50, content={"messages": [{"role": "user", "content": "make a plan"}]})
    assert first.steps[1] == Step(200, 20, (0,), wait_s=1.2)
    assert first.steps[2] == Step(2, 0, (0, 1), 0, with_answers=True, content={"tools": [1], "prompt": "now write"})
    # Without names each step follows the one before.
    assert [step.after for step in second.steps] == [(), (0,)]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"steps": []}, "steps is no list with a step"),
        ({"steps": [{"input_tokens": 1, "after": ["b"]}, {"id": "b", "input_tokens": 1}]}, "no step before it"),
        ({"steps": [{"id": "a", "input_tokens": 1}, {"id": "a", "input_tokens": 1}]}, "two steps have the id 'a'"),
        ({"steps": [{"input_tokens": 1}, {"after": [], "continues": 0, "input_tokens": 1}]}, "must come after it"),
        ({"steps": [{"output_tokens": 1}]}, "no field 'input_tokens'"),
        ({"steps": [{"input_tokens": 1, "wait_s": -1}]}, "wait_s"),
        ({"steps": [{"input_tokens": 1}], "request_class": "P9"}, "request_class"),
        ({"steps": [{"prompt": "x", "after": 7}]}, "after is no list"),
        (["no object"], "not an object"),
    ],
)
def test_a_malformed_task_is_told_with_its_row_or_skipped(tmp_path: Path, task: Any, said: str) -> None:
    good = {"steps": [{"input_tokens": 1}]}
    with pytest.raises(TraceError, match="row 2") as told:
        tasks_of(tmp_path / "t.jsonl", good, task)
    assert said in str(told.value)
    found = tasks_of(tmp_path / "t.jsonl", good, task, skip_invalid=True)
    assert (len(found.tasks), found.dropped) == (1, {"malformed": 1})


def test_a_prompt_is_never_part_of_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as told:
        tasks_of(tmp_path / "t.jsonl", {"steps": [{"prompt": "a secret", "after": ["nowhere"]}]})
    assert "secret" not in str(told.value)


# -- Weka's traces --------------------------------------------------------------------------------------


def weka(requests: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"id": "c-1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": requests} | fields


def call(t: float, api_time: float, blocks: list[int], **fields: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "in": 64 * len(blocks), "out": 9, "hash_ids": blocks, "api_time": api_time} | fields


@pytest.mark.parametrize("inner", [0.0, 10.0], ids=["times from the marker", "times from the root"])
def test_wekas_sub_agents_run_beside_each_other_and_are_joined(tmp_path: Path, inner: float) -> None:
    """Two sub-agents begin at 10 s, of two calls and of one; the main agent goes on when both have ended."""
    agents = [
        {"t": 10.0, "type": "subagent", "requests": [call(inner, 2.0, [7]), call(inner + 3.0, 1.0, [7, 8])]},
        {"t": 10.0, "type": "subagent", "requests": [call(inner, 5.0, [9])]},
    ]
    main = [call(0.0, 4.0, [1, 2]), call(5.0, 5.0, [1, 2, 3]), *agents, call(16.0, 2.0, [1, 2, 3, 4])]
    found = tasks_of(tmp_path / "t.json", weka(main))
    (task,) = found.tasks
    assert found.block_tokens == 64
    assert [step.after for step in task.steps] == [(), (0,), (1,), (1,), (2,), (3, 4)]
    assert [step.wait_s for step in task.steps] == pytest.approx([0, 1, 0, 0, 1, 1])
    assert [step.input_tokens for step in task.steps] == [128, 192, 64, 64, 128, 256]


def test_wekas_block_ids_are_each_tasks_own_unless_they_are_global(tmp_path: Path) -> None:
    local = tasks_of(tmp_path / "a.jsonl", weka([call(0, 1, [1, 2])]), weka([call(0, 1, [1, 2])]))
    ids = [task.steps[0].hash_ids for task in local.tasks]
    assert not set(ids[0]) & set(ids[1])
    shared = tasks_of(tmp_path / "b.jsonl", *[weka([call(0, 1, [1, 2])], hash_id_scope="global")] * 2)
    assert [task.steps[0].hash_ids for task in shared.tasks] == [(1, 2), (1, 2)]


def test_a_folder_of_traces_is_read_in_order_of_names(tmp_path: Path) -> None:
    """Documents over many lines, and a compressed one."""
    (tmp_path / "b.json").write_text(json.dumps(weka([call(0, 1, [1, 2, 3])]), indent=1))
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        json.dump(weka([call(0, 1, [1])]), file)
    assert [task.steps[0].input_tokens for task in read_tasks(tmp_path, count, skip_invalid=False).tasks] == [64, 192]


# -- OpenTelemetry ------------------------------------------------------------------------------------


def span(trace: str, start_s: float, end_s: float, inputs: int) -> dict[str, Any]:
    facts = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": inputs, "gen_ai.usage.output_tokens": 4}
    return {
        "traceId": trace,
        "startTimeUnixNano": str(round((1_700_000_000 + start_s) * 1e9)),
        "endTimeUnixNano": str(round((1_700_000_000 + end_s) * 1e9)),
        "attributes": [
            {"key": key, "value": {"intValue" if isinstance(value, int) else "stringValue": value}}
            for key, value in facts.items()
        ],
    }


def test_spans_of_one_trace_are_a_task(tmp_path: Path) -> None:
    spans = [span("b", 100, 101, 5), span("a", 0, 1, 10), span("a", 2, 4, 20), span("a", 2, 3, 30), span("a", 5, 6, 40)]
    found = tasks_of(tmp_path / "spans.json", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    by_start = sorted(found.tasks, key=lambda task: task.at_s or 0.0)
    assert [task.at_s for task in by_start] == [0.0, 100.0]
    assert [(step.input_tokens, step.after) for step in by_start[0].steps] == [
        (10, ()), (30, (0,)), (20, (0,)), (40, (1, 2)),
    ]  # fmt: skip


# -- conversations ------------------------------------------------------------------------------------


SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "gpt", "value": "welcome"},
        {"from": "human", "value": "one two"},
        {"from": "gpt", "value": "a b c d"},
        {"from": "human", "value": "three"},
        {"from": "gpt", "value": "e"},
    ],
}
CHAT = {
    "messages": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"role": "tool", "tool_call_id": "c", "content": "forty two"},
        {"role": "assistant", "content": "it is 42"},
        {"role": "user", "content": [{"type": "text", "text": "thank you very much"}]},
    ],
    "tools": [{"type": "function"}],
    "model": "theirs",
}


def conversations(path: Path, *rows: Any, **options: Any) -> Any:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    given = {"shuffle_seed": None, "count_tokens": count, "skip_invalid": False}
    return read_conversations(path, 10, **(given | options))


def test_the_users_turns_are_sent_and_recorded_answers_tell_a_length(tmp_path: Path) -> None:
    share, chat = conversations(tmp_path / "c.jsonl", SHAREGPT, CHAT).tasks
    assert [(step.input_tokens, step.output_tokens, step.after, step.continues) for step in share.steps] == [
        (2, 4, (), None),
        (1, 1, (0,), 0),
    ]
    assert [(step.input_tokens, step.output_tokens) for step in chat.steps] == [(3, 0), (2, 3), (4, 0)]
    assert chat.steps[0].content == {"messages": CHAT["messages"][:2], "tools": CHAT["tools"]}
    assert chat.steps[1].content["messages"] == [CHAT["messages"][3]]


def test_rows_without_a_question_are_left_out_and_malformed_ones_told(tmp_path: Path) -> None:
    silent = {"conversations": [{"from": "gpt", "value": "hello"}]}
    found = conversations(tmp_path / "c.jsonl", silent, SHAREGPT)
    assert (len(found.tasks), found.dropped) == (1, {"no_question": 1})
    with pytest.raises(TraceError, match="row 2: no conversation; the row has text"):
        conversations(tmp_path / "c.jsonl", SHAREGPT, {"text": "a secret"})
    with pytest.raises(TraceError, match="row 1: a turn of the conversation is no text"):
        conversations(tmp_path / "c.jsonl", {"messages": [{"role": "user", "content": 7}]})
