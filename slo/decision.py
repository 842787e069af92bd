"""Decides on a candidate by a fixed table: promote, hold or roll back. Pure.

more than 5 % of requests end in 5xx                      roll back
success more than 10 points below the baseline (90 % where none is known)   roll back
a figure is shown to be worse than the baseline's by more than is accepted  roll back
P99 of the first token above 2 s, failures as misses      hold
no objectives, and that p99 is not shown to be within 2 s hold
the run's verdict is not PASS                             hold
a figure is not shown to be within what is accepted       hold
else                                                      promote
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from surgeproof.audit_results import Audit
from surgeproof.records import Verdict
from surgeproof.slo.compare import Difference
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.verdict import judge
from surgeproof.slo.wording import comparison_line

_MAX_5XX = 0.05
_MAX_SUCCESS_LOST = 0.10
_MAX_WAIT_MS = 2000.0
_WAIT = parse_objectives({"all": ("ttft p99 <= 2s",)})


class Action(StrEnum):
    """What to do with the candidate."""

    PROMOTE = "promote"
    HOLD = "hold"
    ROLL_BACK = "roll back"


class Decision(msgspec.Struct, frozen=True):
    """The action and the row of the table that led to it."""

    action: Action
    reason: str


def decide(
    measured: Measured,
    verdict: Verdict | None,
    baseline_success: float = 1.0,
    differences: Sequence[Difference] = (),
    lost: Sequence[str] = (),
) -> Decision:
    """Evaluate the table; the first row that holds decides.

    Args:
        measured: the candidate's run.
        verdict: of the run's objectives; None where it has none.
        baseline_success: share of requests answered by what it would replace; all of them, where it is not known.
        differences: from what it would replace, by `compare`; none without a baseline.
        lost: figures that the baseline has and the candidate has not.
    """
    mask = measured.judged
    if verdict is Verdict.INVALID or not mask.any():
        return Decision(Action.HOLD, "the run has no valid measurement of the candidate")
    status = measured.numbers["http_status"][mask]
    broken = float(((status >= 500) & (status < 600)).mean())
    if broken > _MAX_5XX:
        return Decision(Action.ROLL_BACK, f"{broken:.1%} of requests ended in 5xx (more than {_MAX_5XX:.0%})")
    success = float(measured.ok[mask].mean())
    if baseline_success - success > _MAX_SUCCESS_LOST:
        return Decision(
            Action.ROLL_BACK,
            f"success is {success:.1%}, more than 10 points below {baseline_success:.1%}",
        )
    if any(difference.alarm for difference in differences):
        return Decision(Action.ROLL_BACK, f"against the baseline: {comparison_line(differences)}")
    (waited,) = judge(measured, _WAIT, Audit())
    if waited.observed is None or waited.observed > _MAX_WAIT_MS:
        p99 = "unknown, or of failed requests" if waited.observed is None else f"{waited.observed:,.0f} ms"
        return Decision(Action.HOLD, f"first-token p99 is {p99} (2 s at most): {waited.reason}")
    if verdict is None and waited.verdict is not Verdict.PASS:
        return Decision(Action.HOLD, f"no objective, and first tokens within 2 s are not shown: {waited.reason}")
    if verdict is not None and verdict is not Verdict.PASS:
        return Decision(Action.HOLD, f"the verdict is {verdict}")
    if lost:
        return Decision(Action.HOLD, f"too few requests were answered or streamed to compare {', '.join(lost)}")
    if any(difference.unclear for difference in differences):
        return Decision(Action.HOLD, f"against the baseline: {comparison_line(differences)}")
    shown = f", and {comparison_line(differences)}" if differences else ""
    return Decision(Action.PROMOTE, f"no blocking condition{shown}")
