"""How often the judge is wrong, by simulation through its own functions: `python -m surgeproof.benchmarks verdicts`.

Each process is judged against a bound that is exactly its truth, where a PASS is wrong, and against
one 1.5 times as large, where it is right. Then pairs of runs are compared, and runs with a history.
Seeds are fixed, so that two versions see the same samples.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from surgeproof.audit_results import Audit
from surgeproof.benchmarks.processes import (
    TRUTH_SEED,
    Draw,
    ProfileTraffic,
    Sample,
    independent,
    measured,
    single_server,
    slow_level,
    stalls,
)
from surgeproof.records import Verdict
from surgeproof.slo.baseline import deviations
from surgeproof.slo.compare import Figure, compare, figures_of
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.verdict import judge

SIMULATIONS = 200
_PAIRS = 60
_HISTORY = 7
_REPEATED = "n = 6000"
"""Rows of this length are simulated with five repetitions, too."""
_Z99 = NormalDist().inv_cdf(0.99)
"""99 % point of the normal law."""


class Process(NamedTuple):
    """One row: how latencies come about, the rule, requests of a run, the latency that meets it exactly."""

    label: str
    draw: Draw | ProfileTraffic
    rule: str
    requests: int
    truth_ms: float
    simulations: int = SIMULATIONS
    runs: int = 1


def processes() -> list[Process]:
    """All rows, in the order of the document; building them draws the truths."""
    rows = [
        Process(f"independent, n = {count}", independent, "p99", count, math.exp(5 + 0.6 * _Z99))
        for count in (300, 1000, 3000)
    ]
    for load, counts, warmup in ((0.8, (1000, 6000, 10_000), 20_000), (0.95, (6000, 10_000), 60_000)):
        draw = single_server(load, warmup)
        truth = _quantile_of(draw, 4_000_000, 0.95)
        rows += [Process(f"M/G/1 load {load}, n = {count}", draw, "p95", count, truth) for count in counts]
    truth = math.exp(5 + math.sqrt(0.34) * _Z99)
    rows += [
        Process(f"correlation time 30 s, n = {count}", slow_level, "p99", count, truth)
        for count in (1000, 6000, 10_000)
    ]
    rows += [
        Process("twice the misses in stalls of 2.5 s, n = 1000", stalls(0.02), "p99", 1000, 100.0),
        Process("the same, stalls declared", stalls(0.02), "p99 with stalls of 2.5s", 1000, 100.0),
        Process("the same, n = 10000", stalls(0.002), "p99.9", 10_000, 100.0),
        Process("the same, n = 10000, stalls declared", stalls(0.002), "p99.9 with stalls of 2.5s", 10_000, 100.0),
    ]
    for name, run_s, quantile in (("azure-conv", 600.0, 0.95), ("mooncake-conv", 3600.0, 0.99)):
        traffic = ProfileTraffic(name, run_s)
        truth = _pooled_quantile(traffic, 40, quantile)
        label = f"{name}, {run_s / 60:.0f} minutes"
        rows.append(Process(label, traffic, f"p{quantile * 100:.0f}", 0, truth, SIMULATIONS // 2))
    repeated = (_REPEATED in row.label or "azure" in row.label for row in rows)
    return rows + [
        row._replace(label=f"{row.label}, 5 runs", simulations=SIMULATIONS // 2, runs=5)
        for row, chosen in zip(rows, repeated, strict=True)
        if chosen
    ]


def _quantile_of(draw: Draw, count: int, q: float) -> float:
    return float(np.quantile(draw(np.random.default_rng(TRUTH_SEED), count).latency_ms, q))


def _pooled_quantile(traffic: ProfileTraffic, repeats: int, q: float) -> float:
    whole = [traffic.whole(np.random.default_rng(TRUTH_SEED + seed)).latency_ms for seed in range(repeats)]
    return float(np.quantile(np.concatenate(whole), q))


def verdict_shares(process: Process, factor: float) -> dict[Verdict, float]:
    """Share of simulated runs with each verdict, at a bound of `factor` times the truth."""
    quantile, _, suffix = process.rule.partition(" ")
    rule = f"ttft {quantile} < {process.truth_ms * factor:.6f}ms {suffix}"
    objectives = parse_objectives({"all": (rule,)})
    counts = dict.fromkeys(Verdict, 0)
    for seed in range(process.simulations):
        runs = [measured(_sample(process, seed, run)) for run in range(process.runs)]
        held = runs[0] if len(runs) == 1 else Measured.together(runs)
        counts[judge(held, objectives, Audit())[0].verdict] += 1
    return {verdict: count / process.simulations for verdict, count in counts.items()}


def _sample(process: Process, seed: int, run: int) -> Sample:
    rng = np.random.default_rng(seed * process.runs + run)
    if isinstance(process.draw, ProfileTraffic):
        return process.draw.part(rng, 10 * seed, (run, process.runs))
    return process.draw(rng, process.requests)


def comparison_shares(draw: Draw, count: int, shift_ms: float, scale: float) -> Counter[str]:
    """Pairs of runs by verdict: FAIL, INCONCLUSIVE or PASS, and `explored` where an exploration figure differs."""
    results: Counter[str] = Counter()
    for seed in range(_PAIRS):
        before = measured(draw(np.random.default_rng(2 * seed), count))
        drawn = draw(np.random.default_rng(2 * seed + 1), count)
        after = drawn._replace(latency_ms=(drawn.latency_ms + shift_ms) * scale)
        found = compare(before, measured(after), paced=True)
        verdict = "FAIL" if any(d.alarm for d in found) else "PASS"
        if verdict == "PASS" and any(d.unclear for d in found):
            verdict = "INCONCLUSIVE"
        results[verdict] += 1
        results["explored"] += any(d.significant for d in found if d.verdict is None)
    return results


def paired_shares(count: int, shift: float) -> Counter[str]:
    """Pairs of runs of one plan, of requests that take as long as they are and 5 % of each run's own, by verdict."""
    results: Counter[str] = Counter()
    for seed in range(_PAIRS):
        rng = np.random.default_rng(seed)
        at_s, work_ms, _ = independent(rng, count)
        runs = [measured(Sample(at_s, work_ms * rng.normal(1.0, 0.05, count) * scale)) for scale in (1.0, 1 + shift)]
        found = {d.metric: d for d in compare(runs[0], runs[1], paced=True, paired=True) if d.group == "all"}
        results[str(found["ttft p99, ms"].verdict)] += 1
    return results


