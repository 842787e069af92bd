"""Which objectives a breach of the client's audit can have changed, and by how much. Pure.

A client that reads late adds to latencies; one that sends late adds to its own and gives others more of the server, or
less, for as long. So what is met or missed by more than its largest delay stands whatever it did. A lighter load than
planned leaves what was missed, a heavier one what was met. No delay touches rates and shares of answered requests.
"""

import msgspec

from surgeproof.audit_results import Audit, AuditCheck, ClientError, Effect
from surgeproof.records import Verdict
from surgeproof.results import RuleVerdict
from surgeproof.slo.rules import FLOWS, LATENCIES, RATES, SHARES, Rule

DELAYS = frozenset({Effect.LATE_SEND, Effect.LATE_READ, Effect.CLOCK})


def client_error_of(audit: Audit) -> ClientError:
    """The errors of single latencies that the audit's breaches make possible; none without a breach."""
    effects = {effect for check in audit.breaches for effect in check.effects}
    error = audit.error
    return ClientError(
        send_ms=error.send_ms if Effect.LATE_SEND in effects else 0.0,
        read_ms=error.read_ms if Effect.LATE_READ in effects else 0.0,
        clock_ms=error.clock_ms if Effect.CLOCK in effects else 0.0,
    )


def can_have_changed(breach: AuditCheck, verdict: RuleVerdict, rule: Rule) -> bool:
    """Whether a breach can have made this PASS or FAIL, which allows for the client's error in latencies already."""
    if not breach.effects:
        return rule.metric in LATENCIES | RATES | FLOWS
    return any(_changes(effect, verdict.verdict, rule) for effect in breach.effects)


def _changes(effect: Effect, verdict: Verdict, rule: Rule) -> bool:
    if effect is Effect.RECORDS:
        return rule.metric in LATENCIES | RATES | FLOWS | SHARES
    if effect in DELAYS:
        # The error of other latencies is in their bounds; histograms of gaps and fluidity have none.
        late_send = effect is Effect.LATE_SEND
        return rule.metric in FLOWS or (rule.metric == "inter_chunk" and not late_send)
    if rule.metric not in LATENCIES | RATES | FLOWS:
        return False
    # Under less load latencies are shorter and rates lower: what missed a bound on the one, or reached one on the
    # other, would do so under the planned load. Under more load it is the other way round.
    wants_much = rule.metric in RATES and not rule.conditions[0].upper
    stands = Verdict.PASS if wants_much is (effect is Effect.LESS_LOAD) else Verdict.FAIL
    return verdict is not stands


def voided(verdict: RuleVerdict, breach: AuditCheck) -> RuleVerdict:
    """The verdict as INVALID, with what to do about it."""
    by_load = breach.effects and {Effect.LESS_LOAD, Effect.MORE_LOAD}.issuperset(breach.effects)
    what = "the load was not the planned one" if by_load else "the client is not trustworthy"
    return msgspec.structs.replace(verdict, verdict=Verdict.INVALID, reason=f"{what} ({breach.name}): {breach.remedy}")
