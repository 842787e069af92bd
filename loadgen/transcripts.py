"""Conversations as they really went: what was asked and answered so far, for the requests that go on with it. Pure.

An answer is kept until the last request that tells it has ended.
"""

from typing import NamedTuple

from surgeproof.records import RequestPlan
from surgeproof.strict_json import JsonObject


class Answer(NamedTuple):
    """What a request was answered.

    Attributes:
        text: the visible answer.
        reasoning: streamed reasoning; empty where it is left out of the history.
        tokens: prompt and answer, as far as the next prompt repeats them; None where the server did not count.
    """

    text: str
    reasoning: str
    tokens: int | None


class _Kept(NamedTuple):
    messages: list[JsonObject]
    answer: Answer


class Transcripts:
    """The conversations of one worker that go on."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._asked: dict[int, list[JsonObject]] = {}
        self._uses: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def messages_of(self, plan: RequestPlan, new: list[JsonObject]) -> list[JsonObject]:
        """What a request sends: the conversation so far, answers that it was given, and its own messages."""
        messages: list[JsonObject] = []
        if plan.continues is not None and (before := self._kept.get(plan.continues)) is not None:
            messages += [*before.messages, _message_of(before.answer)]
        if plan.with_answers:
            others = [self._kept[index] for index in plan.after if index != plan.continues and index in self._kept]
            messages += [{"role": "user", "content": other.answer.text} for other in others if other.answer.text]
        messages += [_as_user(message) for message in new] if messages else new
        if plan.answer_uses:
            self._asked[plan.index] = messages
        return messages

    def history_tokens(self, plan: RequestPlan) -> int | None:
        """Tokens of the conversation that a request goes on with; None where there is none, or they are not counted."""
        before = self._kept.get(plan.continues) if plan.continues is not None else None
        return before.answer.tokens if before is not None else None

    def keep(self, plan: RequestPlan, answer: Answer) -> None:
        """A request was answered; its answer is kept for those that tell it."""
        messages = self._asked.pop(plan.index, [])
        if plan.answer_uses:
            self._kept[plan.index] = _Kept(messages, answer)
            self._uses[plan.index] = plan.answer_uses

    def release(self, plan: RequestPlan) -> None:
        """A request has ended, or will not be sent: it tells nothing any more."""
        self._asked.pop(plan.index, None)
        told = set(plan.after if plan.with_answers else ())
        for index in (*told, *(() if plan.continues is None else (plan.continues,))):
            if index in self._uses:
                self._uses[index] -= 1
                if self._uses[index] <= 0:
                    del self._uses[index], self._kept[index]


def _message_of(answer: Answer) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": answer.text}
    return message | {"reasoning_content": answer.reasoning} if answer.reasoning else message


def _as_user(message: JsonObject) -> JsonObject:
    """The result of a tool as a user's message: the answer that was really given need not have called the tool."""
    if message.get("role") not in ("tool", "function"):
        return message
    return {"role": "user", "content": message.get("content")}
