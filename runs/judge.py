"""Judges a run when its load has ended, and stored runs again. The verdict decides the exit code."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import structs

from surgeproof.audit_results import Audit, ClientError
from surgeproof.errors import UsageError
from surgeproof.exit_codes import ExitCode, exit_code_of
from surgeproof.loadgen.audit import audit_run, with_objectives
from surgeproof.loadgen.fidelity import dispatch_lines
from surgeproof.records import REQUEST_CLASSES, RunState
from surgeproof.results import RunResult, Summary
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.gpu_summary import gpu_summary
from surgeproof.runs.stored import ended_run, measured_run, same_load, usable_gpu_samples
from surgeproof.slo.burn import budgets
from surgeproof.slo.failures import FailureCount, failures_of, together
from surgeproof.slo.measured import Mask, Measured
from surgeproof.slo.rules import parse_objectives
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge, overall
from surgeproof.storage.queries import failure_counts, health_samples
from surgeproof.storage.store import open_engine
from surgeproof.stored_runs import Run, RunEnd

Ints = npt.NDArray[np.int64]


def complete_run(run: RunInProgress, state: RunState, exit_code: int | None = None) -> RunResult:
    """Collect the remaining records, audit and judge the run, store the result, close the run.

    Args:
        run: the run, whose load has ended.
        state: how it ended.
        exit_code: in place of the verdict's, for a run that was interrupted or broke.
    """
    interrupted = state is RunState.INTERRUPTED
    run.finish_collecting("the run was interrupted" if interrupted else "its worker was lost")
    measured = measured_run(run.store.engine, run.run_id, run.objectives)
    audit = audit_run(
        measured.columns,
        health_samples(run.store.engine, run.run_id),
        tuple(run.workers.values()),
        open_loop=not run.spec.scenario.closed_loop,
        interrupted=interrupted,
        tightest_ms=run.objectives.tightest_ms,
        cap=run.spec.scenario.load.max_concurrency,
        processes=max(run.spec.scenario.processes, len(run.workers)),
        fixed_lengths=run.spec.scenario.target.fixes_lengths,
        damaged_bytes=run.damaged_bytes,
        broken=state is RunState.BROKEN,
        shared_tokens=_shared_tokens(run, measured),
        made_prompts=_made_prompts(run, measured),
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


def _made_prompts(run: RunInProgress, measured: Measured) -> Mask:
    """The records whose prompts were made to planned lengths, by their class, behind answers of a known length."""
    made: Mask = np.zeros(measured.count, dtype=np.bool_)
    for name in REQUEST_CLASSES:
        if run.spec.scenario.load.makes_prompts_of(name):
            made |= measured.of_class(name)
    return made & measured.columns.has("planned_cached_tokens")


def _shared_tokens(run: RunInProgress, measured: Measured) -> Ints | None:
    """Prompt tokens of each record that the plan itself shares; None where the user chose the words of the prompts."""
    load = run.spec.scenario.load
    if load.prompt_salt != run.spec.uid:
        return None
    shared: Ints = run.plan.rows["cached_tokens"][measured.columns.integers("plan_index") % max(1, len(run.plan))]
    return shared


def _summary(run: RunInProgress, measured: Measured) -> Summary:
    scenario = run.spec.scenario
    summary = structs.replace(summarise(measured, scenario.goodput), budgets=tuple(budgets(measured, run.objectives)))
    reports, samples = run.gpus.report(), usable_gpu_samples(run.store.engine, run.run_id)
    if reports or samples:
        summary = structs.replace(summary, gpus=gpu_summary(measured, samples, reports))
    failures = failures_of(FailureCount(*row) for row in failure_counts(run.store.engine, run.run_id))
    summary = structs.replace(summary, failures=failures)
    if not scenario.closed_loop:
        lines = dispatch_lines(run.plan, measured.columns, run.objectives.tightest_ms)
        summary = structs.replace(summary, dispatch=tuple(lines))
    return summary


def judge_stored(db_url: str, run_ids: Sequence[int], slo: Mapping[str, tuple[str, ...]] | None) -> RunResult:
    """Judge a stored run again, or several repetitions together, by their own objectives or by others.

    Nothing is changed. Repetitions are judged as one long run.

    Raises:
        UsageError: there is no such run, it has not ended, there is nothing to judge it by, or the runs are not
            repetitions of one scenario.
        StoreError: there is no such database.
    """
    engine = open_engine(db_url, create=False)
    runs = [ended_run(engine, run_id) for run_id in dict.fromkeys(run_ids)]
    first = runs[0]
    for run in runs[1:]:
        _check_repetition(first, run)
    objectives = parse_objectives(slo if slo is not None else first.scenario.slo)
    if not objectives and (len(runs) == 1 or slo is not None):
        raise UsageError(f"run {first.id} has no objective: give --slo FILE with at least one")
    each = [measured_run(engine, run.id, objectives) for run in runs]
    audits = [with_objectives(run.audit or Audit(), objectives.tightest_ms) for run in runs]
    if len(runs) == 1:
        measured, audit, summary = each[0], audits[0], first.summary
    else:
        measured = Measured.together(each)
        audit, summary = _joined(runs, audits), summarise(measured, first.scenario.goodput)
        summary = structs.replace(summary, failures=together(run.summary.failures for run in runs if run.summary))
    assert summary is not None, "an ended run has a summary"
    verdicts = judge(measured, objectives, audit)
    verdict = overall(measured, verdicts, audit)
    code: int = exit_code_of(verdict)
    for run in runs:
        if run.state is not RunState.FINISHED:
            # A run that was stopped or broke must not pass a gate, even if its figures were good until then.
            code = run.exit_code or ExitCode.INVALID
    repetitions = tuple(run.id for run in runs) if len(runs) > 1 else ()
    return RunResult(first.id, verdict, tuple(verdicts), audit, summary, code, repetitions)


def _joined(runs: Sequence[Run], audits: Sequence[Audit]) -> Audit:
    """The checks of all runs, each named with its run, and the largest errors."""
    errors = [audit.error for audit in audits]
    return Audit(
        tuple(
            structs.replace(check, name=f"run {run.id} {check.name}")
            for run, audit in zip(runs, audits, strict=True)
            for check in audit.checks
        ),
        error=ClientError(
            max(error.send_ms for error in errors),
            max(error.read_ms for error in errors),
            max(error.clock_ms for error in errors),
        ),
    )


def _check_repetition(first: Run, run: Run) -> None:
    """Only repetitions of one scenario may be judged together, each with arrivals of its own."""
    if not same_load(first, run) or (first.base_url, first.model) != (run.base_url, run.model):
        raise UsageError(
            f"runs {first.id} and {run.id} are no repetitions of one scenario: load, endpoint or model differ; "
            "judge them one by one"
        )
    if first.plan is not None and run.plan is not None and first.plan.digest == run.plan.digest:
        raise UsageError(
            f"runs {first.id} and {run.id} sent the same plan: give each repetition a --seed of its own, "
            "or use run --repeat"
        )
