"""The composition root: scenario -> plan -> Locust -> store -> judge.

`begin_run` makes everything before the first byte, Locust carries the load in its own process and
spools what it measures, `RunInProgress.collect` moves spools into the database, `complete` judges.
`run_scenario` does all three for `surgeproof run`; a bare `locust -f` has a conductor for them.
"""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from surgeproof.calibration import ceiling_note, load_calibration
from surgeproof.clock import MonotonicClock
from surgeproof.config import Scenario, Secrets
from surgeproof.endpoint import check_endpoint
from surgeproof.environment import describe_environment
from surgeproof.errors import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_INVALID,
    EXIT_PASS,
    RunBrokenError,
    UsageError,
)
from surgeproof.gpu.client import GpuCollector, open_agents
from surgeproof.gpu.diagnosis import diagnose, prompt_stages, values
from surgeproof.loadgen import fidelity
from surgeproof.loadgen.audit import audit_run, held_to
from surgeproof.loadgen.engine import PLAN_FILE, SPEC_FILE, RunSpec
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.sender import unsent_record
from surgeproof.loadgen.spool import SUFFIX, Batch, HealthSample, SpoolReader, WorkerFacts
from surgeproof.locust_process import LocustProcess, remove_run_dir
from surgeproof.planning import plan_scenario
from surgeproof.records import Audit, GpuFacts, GpuSample, RuleVerdict, RunState, StreamRecord, Verdict
from surgeproof.slo.burn import budgets, to_plain
from surgeproof.slo.gaps import Gaps, GapTally
from surgeproof.slo.measured import Measured
from surgeproof.slo.rules import Rule, parse_goodput, parse_rules
from surgeproof.slo.summary import summarise
from surgeproof.slo.verdict import judge, overall
from surgeproof.storage.queries import (
    arrivals_of,
    first_record,
    gap_rows,
    get_run,
    gpu_samples,
    health_rows,
    run_columns,
    stored_audit,
)
from surgeproof.storage.store import Store, open_engine, to_json

GPU_AGENT_TOKEN = "SURGEPROOF_AGENT_TOKEN"  # noqa: S105 - a variable's name
GPU_FIELDS = ("time_active_pct", "sm_pct", "tensor_pct", "dram_pct", "memory_used_bytes", "power_w", "temperature_c")
EXIT_SIGINT = 130
EXIT_SIGTERM = 143
_EXIT_CODES = {
    Verdict.PASS: EXIT_PASS,
    Verdict.FAIL: EXIT_FAIL,
    Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE,
    Verdict.INVALID: EXIT_INVALID,
}
_POLL_S = 0.5
_MOST_ARRIVALS = 20_000_000
_INTERRUPT_PATIENCE_S = 2.0


class RunResult(msgspec.Struct, frozen=True):
    """What came of a run."""

    run_id: int
    verdict: Verdict | None
    verdicts: tuple[RuleVerdict, ...]
    audit: Audit
    summary: dict[str, Any]
    exit_code: int


