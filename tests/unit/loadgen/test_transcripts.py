"""Conversations as they went: what a later turn tells, and that nothing is kept longer than it is needed."""

from surgeproof.loadgen.transcripts import Answer, Transcripts
from surgeproof.records import RequestPlan
from surgeproof.strict_json import JsonObject


def plan(index: int, continues: int | None = None, *after: int, tells: bool = False, uses: int = 0) -> RequestPlan:
    return RequestPlan(
        index, 0, "P1", 1, 1, 0, session=0, after=after, continues=continues, with_answers=tells, answer_uses=uses
    )


def asked(text: str) -> list[JsonObject]:
    return [{"role": "user", "content": text}]


def answered(text: str, reasoning: str = "") -> Answer:
    return Answer(text, reasoning, 7)


def test_a_turn_tells_what_was_asked_and_really_answered_before() -> None:
    kept = Transcripts()
    first, second, third = plan(0, uses=1), plan(1, 0, 0, uses=1), plan(2, 1, 1)
    assert kept.messages_of(first, asked("a")) == asked("a")
    kept.keep(first, answered("A"))
    assert kept.history_tokens(second) == 7
    kept.messages_of(second, asked("b"))
    kept.keep(second, answered("B", "because"))
    kept.release(second)
    assert kept.messages_of(third, asked("c")) == [
        *asked("a"),
        {"role": "assistant", "content": "A"},
        *asked("b"),
        {"role": "assistant", "content": "B", "reasoning_content": "because"},
        *asked("c"),
    ]
    kept.release(third)
    assert len(kept) == 0


def test_a_join_is_told_the_answers_of_its_branches() -> None:
    kept = Transcripts()
    root = plan(0, uses=1)
    kept.messages_of(root, asked("plan"))
    kept.keep(root, answered("P"))
    for index, text in ((1, "x"), (2, "")):
        branch = plan(index, None, 0, uses=1)
        kept.messages_of(branch, asked("do"))
        kept.keep(branch, answered(text))
    join = plan(3, 0, 0, 1, 2, tells=True)
    # An empty answer has nothing to tell.
    assert kept.messages_of(join, asked("sum up")) == [
        *asked("plan"), {"role": "assistant", "content": "P"}, {"role": "user", "content": "x"}, *asked("sum up"),
    ]  # fmt: skip


def test_what_will_not_be_sent_needs_no_history() -> None:
    kept = Transcripts()
    first, second, third = plan(0, uses=2), plan(1, 0, 0), plan(2, 0, 0)
    kept.messages_of(first, asked("a"))
    kept.keep(first, answered("A"))
    kept.release(second)
    assert len(kept) == 1
    kept.release(third)
    assert len(kept) == 0


def test_the_result_of_a_tool_is_a_message_of_the_user() -> None:
    """A live answer need not have called the tool, and servers refuse results of calls that were not made."""
    kept = Transcripts()
    kept.messages_of(plan(0, uses=1), asked("a"))
    kept.keep(plan(0, uses=1), answered("A"))
    result: list[JsonObject] = [{"role": "tool", "tool_call_id": "c1", "content": "42"}]
    assert kept.messages_of(plan(1, 0, 0), result)[-1] == {"role": "user", "content": "42"}
    # What a row says of its own calls is sent as it is.
    own: list[JsonObject] = [*asked("a"), {"role": "assistant", "tool_calls": [{"id": "c1"}]}, *result]
    assert Transcripts().messages_of(plan(0), own) == own
