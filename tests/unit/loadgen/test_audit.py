"""The client's audit: each breach is found, named and comes with a remedy."""

from typing import Any

import numpy as np
import pytest

from surgeproof.audit_results import Audit, AuditCheck, Effect
from surgeproof.columns import RecordColumns
from surgeproof.loadgen.audit import audit_run, with_objectives
from surgeproof.loadgen.token_audit import cache_checks, prompt_checks
from surgeproof.records import HealthSample, Verdict, WorkerFacts
from surgeproof.send_lag import own_lag_ms
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.verdict import judge
from surgeproof.slo.wording import cap_line
from tests.unit.slo.columns import measured

MS = 1_000_000


def columns(count: int = 100, lag_ms: float = 0.2, **changes: Any) -> dict[str, Any]:
    planned = [index * 10 * MS for index in range(count)]
    return {
        "intended_at_ns": planned,
        "sent_at_ns": [at + round(lag_ms * MS) for at in planned],
        "connect_at_ns": [None] * count,
        "connected_at_ns": [None] * count,
        "done_at_ns": [at + 200 * MS for at in planned],
        "worker": [0] * count,
        "outcome": ["ok"] * count,
        "output_tokens": [400] * count,
        "planned_output_tokens": [400] * count,
        "input_tokens": [110] * count,
        "planned_input_tokens": [100] * count,
    } | changes


def sample(**changes: Any) -> HealthSample:
    values = {"at_ns": 0, "cpu_share": 0.3, "loop_lag_ns": MS, "gc_pause_ns": 0, "in_flight": 1, "waiting": 0}
    return HealthSample(**values | {"clock_step_ns": 0} | changes)


def breaches(held: dict[str, Any], health: dict[int, list[HealthSample]] | None = None, **options: Any) -> set[str]:
    settings = {"open_loop": True, "interrupted": False, "tightest_ms": None, "cap": 1000} | options
    audit = audit_run(RecordColumns.of(held), health or {0: [sample()]}, **settings)
    assert all(check.remedy for check in audit.breaches)
    return {check.name for check in audit.breaches}


def test_a_healthy_client_passes() -> None:
    assert breaches(columns()) == set()


def test_late_sends_void_the_run() -> None:
    assert "send_lag_p99" in breaches(columns(lag_ms=6))


def test_the_lag_limit_follows_the_tightest_objective() -> None:
    """2 % of 800 ms is 16 ms."""
    assert breaches(columns(lag_ms=6), tightest_ms=800.0) == set()


def test_time_to_connect_is_not_the_clients() -> None:
    held = columns(lag_ms=50)
    held["connect_at_ns"] = held["intended_at_ns"]
    held["connected_at_ns"] = [at + 49 * MS for at in held["intended_at_ns"]]
    assert own_lag_ms(RecordColumns.of(held), np.zeros(len(held["intended_at_ns"]))).max() == pytest.approx(1.0)
    assert breaches(held) == set()


def test_unsent_plans_void_the_run_unless_the_user_ended_it() -> None:
    held = columns(outcome=["ok"] * 99 + ["not_sent"])
    assert breaches(held) == {"not_sent"}
    assert breaches(held, interrupted=True) == set()


def test_a_rate_that_was_not_reached_voids_the_run() -> None:
    """183.5 instead of 200 a second: the planned second took 9 % longer."""
    held = columns(400)
    held["sent_at_ns"] = [round(at * 200 / 183.5) for at in held["intended_at_ns"]]
    assert {"achieved_rate_error", "send_lag_p99"} <= breaches(held)


