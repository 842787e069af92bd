"""Tasks as one record each: duration, outcome, rules on them, figures by turn."""

from typing import Any

import pytest

from surgeproof.columns import RecordColumns
from surgeproof.outcomes import Outcome
from surgeproof.records import Verdict
from surgeproof.slo.measured import Measured
from surgeproof.slo.rule_verdicts import judge_rule
from surgeproof.slo.rules import parse_rule
from surgeproof.slo.tasks import FAILED, of_tasks, summarise_tasks

S = 1_000_000_000


def measured(*rows: dict[str, Any]) -> Measured:
    """Requests with times in seconds."""
    defaults = {"request_class": "P1", "phase": "main", "outcome": "ok", "worker": 0, "step": 0}
    full = [
        defaults
        | {"plan_index": number, "intended_at_ns": round(row["at"] * S), "sent_at_ns": round(row["at"] * S)}
        | ({"done_at_ns": round(row["done"] * S)} if "done" in row else {"sent_at_ns": None})
        | {key: value for key, value in row.items() if key not in ("at", "done")}
        for number, row in enumerate(rows)
    ]
    names = {name for row in full for name in row}
    return Measured(RecordColumns.of({name: [row.get(name) for row in full] for name in names}))


def two_steps(task: int, start: float, end: float, outcome: str = "ok") -> list[dict[str, Any]]:
    return [
        {"task": task, "turn": 0, "at": start, "done": start + 0.5},
        {"task": task, "turn": 1, "at": start + 1, "done": end, "outcome": outcome},
    ]


def test_a_task_lasts_from_its_first_plan_to_its_last_answer() -> None:
    tasks = of_tasks(measured(*two_steps(4, 10, 13), {"at": 11, "done": 12}, *two_steps(9, 10.5, 12)))
    assert tasks.latency_ms("task").tolist() == [3000, 1500]
    assert tasks.ok.tolist() == [True, True]


@pytest.mark.parametrize(
    ("outcomes", "right"),
    [
        (("ok", "ok"), "ok"),
        (("ok", "stopped"), "ok"),
        (("error:reset", "skipped"), FAILED),
        (("ok", "error:timeout"), FAILED),
        (("ok", "skipped"), FAILED),
        (("cancelled", "skipped"), "cancelled"),
        (("cancelled", "error:reset"), FAILED),
        (("ok", "cancelled"), "cancelled"),
        (("ok", "not_sent"), "not_sent"),
    ],
)
def test_the_outcome_of_a_task_is_the_worst_of_its_requests(outcomes: tuple[str, str], right: str) -> None:
    rows = [{"task": 0, "at": n, "done": n + 1, "outcome": outcome} for n, outcome in enumerate(outcomes)]
    assert of_tasks(measured(*rows)).texts["outcome"].values().tolist() == [right]


def test_a_rule_on_tasks_counts_tasks_and_failed_ones_miss() -> None:
    """Of 400 tasks of two requests, 3 s each, 40 fail: 90 % meet a bound of 4 s."""
    rows = [
        row
        for number in range(400)
        for row in two_steps(number, number, number + 3, "error:reset" if number % 10 == 0 else "ok")
    ]
    verdict = judge_rule(measured(*rows), "all", parse_rule("task p95 < 4s"))
    assert (verdict.n, verdict.attainment, verdict.verdict) == (400, 0.9, Verdict.FAIL)
    loose = judge_rule(measured(*rows), "all", parse_rule("task p80 < 4s"))
    assert (loose.verdict, loose.observed) == (Verdict.PASS, 3000.0)
    assert judge_rule(measured(*rows), "P0", parse_rule("task p80 < 4s")).n == 0
    rate = judge_rule(measured(*rows), "all", parse_rule("tasks_per_hour > 3000"))
    # One begins each second, and nine of ten are done.
    assert rate.observed == pytest.approx(0.9 * 3600, rel=0.03)
    assert rate.verdict is Verdict.PASS


def test_rules_look_at_requests_by_their_turn() -> None:
    rows = [row for number in range(400) for row in two_steps(number, number, number + 3)]
    first = judge_rule(measured(*rows), "all", parse_rule("e2e p90 < 1s where turn = 0"))
    later = judge_rule(measured(*rows), "all", parse_rule("e2e p90 < 1s where turn >= 1"))
    assert (first.n, first.observed, first.verdict) == (400, 500.0, Verdict.PASS)
    assert (later.n, later.observed, later.verdict) == (400, 2000.0, Verdict.FAIL)


def test_figures_of_tasks_and_turns() -> None:
    rows = [
        {"task": 0, "turn": 0, "at": 0, "done": 1, "input_tokens": 100, "cached_tokens": 0, "planned_cached_tokens": 0},
        {"task": 0, "turn": 1, "at": 2, "done": 4, "input_tokens": 300, "cached_tokens": 144,
         "planned_cached_tokens": 150},
        {"task": 1, "turn": 0, "at": 1, "done": 2, "outcome": "error:reset"},
        {"task": 1, "turn": 1, "at": 1, "outcome": Outcome.SKIPPED},
    ]  # fmt: skip
    figures = summarise_tasks(measured(*rows))
    assert figures is not None
    assert (figures.tasks, figures.done, figures.failed, figures.requests, figures.skipped) == (2, 1, 1, 4, 1)
    assert figures.duration_ms.p50 == 4000.0
    assert [turn.turn for turn in figures.turns] == ["0", "1"]
    assert (figures.turns[1].planned_cached_share, figures.turns[1].cached_share) == (0.5, 0.48)
    assert summarise_tasks(measured({"at": 0, "done": 1})) is None
