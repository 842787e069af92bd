"""Is a run like those before it? Against the median and spread of earlier runs of the same name. Pure.

The spread is the median absolute deviation, made comparable with a standard deviation, so that one
bad day among the earlier runs does not hide the next. A figure alarms when it is off by more than
15 % and by more than three such spreads; what explains it is looked for in classes, lengths, phases
of a request and changed tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

DEVIATION = 0.15
_SPREADS = 3.0
_MAD_TO_SD = 1.4826
FEWEST_RUNS = 3
DAY_NS = 86_400_000_000_000
SLOT_NS = 3_600_000_000_000

# What part of a request each latency tells about; the difference of neighbours is its phase.
PHASES = {"network": "connect", "queue and prefill": "ttft", "decode": "tpot"}


class Deviation(msgspec.Struct, frozen=True):
    """One figure against its history.

    Attributes:
        median: of the earlier runs.
        spread: their median absolute deviation x 1.4826.
        change: share by which the run is off the median.
        alarm: off by more than 15 % and three spreads, in the bad direction.
    """

    group: str
    metric: str
    value: float
    median: float
    spread: float
    change: float
    alarm: bool


class BaselineReport(msgspec.Struct, frozen=True):
    """A run against its history; `explanations` are sentences."""

    runs: tuple[int, ...]
    same_hour: bool
    deviations: tuple[Deviation, ...]
    explanations: tuple[str, ...]


def choose_history(run: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], days: float) -> tuple[list[int], bool]:
    """Numbers of the runs to compare with: finished, of the same name; of the same hour where enough are.

    Args:
        run: `id`, `name`, `started_at_ns`.
        earlier: the same and `state`, `verdict` of other runs.
        days: how far to look back.
    """
    start = run["started_at_ns"]
    held = [
        other
        for other in earlier
        if other["id"] != run["id"]
        and other["name"] == run["name"]
        and other["state"] == "finished"
        and other["verdict"] != "INVALID"
        and 0 < start - other["started_at_ns"] <= days * DAY_NS
    ]
    slot = [other for other in held if _hours_apart_ns(start, other["started_at_ns"]) <= SLOT_NS]
    same_hour = len(slot) >= FEWEST_RUNS
    return [other["id"] for other in (slot if same_hour else held)], same_hour


def _hours_apart_ns(left_ns: int, right_ns: int) -> int:
    """Distance of two times of day, around midnight too."""
    apart = (left_ns - right_ns) % DAY_NS
    return min(apart, DAY_NS - apart)


def deviations(
    figures: Mapping[str, Mapping[str, float]], history: Sequence[Mapping[str, Mapping[str, float]]]
) -> list[Deviation]:
    """Every figure that enough earlier runs have too.

    Args:
        figures: value by group and metric.
        history: the same of each earlier run.
    """
    found = []
    for group, metrics in figures.items():
        for metric, value in metrics.items():
            before = [past[group][metric] for past in history if metric in past.get(group, {})]
            if len(before) < FEWEST_RUNS:
                continue
            median = float(np.median(before))
            spread = _MAD_TO_SD * float(np.median(np.abs(np.array(before) - median)))
            change = (value - median) / abs(median) if median else 0.0
            worse = change < 0 if metric.endswith("/s") or metric.startswith("success") else change > 0
            off = abs(change) > DEVIATION and abs(value - median) > _SPREADS * spread
            found.append(Deviation(group, metric, value, median, spread, change, worse and off))
    return found


def explain(
    found: Sequence[Deviation], tags: Mapping[str, str], history_tags: Sequence[Mapping[str, str]]
) -> list[str]:
    """What the alarms have in common: the worst group, the phase, and tags that are new."""
    alarms = [deviation for deviation in found if deviation.alarm]
    if not alarms:
        return []
    sentences = []
    narrower = [deviation for deviation in alarms if deviation.group != "all"]
    if narrower:
        worst = max(narrower, key=lambda deviation: abs(deviation.change))
        sentences.append(f"worst in {worst.group}: {worst.metric} {worst.change:+.0%}")
    for phase, name in PHASES.items():
        inside = [d for d in alarms if d.group == "all" and d.metric.startswith(name)]
        if inside:
            worst = max(inside, key=lambda deviation: abs(deviation.change))
            sentences.append(f"{phase}: {worst.metric} {worst.change:+.0%}")
    for key, value in tags.items():
        seen = {past[key] for past in history_tags if key in past}
        if seen and value not in seen:
            sentences.append(f"tag {key} is {value}, it was {', '.join(sorted(seen))}")
    return sentences
