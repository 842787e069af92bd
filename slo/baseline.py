"""Is a run like those before it? Against the median and spread of earlier runs of the same name. Pure.

The spread is the median absolute deviation, made comparable with a standard deviation, so that one
bad day among the earlier runs does not hide the next. A figure alarms when it is worse by more than
15 % (a share: by half a point) and by more than the spread and the run's own error together explain;
what explains it is looked for in classes, lengths, phases of a request and changed tags.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec
import numpy as np

from surgeproof.records import NS_PER_DAY, NS_PER_S
from surgeproof.slo.compare import Figure
from surgeproof.slo.intervals import NORMAL_POINT, Floats
from surgeproof.stored_runs import RunHead

_Head = TypeVar("_Head", bound=RunHead)
DEVIATION = 0.15
SHARE_DEVIATION = 0.005
_SPREADS = 3.0
_MAD_TO_SD = 1.4826
MIN_RUNS = 3
SLOT_NS = 3600 * NS_PER_S
WEEKDAY_DAYS = 28.0
"""How far runs of the same weekday are looked for."""

# The part of a request that each latency covers; the difference of neighbours is its phase.
PHASES = {"network": "connect", "queue and prefill": "ttft", "decode": "tpot"}


class Slot(StrEnum):
    """Which earlier runs a run is compared with."""

    WEEKDAY = "the same weekday and hour"
    HOUR = "the same hour"
    ANY = "any time"


class Deviation(msgspec.Struct, frozen=True):
    """One figure against its history.

    Attributes:
        median: of the earlier runs.
        spread: their median absolute deviation x 1.4826.
        error: standard error of the run's own figure; None where its sample is too small for one.
        change: share by which the run is off the median; of a share, the step itself.
        alarm: worse by more than 15 % (a share: 0.5 points), and by three times spread and error together.
    """

    group: str
    metric: str
    value: float
    median: float
    spread: float
    error: float | None
    change: float
    alarm: bool


class BaselineReport(msgspec.Struct, frozen=True):
    """A run against its history; `explanations` are sentences."""

    runs: tuple[int, ...]
    slot: Slot
    deviations: tuple[Deviation, ...]
    explanations: tuple[str, ...]


def earlier_runs(run: RunHead, others: Sequence[RunHead], days: float) -> list[RunHead]:
    """Comparable runs of the same name and model.

    Args:
        run: the run in question.
        others: runs of any name and time.
        days: how far to look back.
    """
    return [
        other
        for other in others
        if (other.name, other.model) == (run.name, run.model)
        and other.comparable
        and 0 < run.started_at_ns - other.started_at_ns <= days * NS_PER_DAY
    ]


def choose_history(run: RunHead, earlier: Sequence[_Head], days: float) -> tuple[list[_Head], Slot]:
    """Earlier runs of the same weekday and hour where there are enough, else of the same hour, else of any time.

    Args:
        run: the run in question.
        earlier: comparable runs of the last four weeks at least, by `earlier_runs`.
        days: how far to look back for runs of any weekday.
    """
    weekday = [other for other in earlier if _apart_ns(run, other, 7 * NS_PER_DAY) <= SLOT_NS]
    if len(weekday) >= MIN_RUNS:
        return weekday, Slot.WEEKDAY
    recent = [other for other in earlier if run.started_at_ns - other.started_at_ns <= days * NS_PER_DAY]
    hour = [other for other in recent if _apart_ns(run, other, NS_PER_DAY) <= SLOT_NS]
    return (hour, Slot.HOUR) if len(hour) >= MIN_RUNS else (recent, Slot.ANY)


def _apart_ns(run: RunHead, other: RunHead, period_ns: int) -> int:
    """Distance of two runs' places within a day or a week, around its end too."""
    apart = (run.started_at_ns - other.started_at_ns) % period_ns
    return min(apart, period_ns - apart)


def deviations(
    figures: Mapping[str, Mapping[str, Figure]], history: Sequence[Mapping[str, Mapping[str, Figure]]]
) -> list[Deviation]:
    """Every figure that enough earlier runs have too.

    Args:
        figures: by group and metric.
        history: the same of each earlier run.
    """
    results = []
    for group, metrics in figures.items():
        for metric, figure in metrics.items():
            before = [past[group][metric].value for past in history if metric in past.get(group, {})]
            if len(before) >= MIN_RUNS:
                results.append(_deviation(group, metric, figure, np.array(before)))
    return results


def _deviation(group: str, metric: str, figure: Figure, before: Floats) -> Deviation:
    median = float(np.median(before))
    spread = _MAD_TO_SD * float(np.median(np.abs(before - median)))
    step = figure.value - median
    share, falls = metric.startswith("success"), metric.endswith("/s") or metric.startswith("success")
    change = step / 100 if share else step / abs(median) if median else 0.0
    # The bound on the median's side tells how far chance alone reaches.
    bound = figure.high if falls else figure.low
    error = None if bound is None else abs(bound - figure.value) / NORMAL_POINT
    worse = step < 0 if falls else step > 0
    enough = abs(change) > (SHARE_DEVIATION if share else DEVIATION)
    alarm = worse and enough and error is not None and abs(step) > _SPREADS * math.hypot(spread, error)
    return Deviation(group, metric, figure.value, median, spread, error, change, alarm)


def change_text(deviation: Deviation) -> str:
    """How far a figure is off its history: points of a share, per cent of anything else."""
    if deviation.metric.startswith("success"):
        return f"{deviation.change * 100:+.2f} points"
    return f"{deviation.change:+.1%}"


def explain(
    result: Sequence[Deviation], tags: Mapping[str, str], history_tags: Sequence[Mapping[str, str]]
) -> list[str]:
    """What the alarms have in common: the worst group, the phase, and tags that are new."""
    alarms = [deviation for deviation in result if deviation.alarm]
    if not alarms:
        return []
    sentences = []
    narrower = [deviation for deviation in alarms if deviation.group != "all"]
    if narrower:
        worst = max(narrower, key=lambda deviation: abs(deviation.change))
        sentences.append(f"worst in {worst.group}: {worst.metric} {change_text(worst)}")
    for phase, name in PHASES.items():
        inside = [d for d in alarms if d.group == "all" and d.metric.startswith(name)]
        if inside:
            worst = max(inside, key=lambda deviation: abs(deviation.change))
            sentences.append(f"{phase}: {worst.metric} {change_text(worst)}")
    for key, value in tags.items():
        seen = {past[key] for past in history_tags if key in past}
        if seen and value not in seen:
            sentences.append(f"tag {key} is {value}, it was {', '.join(sorted(seen))}")
    return sentences
