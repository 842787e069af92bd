"""Judges a run when its load has ended, and stored runs again. The verdict decides the exit code."""

from collections.abc import Mapping

from msgspec import structs

from surgeproof.errors import UsageError
from surgeproof.exit_codes import ExitCode, exit_code_of
from surgeproof.loadgen.audit import audit_run, with_objectives
from surgeproof.loadgen.fidelity import dispatch_lines
from surgeproof.records import RunState
from surgeproof.results import Audit, RunEnd, RunResult, Summary
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.gpu_summary import gpu_summary
from surgeproof.runs.stored import measured_run
from surgeproof.slo.burn import budgets
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge, overall
from surgeproof.storage.queries import get_run, gpu_samples, health_samples
from surgeproof.storage.store import open_engine


def complete_run(run: RunInProgress, state: RunState, exit_code: int | None = None) -> RunResult:
    """Collect the remaining records, audit and judge the run, store the result, close the run.

    Args:
        run: the run, whose load has ended.
        state: how it ended.
        exit_code: in place of the verdict's, for a run that was interrupted or broke.
    """
    interrupted = state is RunState.INTERRUPTED
    run.finish_collecting("the run was interrupted" if interrupted else "its worker was lost")
    measured = measured_run(run.store.engine, run.run_id, run.objectives, closed_loop=run.spec.scenario.closed_loop)
    audit = audit_run(
        measured.columns,
        health_samples(run.store.engine, run.run_id),
        tuple(run.workers.values()),
        open_loop=not run.spec.scenario.closed_loop,
        interrupted=interrupted,
        tightest_ms=run.objectives.tightest_ms,
        cap=run.spec.scenario.load.max_concurrency,
        processes=max(run.spec.scenario.processes, len(run.workers)),
    )
    verdicts = judge(measured, run.objectives, audit)
    verdict = overall(measured, verdicts, audit)
    summary = _summary(run, measured)
    code = exit_code if exit_code is not None else exit_code_of(verdict)
    run.store.finish_run(
        run.run_id,
        RunEnd(
            state=state,
            ended_at_ns=run.now_ns(),
            verdict=verdict,
            exit_code=code,
            audit=audit,
            summary=summary,
            environment=run.environment(),
        ),
        verdicts,
    )
    run.close()
    return RunResult(run.run_id, verdict, tuple(verdicts), audit, summary, code)


def _summary(run: RunInProgress, measured: Measured) -> Summary:
    scenario = run.spec.scenario
    summary = structs.replace(summarise(measured, scenario.goodput), budgets=tuple(budgets(measured, run.objectives)))
    if samples := gpu_samples(run.store.engine, run.run_id):
        summary = structs.replace(summary, gpus=gpu_summary(measured, samples, run.gpu_facts()))
    if not scenario.closed_loop:
        lines = dispatch_lines(run.plan, measured.columns, run.objectives.tightest_ms)
        summary = structs.replace(summary, dispatch=tuple(lines))
    return summary


def judge_stored(db_url: str, run_id: int, slo: Mapping[str, tuple[str, ...]] | None) -> RunResult:
    """Judge a stored run again, by its own objectives or by others; nothing is changed.

    Raises:
        UsageError: there is no such run, it has not ended, or there is nothing to judge it by.
        StoreError: there is no such database.
    """
    engine = open_engine(db_url, create=False)
    run = get_run(engine, run_id)
    if run.summary is None:
        raise UsageError(f"run {run_id} has not ended: wait for it; if it was killed, use 'surgeproof recover'")
    objectives = parse_objectives(slo if slo is not None else run.scenario.slo)
    if not objectives:
        raise UsageError(f"run {run_id} has no objective: give --slo FILE with at least one")
    audit = with_objectives(run.audit or Audit(), objectives.tightest_ms)
    measured = measured_run(engine, run_id, objectives, closed_loop=run.scenario.closed_loop)
    verdicts = judge(measured, objectives, audit)
    verdict = overall(measured, verdicts, audit)
    code: int = exit_code_of(verdict)
    if run.state is not RunState.FINISHED:
        # A run that was stopped or broke must not pass a gate, even if its figures were good until then.
        code = run.exit_code or ExitCode.INVALID
    return RunResult(run_id, verdict, tuple(verdicts), audit, run.summary, code)