class RunInProgress:
    """A run that has been begun: its plan and row are stored, its spools are being written.

    Args:
        ours: whether the folder of its spools may be removed in the end.
    """

    def __init__(
        self,
        store: Store,
        run_id: int,
        spec: RunSpec,
        plan: Plan,
        rules: dict[str, tuple[Rule, ...]],
        *,
        ours: bool = True,
    ) -> None:
        self.store, self.run_id, self.spec, self.plan, self.rules = store, run_id, spec, plan, rules
        self.run_dir = Path(spec.run_dir)
        self._ours = ours
        self.workers: dict[int, WorkerFacts] = {}
        self._lock = _hold(self.run_dir)
        self.gpus = GpuCollector(())
        self._readers: dict[Path, SpoolReader] = {}
        self._gaps = GapTally()
        self._arrivals_kept = 0

    def collect(self) -> list[StreamRecord]:
        """Move what the workers have spooled, and GPU agents have seen, since the last call into the database."""
        self.store.add_gpu_samples(self.run_id, self.gpus.taken())
        fresh: list[StreamRecord] = []
        for path in sorted(self.run_dir.glob(f"*{SUFFIX}")):
            for batch in self._readers.setdefault(path, SpoolReader(path)).batches():
                self._keep(batch)
                fresh += batch.records
        return fresh

    def _keep(self, batch: Batch) -> None:
        if not self._ours:
            self.store.forget_unsent(self.run_id, [record.plan_index for record in batch.records])
        self._gaps.add(batch.records)
        self.store.add_records(self.run_id, self._without_excess(batch.records))
        self.store.add_health(self.run_id, batch.worker, batch.health)
        self.workers |= {facts.worker: facts for facts in batch.facts}

    def _without_excess(self, records: list[StreamRecord]) -> list[StreamRecord]:
        """Single arrival times are kept until there are very many; their histograms always are."""
        self._arrivals_kept += sum(record.token_events for record in records)
        if self._arrivals_kept <= _MOST_ARRIVALS:
            return records
        return [msgspec.structs.replace(record, arrivals=None) for record in records]

    def complete(self, state: RunState, exit_code: int | None = None) -> RunResult:
        """Collect the rest, record what was never sent, audit, judge and close the run."""
        self.gpus.stop()
        self.collect()
        self._record_unsent("the run was interrupted" if state is RunState.INTERRUPTED else "its worker was lost")
        scenario = self.spec.scenario
        columns = run_columns(self.store.engine, self.run_id)
        if not self._ours:
            self._gaps.include(gap_rows(self.store.engine, self.run_id))
        self.store.save_gaps(self.run_id, self._gaps.packed())
        arrivals = arrivals_of(self.store.engine, self.run_id) if needs_arrivals(self.rules) else None
        samples = gpu_samples(self.store.engine, self.run_id)
        measured = Measured(columns, Gaps(self._gaps.packed()), arrivals, samples)
        tightest_ms = tightest_bound_ms(self.rules)
        audit = audit_run(
            columns,
            self._health(),
            tuple(self.workers.values()),
            open_loop=not scenario.closed_loop,
            interrupted=state is RunState.INTERRUPTED,
            tightest_ms=tightest_ms,
        )
        verdicts = judge(measured, self.rules, audit)
        verdict = overall(verdicts, audit) if verdicts or audit.breaches else None
        if measured.count == 0:
            verdict = Verdict.INVALID
        summary = summarise(measured, scenario.goodput)
        if samples:
            summary["gpus"] = gpu_summary(measured, samples, self._gpu_facts())
        summary["budgets"] = to_plain(budgets(measured, self.rules))
        if not scenario.closed_loop:
            summary["dispatch"] = msgspec.to_builtins(fidelity.dispatch_lines(self.plan, columns, tightest_ms))
        code = exit_code if exit_code is not None else _EXIT_CODES[verdict or Verdict.PASS]
        self.store.finish_run(
            self.run_id,
            {
                "state": str(state),
                "ended_at_ns": MonotonicClock(self.spec.anchor_ns).now_ns(),
                "verdict": str(verdict) if verdict else None,
                "exit_code": code,
                "audit": to_json(msgspec.to_builtins(audit)),
                "summary": to_json(summary),
                "spool": None,
                "environment": to_json(self._environment()),
            },
            verdicts,
        )
        self.store.close()
        self._lock.close()
        if self._ours:
            remove_run_dir(self.run_dir)
        return RunResult(self.run_id, verdict, tuple(verdicts), audit, summary, code)

    def _health(self) -> dict[int, list[HealthSample]]:
        """All stored health samples, by worker."""
        by_worker: dict[int, list[HealthSample]] = {}
        for row in health_rows(self.store.engine, self.run_id):
            sample = HealthSample(**{name: row[name] for name in HealthSample.__struct_fields__})
            by_worker.setdefault(row["worker"], []).append(sample)
        return by_worker

    def _gpu_facts(self) -> dict[str, GpuFacts]:
        return {uuid: facts for agent in self.gpus.agents for uuid, facts in agent.facts.items()}

    def _environment(self) -> dict[str, Any]:
        """What was noted at the start, with what is known of the workers since."""
        noted: dict[str, Any] = get_run(self.store.engine, self.run_id)["environment"]
        workers = [msgspec.to_builtins(facts) for _, facts in sorted(self.workers.items())]
        agents = self.gpus.report()
        return noted | ({"workers": workers} if workers else {}) | ({"gpu_agents": agents} if agents else {})

    def _reason(self, worker: int, reason: str) -> str:
        """Why a worker's request was not sent: what became of it, where the master saw it."""
        facts = self.workers.get(worker)
        if facts is None or facts.fate is None:
            return reason
        return f"worker {facts.worker} on {facts.host} {facts.fate}"

    def _record_unsent(self, reason: str) -> None:
        """Every planned request has exactly one record, whatever became of its worker."""
        if self.spec.scenario.closed_loop:
            return
        stored = self.store.stored_indexes(self.run_id)
        if len(stored) == len(self.plan):
            return
        load, start_at_ns = self.spec.scenario.load, self._start_at_ns()
        workers = self.plan.workers_of(max(1, len(self.workers)))
        missing = (self.plan[index] for index in range(len(self.plan)) if index not in stored)
        self.store.add_records(
            self.run_id,
            [
                unsent_record(
                    plan,
                    start_at_ns + plan.intended_ns,
                    -1,
                    load.phase_of(plan.index, plan.intended_ns),
                    self._reason(int(workers[plan.index]), reason),
                )
                for plan in missing
            ],
        )

    def _start_at_ns(self) -> int:
        """Time of the plan's 0, as any worker's record tells it; now where there is none."""
        found = first_record(self.store.engine, self.run_id)
        if found is None:
            return MonotonicClock(self.spec.anchor_ns).now_ns()
        plan_index, intended_at_ns = found
        return intended_at_ns - self.plan[plan_index].intended_ns


