"""Records of requests that have no reply: never sent, or failed by an error in the client. Pure."""

from surgeproof.outcomes import Outcome
from surgeproof.records import RequestPlan, StreamRecord
from surgeproof.scenario import LoadConfig


def failed_record(
    plan: RequestPlan, intended_at_ns: int, worker: int, phase: str, step: int, exc: Exception
) -> StreamRecord:
    """The record of a request that failed by an error in the client."""
    return StreamRecord(
        plan_index=plan.index,
        request_class=plan.request_class,
        worker=worker,
        step=step,
        phase=phase,
        planned_input_tokens=plan.input_tokens,
        planned_output_tokens=plan.output_tokens,
        intended_at_ns=intended_at_ns,
        task=plan.session,
        turn=plan.turn if plan.session is not None else None,
        outcome=Outcome.CLIENT_RESOURCE,
        error=f"the client failed: {exc!r}",
    )


def unsent_record(
    plan: RequestPlan,
    start_at_ns: int,
    worker: int | None,
    load: LoadConfig,
    reason: str,
    outcome: Outcome = Outcome.NOT_SENT,
) -> StreamRecord:
    """The record of a planned request that was never sent.

    Args:
        plan: the request.
        start_at_ns: time of the plan's 0.
        worker: whose share it was; None where that is not known.
        load: says which phase it belongs to.
        reason: why it was not sent.
        outcome: `NOT_SENT`, or `SKIPPED` where an earlier step of its task is the cause.
    """
    since_start_ns = plan.intended_ns or 0
    return StreamRecord(
        plan_index=plan.index,
        request_class=plan.request_class,
        worker=worker,
        phase=load.phase_of(plan.index, since_start_ns),
        planned_input_tokens=plan.input_tokens,
        planned_output_tokens=plan.output_tokens,
        intended_at_ns=start_at_ns + since_start_ns,
        task=plan.session,
        turn=plan.turn if plan.session is not None else None,
        outcome=outcome,
        error=reason,
    )
