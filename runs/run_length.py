"""How long must a run be, given an earlier run or a profile that shows how alike requests are?"""

import numpy as np
from msgspec import structs

from surgeproof.errors import UsageError
from surgeproof.runs.stored import ended_run, measured_run
from surgeproof.seeds import Dimension, generator
from surgeproof.slo.correlation import Correlation, correlation_of_latencies
from surgeproof.slo.intervals import quantile_rank
from surgeproof.slo.rule_verdicts import correlation_for
from surgeproof.slo.rules import Objectives
from surgeproof.slo.sample_size import Need, needs, share_needed
from surgeproof.storage.store import open_engine
from surgeproof.traces.arrivals import simulate
from surgeproof.traces.profile import load_profile
from surgeproof.traces.queueing import service_s, slots_for, waits_s

_FIRST_TOKEN_S = 0.2
"""What a request takes on the simulated server beside its wait."""


def needs_after_run(objectives: Objectives, db_url: str, run_id: int, rate_per_s: float | None) -> list[Need]:
    """What each rule needs where requests are as alike as they were in a run; its rates where none is given.

    Raises:
        UsageError: there is no such run, it has not ended, or nothing of it was measured.
    """
    engine = open_engine(db_url, create=False)
    ended_run(engine, run_id)
    measured = measured_run(engine, run_id, objectives)
    planned_s = measured.times_s["intended_at_ns"][measured.judged]
    span_s = float(np.ptp(planned_s)) if len(planned_s) else 0.0
    if span_s <= 0:
        raise UsageError(f"run {run_id} sent too few requests to tell how alike they are")
    names = dict.fromkeys(name for name, _ in objectives if name != "all")
    shares = {name: float((measured.judged & measured.of_class(name)).sum()) for name in names}
    # Classes without an objective have their share, too.
    shares["others"] = len(planned_s) - sum(shares.values())
    measured_per_s = len(planned_s) / span_s
    rate_per_s = rate_per_s or measured_per_s
    found = {
        (name, rule.text): _at_rate(correlation, rate_per_s / measured_per_s)
        for name, rule in objectives
        if (correlation := correlation_for(measured, name, rule)) is not None
    }
    return needs(objectives, rate_per_s, shares, found)


def needs_of_profile(
    objectives: Objectives, profile_name: str, rate_per_s: float | None, shares: dict[str, float]
) -> list[Need]:
    """What each rule needs under a profile's traffic, by its latencies behind a simulated server at 80 % load.

    Args:
        objectives: the rules.
        profile_name: bundled profile, or file.
        rate_per_s: of the run to be planned; None for the profile's own.
        shares: weight of each class in the mix. Classes share one server, and are alike over the same time.

    Raises:
        TraceError: there is no such profile.
    """
    profile = load_profile(profile_name)
    at_s = simulate(profile.arrivals, generator(1, Dimension.ARRIVALS))
    work_s = service_s(profile.draw_lengths(at_s, generator(1, Dimension.LENGTHS)))
    latencies = waits_s(at_s, work_s, slots_for(at_s, work_s)) + _FIRST_TOKEN_S
    rate_per_s = rate_per_s or profile.arrivals.mean_rate_per_s
    found: dict[tuple[str, str], Correlation] = {}
    for name, rule in objectives:
        share = share_needed(rule)
        if rule.quantile is None or share is None:
            continue
        # At a bound that is just met.
        met = latencies <= np.sort(latencies)[quantile_rank(len(latencies), share) - 1]
        of_class = 1.0 if name == "all" else shares.get(name, 0.0) / sum(shares.values())
        faster = of_class * rate_per_s / profile.arrivals.mean_rate_per_s
        found[name, rule.text] = _at_rate(correlation_of_latencies(latencies, met, at_s, share), faster)
    return needs(objectives, rate_per_s, shares, found)


def _at_rate(correlation: Correlation, factor: float) -> Correlation:
    """Requests are alike over a time, which holds `factor` times as many of them."""
    return structs.replace(correlation, design_effect=1 + (correlation.design_effect - 1) * factor)
