"""Runs one after the other, each with a fault from a seeded list, and counts what was lost; run by hand.

    python -m tests.e2e.faults.soak MINUTES [SEED]

Prints a line a run and writes all of them to benchmarks/results/DATE-soak.json.
"""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.faults.logging_endpoint import LoggingEndpoint
from tests.e2e.test_crash import locusts
from tests.e2e.test_run import rows, surgeproof

RATE = 60
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
KILLED = ("kill worker", "kill command and worker")
"""What a worker has in memory, half a second of records and its requests in flight, may go with it."""
FAULTS = (
    "none", *KILLED, "kill command", "SIGTERM", "SIGHUP", "stop worker", "lock database", "kill command while judging",
)  # fmt: skip


def break_run(fault: str, child: "subprocess.Popen[str]", database: Path, after_s: float) -> None:
    """Wait, then do it."""
    if fault == "kill command while judging":
        child.wait(120) if not _wait_for_end_of_load(child) else child.kill()
        return
    time.sleep(after_s)
    workers = locusts(child)
    if fault in KILLED:
        for worker in workers:
            worker.kill()
    if fault in ("kill command", "kill command and worker"):
        child.kill()
    if fault in ("SIGTERM", "SIGHUP"):
        child.send_signal(getattr(signal, fault))
    if fault == "stop worker":
        for worker in workers:
            worker.suspend()
        time.sleep(3)
        for worker in workers:
            worker.resume()
    if fault == "lock database":
        holder = sqlite3.connect(database)
        holder.execute("BEGIN IMMEDIATE")
        time.sleep(8)
        holder.rollback()
        holder.close()


def _wait_for_end_of_load(child: "subprocess.Popen[str]") -> bool:
    """Whether the load ended before the command did."""
    while child.poll() is None:
        try:
            if not locusts(child):
                return True
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.005)
    return False


def one_run(chance: random.Random, folder: Path) -> dict[str, Any]:
    """A run with a fault, recovered, and compared with the endpoint's log."""
    fault, processes, after_s = chance.choice(FAULTS), chance.choice((1, 2)), chance.uniform(2.0, 8.0)
    database = folder / "surgeproof.db"
    with LoggingEndpoint() as endpoint:
        command = [
            sys.executable, "-m", "surgeproof", "run", "--base-url", endpoint.base_url, "--request-rate", str(RATE),
            "--duration", "8s", "--output-len", "5", "--input-len", "10", "--processes", str(processes),
        ]  # fmt: skip
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while not endpoint.asked_at_s and child.poll() is None:
            time.sleep(0.02)
        break_run(fault, child, database, after_s)
        child.communicate(timeout=180)
        recovered = surgeproof("recover", cwd=folder)
        time.sleep(0.5)
        answered = len(endpoint.answered)
        stored = rows(
            database, "SELECT plan_index FROM records WHERE outcome = 'ok' AND run_id = (SELECT max(id) FROM runs)"
        )
        lost = len(set(endpoint.answered) - {index for (index,) in stored})
    ((state, verdict),) = rows(database, "SELECT state, verdict FROM runs ORDER BY id DESC LIMIT 1")
    return {
        "fault": fault, "processes": processes, "after_s": round(after_s, 2), "exit": child.returncode, "state": state,
        "verdict": verdict, "answered": answered, "lost": lost, "recover": recovered.returncode,
        "left": [str(path.name) for path in folder.glob("*.spool")],
    }  # fmt: skip


def main() -> None:
    """Run until the time is over."""
    minutes, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    chance, runs, end_s = random.Random(seed), [], time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as name:
        while time.monotonic() < end_s:
            runs.append(one_run(chance, Path(name)))
            print(json.dumps(runs[-1]), flush=True)
    summary = {
        "runs": len(runs),
        "answered": sum(run["answered"] for run in runs),
        "lost where no worker was killed": sum(run["lost"] for run in runs if run["fault"] not in KILLED),
        "most lost with a killed worker": max((run["lost"] for run in runs if run["fault"] in KILLED), default=0),
        "spools left": sum(len(run["left"]) for run in runs),
    }
    print(json.dumps(summary))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    report = {"at": at, "minutes": minutes, "seed": seed, "summary": summary, "runs": runs}
    (RESULTS / f"{at[:10]}-soak.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
