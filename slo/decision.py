"""What to do with a candidate, by a table that was agreed before: promote, hold or roll back. Pure.

more than 5 % of requests end in 5xx                      roll back
success more than 10 points below the baseline (90 % where none is known)   roll back
P99 of the first token above 2 s                          hold
the run's verdict is not PASS                             hold
else                                                      promote
"""

from enum import StrEnum

import msgspec
import numpy as np

from surgeproof.records import Verdict
from surgeproof.slo.intervals import quantile
from surgeproof.slo.measured import Measured

_MOST_5XX = 0.05
_MOST_SUCCESS_LOST = 0.10
_MOST_P99_MS = 2000.0


class Action(StrEnum):
    """What the table says."""

    PROMOTE = "promote"
    HOLD = "hold"
    ROLL_BACK = "roll back"


class Decision(msgspec.Struct, frozen=True):
    """The action and the row of the table that led to it."""

    action: Action
    reason: str


def decide(measured: Measured, verdict: Verdict | None, baseline_success: float = 1.0) -> Decision:
    """Evaluate the table; the first row that holds decides.

    Args:
        measured: the candidate's run.
        verdict: of the run's objectives; None where it has none.
        baseline_success: share of requests answered by what it would replace; all of them, where it is not known.
    """
    mask = measured.judged
    if verdict is Verdict.INVALID or not mask.any():
        return Decision(Action.HOLD, "the run says nothing about the candidate")
    status = measured.numbers["http_status"][mask]
    broken = float(((status >= 500) & (status < 600)).mean())
    if broken > _MOST_5XX:
        return Decision(Action.ROLL_BACK, f"{broken:.1%} of requests ended in 5xx (more than {_MOST_5XX:.0%})")
    success = float(measured.ok[mask].mean())
    if baseline_success - success > _MOST_SUCCESS_LOST:
        return Decision(
            Action.ROLL_BACK, f"success is {success:.1%} where {baseline_success:.1%} is due (more than 10 points less)"
        )
    ttft = measured.latency_ms("ttft")[mask & measured.ok]
    ttft = np.sort(ttft[~np.isnan(ttft)])
    if len(ttft) and quantile(ttft, 0.99) > _MOST_P99_MS:
        return Decision(Action.HOLD, f"first-token p99 is {quantile(ttft, 0.99):.0f} ms (more than 2 s)")
    if verdict is not None and verdict is not Verdict.PASS:
        return Decision(Action.HOLD, f"the verdict is {verdict}")
    return Decision(Action.PROMOTE, "no row of the table speaks against it")