def begin_run(
    scenario: Scenario, secrets: Secrets, db_url: str, scenario_path: Path | None, run_dir: Path
) -> tuple[RunInProgress, tuple[str, ...]]:
    """Check everything, make the plan and store both; nothing has been sent to a model yet.

    Args:
        scenario: checked scenario.
        secrets: headers for the endpoint.
        db_url: where to store.
        scenario_path: the file it came from, for its revision.
        run_dir: empty folder of `make_run_dir`, whose name is the run's uid.

    Returns:
        The run, and notes about the plan that a user should read.

    Raises:
        UsageError: scenario, trace, objectives or endpoint are wrong.
        StoreError: the database cannot be written.
    """
    rules = parse_rules(scenario.slo)
    parse_goodput([f"{name}:{bound}" for name, bound in scenario.goodput.items()])
    planned = plan_scenario(scenario)
    endpoint = check_endpoint(scenario.target, secrets)
    notes = list(planned.notes)
    if endpoint.max_model_len is not None:
        rows = planned.plan.rows
        over = int((rows["input_tokens"] + rows["output_tokens"] > endpoint.max_model_len).sum())
        if over:
            notes.append(f"{over} requests are longer than the model's {endpoint.max_model_len} tokens")
    calibration = load_calibration()
    if calibration is not None:
        rows = planned.plan.rows
        note = ceiling_note(calibration, rows["intended_ns"], rows["output_tokens"], scenario.processes)
        notes += [note] if note else []
    clock = MonotonicClock()
    agents = open_agents(scenario.gpu_agents, os.environ.get(GPU_AGENT_TOKEN), clock.now_ns)
    store = Store(db_url)
    uid = run_dir.name
    anchor_ns = clock.anchor_ns
    spec = RunSpec(uid, scenario, endpoint.base_url, endpoint.model, anchor_ns, str(run_dir))
    (run_dir / SPEC_FILE).write_bytes(msgspec.json.encode(spec))
    planned.plan.save(run_dir / PLAN_FILE)
    run_id = store.create_run(
        {
            "uid": uid,
            "name": scenario.name,
            "started_at_ns": MonotonicClock(anchor_ns).now_ns(),
            "base_url": _without_user(endpoint.base_url),
            "model": " + ".join(scenario.target.models) or endpoint.model,
            "endpoint": scenario.target.endpoint,
            "scenario": to_json(msgspec.to_builtins(scenario)),
            "metadata": to_json(scenario.metadata),
            "environment": to_json(
                describe_environment(scenario_path) | {"calibration": msgspec.to_builtins(calibration)}
            ),
            "spool": str(run_dir),
        }
    )
    store.save_plan(run_id, planned.plan.pack(), len(planned.plan), planned.plan.digest, scenario.load.seed)
    run = RunInProgress(store, run_id, spec, planned.plan, rules)
    run.gpus = GpuCollector(agents)
    return run, tuple(notes)


def gpu_summary(measured: Measured, samples: Sequence[GpuSample], facts: dict[str, GpuFacts]) -> dict[str, Any]:
    """Figures of every GPU over the run, and what they mean in words."""
    tokens = float(np.nansum(measured.numbers["output_tokens"][measured.judged & measured.ok]))
    start, end = measured.window_s(measured.sent)
    figures: dict[str, Any] = {}
    for gpu in sorted({sample.gpu for sample in samples}):
        held = [sample for sample in samples if sample.gpu == gpu]
        columns = {name: values(held, name) for name in GPU_FIELDS}
        figures[gpu] = {
            name: {"n": len(column), "mean": float(column.mean()), "max": float(column.max())} if len(column) else None
            for name, column in columns.items()
        }
    sent_at_ns = measured.columns.integers("sent_at_ns")[measured.sent]
    stages = prompt_stages(sent_at_ns, measured.numbers["planned_input_tokens"][measured.sent])
    return {"figures": figures, "diagnosis": diagnose(facts, samples, tokens, end - start, stages)}