def test_bursts_that_were_smoothed_void_the_run() -> None:
    """Eighty requests at every other second, sent evenly instead."""
    held = columns(1600)
    held["intended_at_ns"] = [(index // 80) * 2000 * MS for index in range(1600)]
    held["sent_at_ns"] = [index * 25 * MS for index in range(1600)]
    assert "dispersion_error" in breaches(held)


def test_waiting_for_the_cap_is_the_servers_and_has_a_figure_of_its_own() -> None:
    """100 requests 10 ms apart, 2 at a time, 100 ms each: two leave every 100 ms, the last 4,900 - 990 ms late."""
    sent = [(index // 2) * 100 * MS + (index % 2) * 10 * MS for index in range(100)]
    held = columns(sent_at_ns=sent, done_at_ns=[at + 100 * MS for at in sent])
    assert breaches(held) >= {"send_lag_p99", "achieved_rate_error"}
    assert breaches(held, cap=2) == set()
    audit = audit_run(RecordColumns.of(held), {}, open_loop=True, interrupted=False, tightest_ms=None, cap=2)
    assert audit.cap_wait is not None
    assert (audit.cap_wait.cap, audit.cap_wait.requests, audit.cap_wait.sent) == (2, 98, 100)
    assert audit.cap_wait.p99_ms == pytest.approx(3920, abs=20)
    assert "waited for one of the 2 places" in (cap_line(audit) or "")


def test_a_client_that_is_late_beyond_the_cap_is_not_excused() -> None:
    sent = [(index // 2) * 100 * MS + (index % 2) * 10 * MS + 20 * MS * (index > 1) for index in range(100)]
    done = [at + 80 * MS for at in sent]
    assert "send_lag_p99" in breaches(columns(sent_at_ns=sent, done_at_ns=done), cap=2)


def test_a_busy_worker_is_named() -> None:
    found = audit_run(
        RecordColumns.of(columns()),
        {0: [sample()], 1: [sample(cpu_share=0.99)]},
        open_loop=True,
        interrupted=False,
        tightest_ms=None,
        cap=1000,
    )
    assert "worker 1: 99%" in found.breaches[0].remedy


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"loop_lag_ns": 200 * MS}, "loop_lag_p99"),
        ({"gc_pause_ns": 80 * MS}, "gc_pause_max"),
        ({"clock_step_ns": -2000 * MS}, "clock_step_max"),
    ],
)
def test_a_stalled_client_voids_the_run(change: dict[str, int], name: str) -> None:
    assert breaches(columns(), {0: [sample(**change)]}) == {name}


@pytest.mark.parametrize(("vague", "tightest_ms", "found"), [(6, None, True), (5, None, False), (6, 800.0, False)])
def test_first_tokens_that_are_known_too_vaguely_void_the_run(
    vague: int, tightest_ms: float | None, found: bool
) -> None:
    """Six of a hundred may have come 8 ms earlier: over 5 ms, under 2 % of 800 ms; five are 5 %."""
    first = [index * 10 * MS + 50 * MS for index in range(100)]
    early = [at - 8 * MS if index < vague else at for index, at in enumerate(first)]
    held = columns(first_token_at_ns=first, first_token_not_before_at_ns=early)
    assert ("merged_first_tokens_share" in breaches(held, tightest_ms=tightest_ms)) is found


def test_late_reads_of_single_events_cost_nothing() -> None:
    """Ten thousand streams on one core are read late; the kernel's stamps are exact all the same."""
    first = [index * 10 * MS + 50 * MS for index in range(100)]
    held = columns(first_token_at_ns=first, first_token_not_before_at_ns=first)
    assert breaches(held, {0: [sample(reads=1000, late_reads=300)]}) == set()


def taken(**changes: Any) -> dict[int, list[HealthSample]]:
    """Ten samples of half a second, each of which lost as much."""
    return {0: [sample(at_ns=i * 500 * MS, **changes) for i in range(10)]}


def test_a_throttled_client_voids_the_run() -> None:
    """A quota that stops the group for 60 of 500 ms each time; 2 ms are 0.4 %."""
    assert breaches(columns(), taken(throttled_ns=60 * MS)) == {"cpu_throttled_share"}
    assert breaches(columns(), taken(throttled_ns=2 * MS)) == set()


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({"throttled_ns": 60 * MS}, "a CPU quota stopped the client for 12% of the time"),
        ({"steal_ns": 60 * MS}, "the hypervisor ran other guests for 12% of the time"),
        ({"run_delay_ns": 60 * MS}, "other programs had the cores for 12% of the time"),
        ({"cpu_share": 0.9}, "a worker was busy for 90% of a core; use more worker processes"),
        ({}, "nothing that this host counts explains it"),
    ],
)
def test_the_remedy_names_the_cause(lost: dict[str, Any], words: str) -> None:
    held = RecordColumns.of(columns(lag_ms=9))
    options: dict[str, Any] = {"open_loop": True, "interrupted": False, "tightest_ms": None, "cap": 1000}
    (lag,) = [check for check in audit_run(held, taken(**lost), **options).checks if check.name == "send_lag_p99"]
    assert words in lag.remedy


def test_requests_that_failed_on_this_host_void_everything() -> None:
    """40 of 100 found no port: neither latencies nor the share that was answered are the server's."""
    outcome = ["error:client_resource"] * 40 + ["ok"] * 60
    held = columns(outcome=outcome)
    assert breaches(held) == {"client_resource"}
    audit = audit_run(
        RecordColumns.of(held), {0: [sample()]}, open_loop=True, interrupted=False, tightest_ms=None, cap=9
    )
    run = measured([100.0] * 100, outcome=outcome)
    (verdict,) = judge(run, parse_objectives({"all": ("success >= 99%",)}), audit)
    assert verdict.verdict is Verdict.INVALID
    assert "ulimit -n" in verdict.reason


def test_two_requests_of_sixty_that_left_late_are_no_pattern() -> None:
    """The p99 of 60 is the largest; from 200 requests on the third largest is no more than the p99."""
    held = columns(60)
    for late in (20, 40):
        held["sent_at_ns"][late] += 30 * MS
    assert breaches(held) == set()
    held["sent_at_ns"][50] += 30 * MS
    assert breaches(held) == {"send_lag_p99"}


PLANNED = [100 + index for index in range(100)]