def alarm_share(draw: Draw, count: int, scale: float) -> float:
    """Share of runs, `scale` times as slow as the seven before them, in which any figure alarms."""
    alarms = 0
    for seed in range(_PAIRS):
        rng = np.random.default_rng(seed)
        history = [_figures(draw, rng, count, 1.0) for _ in range(_HISTORY)]
        now = _figures(draw, np.random.default_rng(TRUTH_SEED + seed), count, scale)
        alarms += any(deviation.alarm for deviation in deviations(now, history))
    return alarms / _PAIRS


def _figures(draw: Draw, rng: np.random.Generator, count: int, scale: float) -> dict[str, dict[str, Figure]]:
    drawn = draw(rng, count)
    run = measured(drawn._replace(latency_ms=drawn.latency_ms * scale))
    return {"all": figures_of(run, "all")}


def _verdict_rows() -> Iterator[Sequence[str]]:
    yield "latencies", "rule", "PASS at the truth", "PASS at 1.5 times", "FAIL at 1.5 times"
    for process in processes():
        at, beyond = verdict_shares(process, 1.0), verdict_shares(process, 1.5)
        figures = (at[Verdict.PASS], beyond[Verdict.PASS], beyond[Verdict.FAIL])
        yield process.label, process.rule, *(f"{figure:.2f}" for figure in figures)


def _comparison_rows() -> Iterator[Sequence[str]]:
    yield "second run", "requests", "PASS", "FAIL", "INCONCLUSIVE", "exploration differs"
    for label, draw, shift_ms, scale in (
        ("50 ms slower", independent, 50.0, 1.0),
        ("15 % slower", independent, 0.0, 1.15),
        ("equal", independent, 0.0, 1.0),
        ("equal, correlation time 30 s", slow_level, 0.0, 1.0),
    ):
        for count in (1000, 3000, 10_000):
            shares = comparison_shares(draw, count, shift_ms, scale)
            names = ("PASS", "FAIL", "INCONCLUSIVE", "explored")
            yield label, str(count), *(f"{shares[name] / _PAIRS:.2f}" for name in names)


def _paired_rows() -> Iterator[Sequence[str]]:
    yield "second run of one plan, ttft p99", "requests", "PASS", "FAIL", "INCONCLUSIVE"
    for label, shift in (("equal", 0.0), ("5 % slower: just what is accepted", 0.05), ("15 % slower", 0.15)):
        for count in (1000, 3000, 10_000):
            shares = paired_shares(count, shift)
            yield label, str(count), *(f"{shares[name] / _PAIRS:.2f}" for name in ("PASS", "FAIL", "INCONCLUSIVE"))


def _baseline_rows() -> Iterator[Sequence[str]]:
    yield "latencies", "requests", "alarm if equal", "16 % slower", "30 % slower"
    for label, draw in (("independent", independent), ("M/G/1 load 0.8", single_server(0.8, 20_000))):
        for count in (300, 1000, 5000):
            shares = (alarm_share(draw, count, scale) for scale in (1.0, 1.16, 1.3))
            yield label, str(count), *(f"{share:.2f}" for share in shares)


def main() -> None:
    """Print the tables as Markdown."""
    for title, rows in (
        ("Verdicts", _verdict_rows()), ("Compare", _comparison_rows()), ("Compare, paired", _paired_rows()),
        ("Baseline", _baseline_rows())
    ):  # fmt: skip
        print(f"\n{title}\n")
        for number, cells in enumerate(rows):
            print(f"| {' | '.join(cells)} |", flush=True)
            if number == 0:
                print(f"|{'---|' * len(cells)}")
