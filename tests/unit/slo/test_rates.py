"""Rates in steady state: known loads, what the window leaves out, and steps of a ladder."""

import numpy as np
import pytest

from surgeproof.audit_results import Audit
from surgeproof.records import Verdict
from surgeproof.results import RuleVerdict
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge
from tests.unit.slo.columns import EPOCH_NS, MS, measured


def judged(held: Measured, *rules: str) -> list[RuleVerdict]:
    return judge(held, parse_objectives({"all": rules}), Audit())


def test_one_request_that_hangs_does_not_halve_a_rate() -> None:
    """600 requests at 10/s, of which one takes a minute longer: 10/s, not 600 in 120 s."""
    e2e: list[float | None] = [500.0] * 600
    e2e[300] = 90_000.0
    held = measured([100.0] * 600, e2e_ms=e2e, every_ms=100.0)
    assert summarise(held).total.requests_per_s == pytest.approx(10.0, rel=0.01)
    (found,) = judged(held, "requests_per_s >= 9")
    assert found.verdict is Verdict.PASS
    assert "from the first answers on (there was no warm-up) to the end of the load" in found.reason


def test_a_server_that_keeps_up_has_the_rate_that_is_sent() -> None:
    """Answers of 5 s at 10/s for 60 s: 50 are in flight, and 10/s is inside the bounds of what is answered."""
    figures = summarise(measured([100.0] * 600, e2e_ms=[5000.0] * 600, every_ms=100.0)).total
    assert figures.load is not None
    assert figures.load.planned_per_s == pytest.approx(10.0, rel=0.01)
    assert figures.load.sent_per_s == pytest.approx(10.0, rel=0.01)
    assert figures.load.in_flight == pytest.approx(50.0, rel=0.01)
    assert figures.requests_per_s == pytest.approx(10.0, rel=0.01)
    bounds = figures.bounds["requests_per_s"]
    assert bounds.low is not None
    assert bounds.high is not None
    assert bounds.low <= 10.0 <= bounds.high + 1e-9


def test_a_server_that_falls_behind_has_the_rate_at_which_it_answers() -> None:
    """A queue of 10/s in front of 5/s: half is answered, though all are in the end."""
    e2e: list[float | None] = [200.0 * (i + 1) - 100.0 * i for i in range(600)]
    figures = summarise(measured([100.0] * 600, e2e_ms=e2e, every_ms=100.0)).total
    assert figures.ok == 600
    assert figures.requests_per_s == pytest.approx(5.0, rel=0.02)
    assert figures.load is not None
    assert figures.load.sent_per_s == pytest.approx(10.0, rel=0.01)


def test_tokens_count_when_they_arrive() -> None:
    """100 tokens from 0 to 10 s after the plan, one request a second for 60 s, warm-up 20 s: 100 tokens/s at once."""
    intended = [EPOCH_NS + i * 1000 * MS for i in range(60)]
    held = measured(
        [0.0] * 60,
        e2e_ms=[10_000.0] * 60,
        every_ms=1000.0,
        last_token_at_ns=[at + 10_000 * MS for at in intended],
        phase=["warmup"] * 20 + ["main"] * 40,
    )
    figures = summarise(held).total
    assert figures.load is not None
    assert (figures.load.start_s, figures.load.end_s) == (20.0, 59.0)
    assert figures.load.window == "over 39 s, from the end of the warm-up to the end of the load"
    assert figures.output_tokens_per_s == pytest.approx(100.0, rel=0.01)
    bounds = figures.bounds["output_tokens_per_s"]
    assert bounds.low is not None
    assert bounds.low > 97.0


def test_a_load_that_is_sent_at_once_lasts_until_its_last_answer() -> None:
    """50 requests in a moment, answered one every 100 ms: 10/s over 5 s."""
    held = measured([50.0] * 50, e2e_ms=[100.0 * (i + 1) for i in range(50)], every_ms=0.0)
    figures = summarise(held).total
    assert figures.load is not None
    assert figures.load.end_s == pytest.approx(5.0)
    assert figures.requests_per_s == pytest.approx(10.0)


def ladder() -> Measured:
    """2 users for 30 s and 4 for 30 s, answers of 1 s: 2/s and 4/s; the first 10 s of the second step warm up."""
    starts = [(second, 2) for second in range(30) for _ in range(2)]
    starts += [(second, 4) for second in range(30, 60) for _ in range(4)]
    intended = [EPOCH_NS + second * 1000 * MS for second, _ in starts]
    latency = [100.0 if step == 2 else 400.0 for _, step in starts]
    return Measured(
        measured(
            [0.0] * len(starts),
            intended_at_ns=intended,
            sent_at_ns=intended,
            first_token_at_ns=[at + round(ms * MS) for at, ms in zip(intended, latency, strict=True)],
            done_at_ns=[at + 1000 * MS for at in intended],
            step=[step for _, step in starts],
            phase=["warmup" if 30 <= second < 40 else "main" for second, _ in starts],
        ).columns,
        closed_loop=True,
    )


def test_every_step_of_a_ladder_is_judged_by_itself() -> None:
    rules = ("ttft p90 < 300ms", "requests_per_s >= 3", "ttft p50 < 300ms where step = 2")
    found = [(one.rule, one.verdict) for one in judged(ladder(), *rules)]
    assert found == [
        ("ttft p90 < 300ms where step = 2", Verdict.PASS),
        ("ttft p90 < 300ms where step = 4", Verdict.FAIL),
        ("requests_per_s >= 3 where step = 2", Verdict.FAIL),
        ("requests_per_s >= 3 where step = 4", Verdict.PASS),
        ("ttft p50 < 300ms where step = 2", Verdict.PASS),
    ]


def test_the_rate_of_a_step_is_of_its_own_time() -> None:
    steps = summarise(ladder()).steps
    assert steps["2"].requests_per_s == pytest.approx(2.0, rel=0.05)
    assert steps["4"].requests_per_s == pytest.approx(4.0, rel=0.05)
    assert steps["4"].load is not None
    assert steps["4"].load.start_s == 40.0


def test_a_rule_keeps_its_conditions_when_it_is_judged_by_step() -> None:
    (first, _) = parse_objectives({"all": ("ttft p99 < 1s where input < 50 with stalls of 2s",)}).by_step([2, 4])
    assert first[1].text == "ttft p99 < 1s where input < 50 and step = 2 with stalls of 2s"
    assert first[1].stall_s == 2.0


@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_a_rate_contain_it(seed: int) -> None:
    """Poisson arrivals at 20/s, exponential answers of 3 s; the bounds are 95 % on each side."""
    rng = np.random.default_rng(seed)
    at_ms = np.cumsum(rng.exponential(50.0, 4000))
    intended = [EPOCH_NS + round(at * MS) for at in at_ms]
    took = rng.exponential(3000.0, 4000)
    held = measured(
        [1.0] * 4000, intended_at_ns=intended, sent_at_ns=intended,
        done_at_ns=[at + round(ms * MS) for at, ms in zip(intended, took, strict=True)],
    )  # fmt: skip
    bounds = summarise(held).total.bounds["requests_per_s"]
    assert bounds.low is not None
    assert bounds.high is not None
    assert bounds.low <= 20.0 <= bounds.high
