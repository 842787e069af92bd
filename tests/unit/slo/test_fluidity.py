"""The fluidity index by hand-made answers, and rules on it."""

import numpy as np
import pytest

from surgeproof.audit_results import Audit
from surgeproof.errors import RuleError
from surgeproof.loadgen.arrivals_codec import pack_arrivals
from surgeproof.records import Verdict
from surgeproof.slo.fluidity import fluidity
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives, parse_rule
from surgeproof.slo.verdict import judge
from tests.unit.slo.columns import EPOCH_NS, measured

MS = 1_000_000


@pytest.mark.parametrize(
    ("arrivals", "index"),
    [
        ([90, 130, 170, 210], 1.0),  # due at 100, 150, 200, 250
        ([110, 150, 190, 230], 0.75),  # the first misses; from 110 on due at 160, 210, 260
        ([90, 91, 92, 240], 1.0),  # time won early pays for the wait
        ([90, 130, 400, 440], 3 / 8),  # a stall of 270, 20 of it saved up, is five misses; from 400 on due at 450
        ([90, 130, 400, 460, 520], 2 / 9),  # and each later gap above 50 one more
        ([*range(90, 9_990, 50), 60_000], 198 / 1199),  # a minute of silence after 198 good arrivals: 1,001 misses
        ([], 0.0),
    ],
)
def test_deadlines_carry_forward_and_start_anew_after_a_miss(arrivals: list[float], index: float) -> None:
    assert fluidity(np.array(arrivals, dtype=np.float64), 100.0, 50.0) == index


@pytest.mark.parametrize("per_event", [1, 2, 4])
def test_tokens_that_come_together_are_not_late(per_event: int) -> None:
    """30 ms a token under deadlines of 50 ms is fluent however many tokens an event carries, as Etalon has it."""
    count = 120 // per_event
    at = [90 + 30 * per_event * i for i in range(count)]
    packed = {0: pack_arrivals(EPOCH_NS, [EPOCH_NS + a * MS for a in at])}
    span_ms, tokens = at[-1] - at[0], 120
    held = measured(
        [90.0], tpot_ms=[span_ms / (tokens - 1)], last_token_at_ns=[EPOCH_NS + at[-1] * MS], output_tokens=[tokens]
    )
    assert Measured(held.columns, None, packed).fluidity(100.0, 50.0)[0] == 1.0


def test_a_stall_among_events_of_several_tokens_is_seen() -> None:
    """Two tokens an event: at 90 and 150 ms, then at 1,000: due at 300 (50 x 4 after 100), 700 late, 15 misses."""
    at = [90, 150, 1000]
    packed = {0: pack_arrivals(EPOCH_NS, [EPOCH_NS + a * MS for a in at])}
    held = measured([90.0], tpot_ms=[910 / 5], last_token_at_ns=[EPOCH_NS + 1000 * MS])
    assert Measured(held.columns, None, packed).fluidity(100.0, 50.0)[0] == pytest.approx(5 / 20)


def test_rules_on_fluidity_are_judged() -> None:
    """Of 400 answers every hundredth stalls once in four arrivals: 99 % reach an index of 90 %."""
    packed = {}
    for i in range(400):
        sent = EPOCH_NS + i * 10 * MS
        at = [90, 130, 400, 440] if i % 100 == 0 else [90, 130, 170, 210]
        packed[i] = pack_arrivals(sent, [sent + a * MS for a in at])
    run = Measured(measured([90.0] * 400).columns, None, packed)
    texts = ("fluidity 100ms/50ms >= 90% for 95%", "fluidity 100ms/50ms >= 90% for 99.9%", "fluidity 100ms/50ms >= 95%")
    first, second, third = judge(run, parse_objectives({"P0": texts}), Audit())
    assert (first.verdict, first.observed) == (Verdict.PASS, 0.99)
    assert second.verdict is Verdict.FAIL
    assert (third.verdict, third.observed) == (Verdict.PASS, pytest.approx(0.99375))
    (none,) = judge(measured([90.0] * 400), parse_objectives({"P0": texts[:1]}), Audit())
    assert none.verdict is Verdict.INCONCLUSIVE


def test_the_deadlines_are_read_with_their_units() -> None:
    rule = parse_rule("fluidity 0.5s/50ms >= 90% for 99%")
    assert (rule.deadlines_ms, rule.quantile, rule.conditions[0].bound) == ((500.0, 50.0), 0.99, 0.9)
    with pytest.raises(RuleError, match="fluidity 500ms/50ms"):
        parse_rule("fluidity > 3")


def test_answers_without_arrivals_can_turn_a_verdict() -> None:
    """Arrivals of 400 answers of 10,000 say nothing of the others, nor do 30 failures alone."""
    packed = {i: pack_arrivals(EPOCH_NS, [EPOCH_NS + a * MS for a in (90, 130, 170)]) for i in range(400)}
    rules = parse_objectives({"P0": ("fluidity 10s/50ms >= 90% for 95%",)})
    few = Measured(measured([90.0] * 10_000).columns, None, packed)
    assert judge(few, rules, Audit())[0].verdict is Verdict.INCONCLUSIVE
    failed = measured([90.0] * 10_000, outcome=["error:reset"] * 30 + ["ok"] * 9_970)
    assert judge(failed, rules, Audit())[0].verdict is Verdict.INCONCLUSIVE