def measured_run(engine: Any, run_id: int, rules: dict[str, tuple[Rule, ...]] | None = None) -> Measured:
    """A stored run's records and gaps, with single arrivals where a rule asks for them."""
    arrivals = arrivals_of(engine, run_id) if needs_arrivals(rules or {}) else None
    gaps = Gaps(gap_rows(engine, run_id))
    return Measured(run_columns(engine, run_id), gaps, arrivals, gpu_samples(engine, run_id))


def tightest_bound_ms(rules: dict[str, tuple[Rule, ...]]) -> float | None:
    """The smallest latency bound of some objectives; None without one."""
    bounds = [rule.tightest_ms for of_class in rules.values() for rule in of_class]
    return min((bound for bound in bounds if bound is not None), default=None)


def needs_arrivals(rules: dict[str, tuple[Rule, ...]]) -> bool:
    """Whether a rule is about single arrivals."""
    return any(rule.deadlines_ms is not None for of_class in rules.values() for rule in of_class)


def judge_stored(db_url: str, run_id: int, slo: dict[str, tuple[str, ...]] | None) -> RunResult:
    """Judge a stored run again, by its own objectives or by others; nothing is changed.

    Raises:
        UsageError: there is no such run, it has not ended, or there is nothing to judge it by.
        StoreError: there is no such database.
    """
    engine = open_engine(db_url, create=False)
    stored = get_run(engine, run_id)
    if stored["summary"] is None:
        raise UsageError(f"run {run_id} has not ended: wait for it, or see 'surgeproof recover'")
    rules = parse_rules(slo if slo is not None else stored["scenario"]["slo"])
    if not any(rules.values()):
        whose = "the file names" if slo is not None else f"run {run_id} has"
        raise UsageError(f"{whose} no objective: give --slo FILE with some")
    audit = held_to(stored_audit(stored), tightest_bound_ms(rules))
    verdicts = judge(measured_run(engine, run_id, rules), rules, audit)
    verdict = overall(verdicts, audit)
    code = _EXIT_CODES[verdict]
    if stored["state"] != RunState.FINISHED:
        # What was stopped or broke has let nothing through, however well it went until then.
        code = stored["exit_code"] or EXIT_INVALID
    return RunResult(run_id, verdict, tuple(verdicts), audit, stored["summary"], code)


def _hold(run_dir: Path) -> IO[bytes]:
    """Lock a run's folder for as long as we live; the kernel lets go of it even when we are killed.

    Raises:
        BlockingIOError: another process holds it.
    """
    lock = (run_dir / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise
    return lock


def run_scenario(
    locust: LocustProcess,
    scenario: Scenario,
    secrets: Secrets,
    db_url: str,
    scenario_path: Path | None,
    on_begin: Callable[[RunInProgress, tuple[str, ...]], None],
    on_progress: Callable[[list[StreamRecord]], None],
) -> RunResult:
    """Carry a whole run: begin, load in a Locust child process, judge.

    Args:
        locust: a Locust that waits for this run.
        scenario: checked scenario.
        secrets: headers for the endpoint.
        db_url: where to store.
        scenario_path: the file it came from, for its revision.
        on_begin: told the plan and its notes before anything is sent.
        on_progress: told the new records, a few times a second.

    Raises:
        SurgeproofError: the run could not be begun or carried through.
    """
    stopped: list[int] = []
    previous = {
        number: signal.signal(number, lambda received, _frame: stopped.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        run, notes = begin_run(scenario, secrets, db_url, scenario_path, locust.run_dir)
        on_begin(run, notes)
        locust.let_go()
        _yield_to_workers()
        _follow(locust, run, stopped, on_progress)
        locust.end()
        if stopped:
            return run.complete(RunState.INTERRUPTED, 128 + stopped[0])
        if locust.exit_code() != 0:
            run.complete(RunState.BROKEN, EXIT_INVALID)
            raise RunBrokenError(f"the load generator ended with code {locust.exit_code()}:\n{locust.log_tail()}")
        return run.complete(RunState.FINISHED)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _yield_to_workers() -> None:
    """Storing can wait, sending cannot: on a shared core the workers go first. Not so far that we starve."""
    with suppress(AttributeError, OSError):
        os.nice(10)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _follow(
    locust: LocustProcess,
    run: RunInProgress,
    stopped: list[int],
    on_progress: Callable[[list[StreamRecord]], None],
) -> None:
    """Store and show what comes, until Locust ends or the user has had enough."""
    deadline: float | None = None
    while locust.exit_code() is None:
        on_progress(run.collect())
        if stopped and deadline is None:
            deadline = time.monotonic() + _INTERRUPT_PATIENCE_S
            locust.interrupt()
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(0.02 if stopped else _POLL_S)
    on_progress(run.collect())


def _without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
