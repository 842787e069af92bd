"""Why requests failed: by outcome, with the commonest sentence and the way out where it is known. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from surgeproof.results import Failure

_NUMBERS = re.compile(r"[0-9a-fA-F]{6,}|\d+")
_SHOWN = 8
"""Outcomes that are listed; there are hardly more."""
WAYS_OUT = (
    ("http_401", "", "set OPENAI_API_KEY, or give --header; --api-key-command for a key that expires"),
    ("http_403", "", "set OPENAI_API_KEY, or give --header"),
    ("http_404", "", "check the base URL, which usually ends in /v1, and the model's name"),
    ("http_4", "max_tokens", "give --omit max_tokens"),
    ("http_4", "max_completion_tokens", "give --max-tokens-field max_completion_tokens"),
    ("http_4", "temperature", "give --omit temperature"),
    ("http_4", "stream_options", "give --omit stream_options"),
    ("http_4", "priority", "leave load.priorities out"),
    ("http_4", "ignore_eos", "leave --ignore-eos out"),
    ("http_429", "", "the server sheds load: lower the rate, or raise its limits"),
)
"""By the end of an outcome, and a word of the sentence."""


class FailureCount(NamedTuple):
    """How many requests of a class ended so and said this."""

    request_class: str
    outcome: str
    said: str | None
    requests: int


def failures_of(counts: Iterable[FailureCount]) -> tuple[Failure, ...]:
    """The failures of a run by outcome, the commonest first.

    Sentences that differ in their numbers only (times, ids) count as one.
    """
    by_outcome: dict[str, list[FailureCount]] = {}
    for one in counts:
        by_outcome.setdefault(one.outcome, []).append(one)
    found = [_failure(outcome, group) for outcome, group in by_outcome.items()]
    return tuple(sorted(found, key=lambda failure: -failure.count))


def _failure(outcome: str, group: Sequence[FailureCount]) -> Failure:
    classes: Counter[str] = Counter()
    forms: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for one in group:
        classes[one.request_class] += one.requests
        if one.said:
            form = _NUMBERS.sub("#", one.said)
            forms[form] += one.requests
            examples.setdefault(form, one.said)
    said = examples[forms.most_common(1)[0][0]] if forms else None
    return Failure(outcome, classes.total(), dict(sorted(classes.items())), said)


def together(runs: Iterable[Sequence[Failure]]) -> tuple[Failure, ...]:
    """The failures of several runs as one."""
    return failures_of(
        FailureCount(name, failure.outcome, failure.said, count)
        for failures in runs
        for failure in failures
        for name, count in failure.by_class.items()
    )


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """A line for each outcome: how many, of which classes, what was said, and what to do about it."""
    lines = []
    for failure in failures[:_SHOWN]:
        of = ", ".join(f"{name} {count}" for name, count in failure.by_class.items())
        classes = f" ({of})" if len(failure.by_class) > 1 else ""
        said = f": {failure.said}" if failure.said else ""
        remedy = way_out(failure.outcome, failure.said or "")
        lines.append(f"{failure.count} × {failure.outcome}{classes}{said}{f' [{remedy}]' if remedy else ''}")
    return lines


def way_out(outcome: str, said: str) -> str:
    """What a user can do about a failure; empty where the sentence itself must do."""
    name = outcome.removeprefix("error:")
    words = [remedy for start, word, remedy in WAYS_OUT if name.startswith(start) and word in said]
    # A word of the sentence says more than the status alone.
    return words[-1] if words else ""