@pytest.mark.parametrize(
    ("planned", "counted", "found"),
    [
        ([100] * 100, [280] * 100, None),  # a template of 180 tokens, or long words: it cannot be told
        (PLANNED, [180 + tokens for tokens in PLANNED], None),  # a template: one token for each planned one
        (PLANNED, [2 * tokens for tokens in PLANNED], Effect.MORE_LOAD),
        (PLANNED, [180 + tokens // 2 for tokens in PLANNED], Effect.LESS_LOAD),
        ([100] * 100, [60] * 100, Effect.LESS_LOAD),
        ([100] * 100, [None] * 100, None),
    ],
)
def test_prompts_longer_or_shorter_than_planned_are_told_from_a_template(
    planned: list[int], counted: list[int | None], found: Effect | None
) -> None:
    held = RecordColumns.of(columns(planned_input_tokens=planned, input_tokens=counted))
    breached = [check for check in prompt_checks(held, np.ones(100, dtype=bool)) if not check.passed]
    assert [check.effects for check in breached] == ([(found,)] if found else [])


def test_prompts_of_a_dataset_are_not_judged_and_those_beside_them_are() -> None:
    """Half of the prompts are a dataset's, of any length and from a cache; the others are half as long as planned."""
    held = RecordColumns.of(columns(input_tokens=[500] * 50 + [50] * 50, cached_tokens=[500] * 50 + [0] * 50))
    made = np.arange(100) >= 50
    for chosen, found in ((made, True), (~made, False)):
        assert any(not check.passed for check in prompt_checks(held, chosen)) is found
    assert all(check.passed for check in cache_checks(held, made, np.zeros(100, dtype=np.int64)))


def test_tokens_from_a_cache_that_the_plan_does_not_share_are_a_breach() -> None:
    """A thousand tokens a prompt, 400 shared by the plan and 80 a template; what is more is another run's."""
    held = columns(planned_input_tokens=[1000] * 100, input_tokens=[1080] * 100)
    shared = np.full(100, 400)
    for cached, found in ((0, False), (400 + 80 + 64, False), (1000, True), (None, False)):
        made = np.ones(100, dtype=bool)
        checks = cache_checks(RecordColumns.of(held | {"cached_tokens": [cached] * 100}), made, shared)
        assert [check.effects for check in checks if not check.passed] == ([(Effect.LESS_LOAD,)] if found else [])


def test_answers_that_end_early_though_they_must_not_are_found() -> None:
    """2 of 400 tokens: a breach only where full lengths were asked for."""
    short = columns(output_tokens=[2] * 100)
    assert breaches(short) == set()
    assert breaches(short, fixed_lengths=True) == {"output_tokens_missing"}
    assert breaches(columns(output_tokens=[390] * 100), fixed_lengths=True) == set()
    assert breaches(columns(output_tokens=[None] * 100), fixed_lengths=True) == set()


def test_records_that_cannot_be_read_void_everything() -> None:
    held = columns()
    audit = audit_run(
        RecordColumns.of(held), {0: [sample()]}, open_loop=True, interrupted=False, tightest_ms=None, cap=9,
        damaged_bytes=37,
    )  # fmt: skip
    (verdict,) = judge(measured([100.0] * 100), parse_objectives({"all": ("success >= 99%",)}), audit)
    assert verdict.verdict is Verdict.INVALID
    assert "records are missing" in verdict.reason


def test_a_load_generator_that_failed_voids_everything() -> None:
    """In a closed loop no planned request tells that records are missing."""
    audit = audit_run(
        RecordColumns.of(columns()), {0: [sample()]}, open_loop=False, interrupted=False, tightest_ms=None, cap=9,
        broken=True,
    )  # fmt: skip
    assert [check.name for check in audit.breaches] == ["load_generator_failed"]
    (verdict,) = judge(measured([100.0] * 100), parse_objectives({"all": ("success >= 99%",)}), audit)
    assert verdict.verdict is Verdict.INVALID


def test_nothing_measured_is_no_crash() -> None:
    empty = {name: [] for name in columns()}
    assert breaches(empty, {}) == set()


def test_a_lost_worker_and_a_vague_clock_are_named() -> None:
    held = RecordColumns.of(columns())
    lost = WorkerFacts(1, "b", failure_reason="stopped answering about 7 s after the start")
    audit = audit_run(
        held, {}, (WorkerFacts(0, "a"), lost), open_loop=True, interrupted=False, tightest_ms=None, cap=1000
    )
    assert [check.name for check in audit.breaches] == ["workers_lost"]
    assert audit.breaches[0].remedy == "worker 1 on b stopped answering about 7 s after the start"
    vague = WorkerFacts(0, "a", clock_uncertainty_ns=5_100_000)
    audit = audit_run(held, {}, (vague,), open_loop=True, interrupted=False, tightest_ms=None, cap=1000)
    assert [check.name for check in audit.breaches] == ["clock_uncertainty_max"]


def test_an_audit_is_with_objectives_other_objectives() -> None:
    """185 ms of lag are 2 % of nothing that asks for 50 ms, and allowed under an objective of a minute."""
    lag = AuditCheck("send_lag_p99", 185.0, 1200.0, "ms", True, "")
    other = AuditCheck("loop_lag_p99", 3.0, 100.0, "ms", True, "")
    held = with_objectives(Audit((lag, other)), 50.0)
    assert [check.name for check in held.breaches] == ["send_lag_p99"]
    assert held.checks[0].limit == 5.0
    assert not with_objectives(held, 60_000.0).breaches
