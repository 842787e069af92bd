"""Judges rules on measured columns. Pure.

A rule passes or fails only when the sample shows it with 95 % confidence; else it is INCONCLUSIVE
and says how many requests would decide. A breach of the client's audit makes the rules INVALID that it
can have changed: a slow client must not become a slow server. Failed requests miss every latency objective.
"""

import msgspec

from surgeproof.audit_results import Audit, AuditCheck, Effect
from surgeproof.records import Verdict
from surgeproof.results import RuleVerdict
from surgeproof.slo.breaches import DELAYS, can_have_changed, client_error_of, voided
from surgeproof.slo.measured import Measured
from surgeproof.slo.rule_verdicts import judge_rule
from surgeproof.slo.rules import (
    FLOWS,
    LATENCIES,
    Objectives,
    Rule,
)
from surgeproof.slo.sample_size import share_needed
from surgeproof.slo.stalls import stalls_s

_SEVERITY = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL)


def judge(measured: Measured, objectives: Objectives, audit: Audit) -> list[RuleVerdict]:
    """Judge every rule of every class, in the order they were written."""
    breaches = audit.breaches
    measured = measured.with_client_error(client_error_of(audit))
    longest_stall_s = float(stalls_s(measured).max(initial=0.0))
    verdicts = []
    for name, rule in objectives.by_step(measured.steps()):
        rule = _with_stall(rule, longest_stall_s)
        verdict = _unless_left_out(judge_rule(measured, name, rule), rule, measured.left_out)
        if measured.closed_loop and longest_stall_s > 0:
            verdict = _after_stall(verdict, longest_stall_s)
        breach = next((one for one in breaches if can_have_changed(one, verdict, rule)), None)
        if breach is None and verdict.verdict is Verdict.INCONCLUSIVE:
            breach = next((one for one in breaches if set(one.effects) & DELAYS), None)
            if breach and judge_rule(measured.at_best(), name, rule).verdict is Verdict.INCONCLUSIVE:
                # More requests are needed, whatever the client did.
                verdict = _with_remedy(verdict, breach)
                breach = None
        verdicts.append(voided(verdict, breach) if breach else verdict)
    return verdicts


def _with_remedy(verdict: RuleVerdict, breach: AuditCheck) -> RuleVerdict:
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; and before the next run: {breach.remedy}")


def _with_stall(rule: Rule, stall_s: float) -> Rule:
    """The rule with a stall that the run showed declared, where that is longer: it makes as many requests alike."""
    of_requests = rule.quantile is not None and rule.metric in LATENCIES and rule.metric != "inter_chunk"
    return msgspec.structs.replace(rule, stall_s=max(rule.stall_s, stall_s)) if of_requests else rule


def overall(measured: Measured, verdicts: list[RuleVerdict], audit: Audit) -> Verdict | None:
    """The run's verdict: the worst of its rules; None without rules.

    A FAIL that stands whatever the client did comes before INVALID. A run in which nothing was answered is a FAIL,
    with or without rules.
    """
    if measured.count == 0:
        return Verdict.INVALID
    worst = [verdict.verdict for verdict in verdicts]
    if audit.breaches and not verdicts:
        worst.append(Verdict.INVALID)
    by_client = any(not breach.effects or Effect.RECORDS in breach.effects for breach in audit.breaches)
    if not by_client and (measured.main & measured.sent).any() and not (measured.main & measured.ok).any():
        worst.append(Verdict.FAIL)
    return max(worst, key=_SEVERITY.index, default=None)


def _unless_left_out(verdict: RuleVerdict, rule: Rule, left_out: float) -> RuleVerdict:
    """No PASS where busier minutes that were not played hold more requests than may miss."""
    share = share_needed(rule)
    if verdict.verdict is not Verdict.PASS or share is None or left_out <= 1 - share:
        return verdict
    reason = (
        f"{verdict.reason}; but {left_out:.0%} of the profile's requests are due in busier minutes than were played, "
        f"and {1 - share:.2g} of all may miss: name the part to judge (--window), or play more of it (--repeat)"
    )
    return msgspec.structs.replace(verdict, verdict=Verdict.INCONCLUSIVE, reason=reason)


def _after_stall(verdict: RuleVerdict, stall_s: float) -> RuleVerdict:
    if verdict.verdict not in (Verdict.PASS, Verdict.INCONCLUSIVE) or verdict.metric not in LATENCIES | FLOWS:
        return verdict
    stall = (
        f"closed loop: a stall of {stall_s:.1f} s stopped the schedule, so requests that would have waited "
        "are missing; use --request-rate"
    )
    reason = stall if verdict.verdict is Verdict.PASS else f"{verdict.reason}; {stall}"
    return msgspec.structs.replace(verdict, verdict=Verdict.INCONCLUSIVE, reason=reason)
