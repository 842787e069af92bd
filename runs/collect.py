"""Collects a running load: moves records from the workers' spools into the database.

`prepare` begins a run, `judge` completes it. Every planned request ends with exactly one record,
even if its worker was lost.
"""

import fcntl
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec

from surgeproof.clock import MonotonicClock
from surgeproof.gpu.client import GpuCollector
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.spec import RunSpec
from surgeproof.loadgen.spool import SUFFIX, Batch, SpoolReader
from surgeproof.loadgen.unsent import unsent_record
from surgeproof.records import GpuSample, HealthSample, StreamRecord, WorkerFacts
from surgeproof.runs.locust_process import remove_run_dir
from surgeproof.slo.gaps import GapTally
from surgeproof.slo.rules import Objectives
from surgeproof.storage.queries import first_record, gap_rows, get_run
from surgeproof.storage.store import Store
from surgeproof.stored_runs import Environment

_MAX_ARRIVALS = 20_000_000


class RunInProgress:
    """A run whose plan and row are stored and whose spools are being written.

    Args:
        store: the database, which is closed with the run.
        run_id: the run's number in it.
        spec: the run.
        plan: the whole plan.
        objectives: what it will be judged by.
        recovered: the spools are a copy from another host; the run's earlier records are in the
            database, and the folder is left as it is.

    Raises:
        BlockingIOError: another process is collecting this run.
    """

    def __init__(
        self,
        store: Store,
        run_id: int,
        spec: RunSpec,
        plan: Plan,
        objectives: Objectives,
        *,
        recovered: bool = False,
    ) -> None:
        self.store, self.run_id, self.spec, self.plan, self.objectives = store, run_id, spec, plan, objectives
        self.run_dir = Path(spec.run_dir)
        self.workers: dict[int, WorkerFacts] = {}
        self.gpus = GpuCollector(())
        self._gpu_samples: list[GpuSample] = []
        self._recovered = recovered
        self._lock = _lock(self.run_dir)
        self._readers: dict[Path, SpoolReader] = {}
        first = first_record(store.engine, run_id) if recovered else None
        self._gaps = GapTally(first[1] if first else None)
        if recovered:
            self._gaps.include(gap_rows(store.engine, run_id))
        self._arrivals_stored = 0

    def collect(self) -> list[StreamRecord]:
        """Store what workers have spooled and GPU agents have sampled since the last call.

        Raises:
            StoreError: the database cannot be written; the next call begins with what is not stored.
        """
        self._gpu_samples += self.gpus.take()
        self.store.add_gpu_samples(self.run_id, self._gpu_samples)
        self._gpu_samples.clear()
        fresh: list[StreamRecord] = []
        for path in sorted(self.run_dir.glob(f"*{SUFFIX}")):
            reader = self._readers.setdefault(path, SpoolReader(path))
            while batches := reader.read():
                fresh += self._store(batches)
                reader.confirm()
        return fresh

    def _store(self, batches: list[Batch]) -> list[StreamRecord]:
        """Store batches wholly, or not at all: an error of the database leaves them to the next call."""
        records = list(chain.from_iterable(batch.records for batch in batches))
        health: dict[int, list[HealthSample]] = {}
        for batch in batches:
            if batch.worker is not None:
                health.setdefault(batch.worker, []).extend(batch.health)
        arrivals = self._arrivals_stored + sum(record.token_events for record in records)
        kept = records
        if arrivals > _MAX_ARRIVALS:
            # Times of single arrivals are stored up to a limit; their histograms always are.
            kept = [msgspec.structs.replace(record, arrivals=None) for record in records]
        self.store.add_records(self.run_id, kept, health, instead_of_unsent=self._recovered)
        self._arrivals_stored = arrivals
        self._gaps.add(records)
        self.workers |= {facts.worker: facts for batch in batches for facts in batch.facts}
        return records

    def finish_collecting(self, unsent_reason: str) -> None:
        """Store the rest: the last batches, a record of each request that was never sent, the gaps.

        After an error of the database it can be called again.
        """
        self.gpus.stop()
        self.collect()
        self._record_unsent(unsent_reason)
        self.store.save_gaps(self.run_id, self._gaps.packed())

    def close(self) -> None:
        """Release database and folder; the folder is removed with its spools, which are stored by now."""
        self.store.close()
        self._lock.close()
        if not self._recovered:
            remove_run_dir(self.run_dir)

    def environment(self) -> Environment:
        """The environment recorded at the start, plus workers and agents seen since."""
        environment = get_run(self.store.engine, self.run_id).environment
        if self.workers:
            workers = tuple(facts for _, facts in sorted(self.workers.items()))
            environment = msgspec.structs.replace(environment, workers=workers)
        if reports := self.gpus.report():
            environment = msgspec.structs.replace(environment, gpu_agents=reports)
        return environment

    @property
    def damaged_bytes(self) -> int:
        """Bytes of the spools that are no whole batch, before others that are."""
        return sum(reader.damaged_bytes for reader in self._readers.values())

    def now_ns(self) -> int:
        """The time on the run's clock."""
        return MonotonicClock(self.spec.anchor_ns).now_ns()

    def _record_unsent(self, reason: str) -> None:
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
                unsent_record(plan, start_at_ns, None, load, self._unsent_reason(int(workers[plan.index]), reason))
                for plan in missing
            ],
        )

    def _unsent_reason(self, worker: int, reason: str) -> str:
        """Why a worker's request was not sent: the worker's failure, if the master noticed one."""
        facts = self.workers.get(worker)
        if facts is None or facts.failure_reason is None:
            return reason
        return f"worker {facts.worker} on {facts.host} {facts.failure_reason}"

    def _start_at_ns(self) -> int:
        """Start time of the plan, from any stored record; the current time if there is none."""
        record = first_record(self.store.engine, self.run_id)
        if record is None:
            return self.now_ns()
        plan_index, intended_at_ns = record
        return intended_at_ns - (self.plan[plan_index].intended_ns or 0)


def _lock(run_dir: Path) -> IO[bytes]:
    """Lock a run's folder for as long as this process lives; the kernel releases it on process exit.

    Raises:
        BlockingIOError: another process has it locked.
    """
    lock = (run_dir / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise
    return lock
