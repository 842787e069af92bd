"""The error budget of each objective, and how fast it was spent over the run. Pure.

An objective of 99 % lets 1 % of requests miss: that is the budget. A burn of 1 spends it exactly, a
burn of 10 in one window means that a tenth of the time at this pace would spend it all.
"""

import numpy as np

from surgeproof.results import Budget
from surgeproof.slo.measured import Mask, Measured
from surgeproof.slo.rules import LATENCIES, REQUEST_LATENCIES, SHARES, Objectives, Rule
from surgeproof.slo.sample_size import share_needed
from surgeproof.slo.summary import meets

_WINDOWS = 30


def budgets(measured: Measured, objectives: Objectives) -> list[Budget]:
    """The budget of every objective that has one: shares, quantiles, success."""
    results = []
    for name, rule in objectives.by_step(measured.steps()):
        share = share_needed(rule)
        if share is not None and rule.metric in (*REQUEST_LATENCIES, *SHARES):
            results.append(_budget(measured, name, rule, share))
    return [budget for budget in results if budget is not None]


def _budget(measured: Measured, name: str, rule: Rule, share: float) -> Budget | None:
    mask = measured.judged & measured.of_class(name) & measured.selected(rule.selectors)
    missed, evaluable = misses(measured, rule)
    mask = mask & evaluable
    requests = int(mask.sum())
    if requests == 0:
        return None
    at_s = measured.times_s["intended_at_ns"]
    span = max(float(at_s[mask].max()), 1e-9)
    window = np.minimum((at_s / span * _WINDOWS).astype(np.int64), _WINDOWS - 1)
    sent = np.bincount(window[mask], minlength=_WINDOWS)
    bad = np.bincount(window[mask & missed], minlength=_WINDOWS)
    budget = 1 - share
    windows = tuple(
        (round(index * span / _WINDOWS, 3), int(n), float(m / n / budget) if n else None)
        for index, (n, m) in enumerate(zip(sent, bad, strict=True))
    )
    count = int((mask & missed).sum())
    return Budget(name, rule.text, budget, requests, count, count / (requests * budget), windows)


def misses(measured: Measured, rule: Rule) -> tuple[Mask, Mask]:
    """Which requests miss a rule, and for which that is known."""
    if rule.metric in LATENCIES:
        met, evaluable = meets(measured, list(rule.conditions))
        return ~met, evaluable
    hit = {"success": measured.ok, "shed": measured.shed, "errors": ~measured.ok}[rule.metric]
    everything = np.ones(measured.count, dtype=np.bool_)
    return (hit if rule.conditions[0].upper else ~hit), everything
