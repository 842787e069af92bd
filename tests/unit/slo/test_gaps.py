"""Gaps between arrivals: histograms that keep quantiles, and verdicts on them."""

import numpy as np
import pytest

from surgeproof.audit_results import Audit
from surgeproof.loadgen.arrivals_codec import pack_arrivals
from surgeproof.records import StreamRecord, Verdict
from surgeproof.slo.gaps import Gaps, GapTally
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.verdict import judge
from tests.unit.slo.columns import measured

MS = 1_000_000
START = 1_800_000_000_000_000_000


def record(index: int, gaps_ms: list[float], at_s: float = 0.0, **changes: object) -> StreamRecord:
    sent = START + round(at_s * 1e9)
    arrivals = np.cumsum([50.0, *gaps_ms])
    values: dict[str, object] = {
        "plan_index": index, "request_class": "P0", "planned_input_tokens": 1, "planned_output_tokens": 1,
        "intended_at_ns": sent, "outcome": "ok",
        "arrivals": pack_arrivals(sent, [sent + round(a * MS) for a in arrivals]),
    }  # fmt: skip
    return StreamRecord(**values | changes)  # type: ignore[arg-type]


def tallied(records: list[StreamRecord]) -> Gaps:
    tally = GapTally()
    tally.add(records)
    return Gaps(tally.packed())


def test_quantiles_are_kept_to_half_a_per_cent() -> None:
    gaps = np.random.default_rng(0).lognormal(3, 0.8, 20_000)
    found = tallied([record(i, list(part)) for i, part in enumerate(np.array_split(gaps, 100))])
    figures = found.distribution_ms("P0", (0.5, 0.99))
    assert figures.n == 20_000
    assert figures.p50 == pytest.approx(np.quantile(gaps, 0.5), rel=0.006)
    assert figures.p99 == pytest.approx(np.quantile(gaps, 0.99), rel=0.006)
    assert figures.mean == pytest.approx(gaps.mean(), rel=0.002)


def test_the_first_arrival_failures_and_warm_up_are_no_gaps() -> None:
    found = tallied(
        [record(0, [10.0]), record(1, [10.0], outcome="error:reset"), record(2, [10.0], phase="warmup"), record(3, [])]
    )
    assert found.distribution_ms("all", (0.5,)).n == 1


def test_parts_add_up_and_stored_ones_are_taken_up() -> None:
    records = [record(i, [float(i + 1)], at_s=i) for i in range(60)]
    whole, parts, later = GapTally(START), GapTally(START), GapTally(START)
    whole.add(records)
    parts.add(records[:25])
    later.include(parts.packed())
    later.add(records[25:])
    assert list(later.packed()) == list(whole.packed())


def verdict(text: str, blocks: int, slow_every: int) -> Verdict:
    """Blocks of ten seconds with a hundred gaps of 20 ms each, every n-th of 80 ms."""
    records = [
        record(b, [80.0 if i % slow_every == 0 else 20.0 for i in range(100)], at_s=10.0 * b) for b in range(blocks)
    ]
    run = Measured(measured([50.0]).columns, tallied(records))
    (found,) = judge(run, parse_objectives({"P0": (text,)}), Audit())
    return found.verdict


def test_rules_on_gaps_are_judged_by_how_blocks_differ() -> None:
    assert verdict("inter_chunk p90 < 50ms", 20, 50) is Verdict.PASS
    assert verdict("inter_chunk p99 < 50ms", 20, 10) is Verdict.FAIL
    assert verdict("inter_chunk < 50ms for 95%", 20, 50) is Verdict.PASS
    assert verdict("inter_chunk mean < 30ms", 20, 50) is Verdict.PASS
    assert verdict("inter_chunk max < 50ms", 20, 50) is Verdict.FAIL
    # Seventy seconds are seven blocks: too few to know how much they differ.
    assert verdict("inter_chunk p90 < 50ms", 7, 50) is Verdict.INCONCLUSIVE


def test_events_of_one_read_are_one_arrival() -> None:
    found = tallied([record(0, [10.0, 0.0, 0.0, 10.0])])
    assert found.distribution_ms("all", (0.5,)).n == 2


def test_few_gaps_without_a_miss_show_no_high_quantile() -> None:
    """Eight blocks of one gap each do not differ, and say little: 99.99 % needs 29,956."""
    records = [record(b, [20.0], at_s=10.0 * b) for b in range(8)]
    run = Measured(measured([50.0] * 8).columns, tallied(records))
    (found,) = judge(run, parse_objectives({"P0": ("inter_chunk p99.99 < 60ms",)}), Audit())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "29948 more gaps" in found.reason


def test_failed_requests_miss_their_gaps() -> None:
    """Half of the requests time out: half of the gaps are missed, and no quantile above the half is finite."""
    records = [record(b, [20.0] * 100, at_s=10.0 * b) for b in range(20)]
    outcomes = ["ok", "error:timeout"] * 20
    run = Measured(measured([50.0] * 40, outcome=outcomes).columns, tallied(records))
    for rule in ("inter_chunk p99 < 60ms", "inter_chunk max < 60ms"):
        (found,) = judge(run, parse_objectives({"P0": (rule,)}), Audit())
        assert found.verdict is Verdict.FAIL, rule
    (found,) = judge(run, parse_objectives({"P0": ("inter_chunk p99 < 60ms",)}), Audit())
    assert (found.observed, found.attainment) == (None, pytest.approx(0.5))
