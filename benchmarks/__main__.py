"""`make bench`: measures the load generator itself against an endpoint with known timing.

The whole product with one worker has one core, the null endpoint another.

Each line is measured through `surgeproof run`: schedule, sockets, parsing, records, spool. Truth is
the endpoint's own log of write times. Figures go to benchmarks/results/ with the host's description;
on a shared machine only ratios within one run say anything.
"""

import json
import os
import platform
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PORT = 9399
CASES: dict[str, dict[str, Any]] = {
    "closed loop, 64 streams": {"endpoint": (1000, 0, 200), "flags": ["--concurrency", "64", "--duration", "6s"]},
    "closed loop, 256 streams": {"endpoint": (1000, 0, 200), "flags": ["--concurrency", "256", "--duration", "6s"]},
    "closed loop, 1000 streams": {"endpoint": (1000, 0, 200), "flags": ["--concurrency", "1000", "--duration", "6s"]},
    "open loop, 50/s": {"endpoint": (100_000, 10_000, 50), "flags": ["--request-rate", "50", "--duration", "8s"]},
    "open loop, 200/s": {"endpoint": (100_000, 10_000, 50), "flags": ["--request-rate", "200", "--duration", "8s"]},
    "open loop, 500/s": {"endpoint": (100_000, 10_000, 50), "flags": ["--request-rate", "500", "--duration", "8s"]},
    "open loop, 1000/s": {"endpoint": (100_000, 10_000, 50), "flags": ["--request-rate", "1000", "--duration", "8s"]},
}


def build(folder: Path) -> Path:
    """Compile the null endpoint."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("make bench needs a C compiler (cc)")
    program = folder / "null_endpoint"
    subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "null_endpoint.c")], check=True)
    return program


def pinned(core: int | None, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if core is not None and shutil.which("taskset") else command


def measure(program: Path, case: dict[str, Any], cores: list[int]) -> dict[str, Any]:
    """Run one case and describe it."""
    client_core, server_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = [str(value) for value in (PORT, *case["endpoint"], folder / "log")]
        endpoint = subprocess.Popen(pinned(server_core, [str(program), *arguments]))
        time.sleep(0.3)
        started = time.time_ns()
        result = subprocess.run(
            pinned(client_core, [
                sys.executable, "-m", "surgeproof", "run", "--base-url", f"http://127.0.0.1:{PORT}/v1",
                "--db", f"sqlite:///{folder}/bench.db", "--input-len", "50",
                "--output-len", str(case["endpoint"][2]), "--json", *case["flags"],
            ]),
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        endpoint.terminate()
        endpoint.wait()
        if not result.stdout:
            sys.exit(result.stderr)
        return describe(folder, started, json.loads(result.stdout))


def describe(folder: Path, started_ns: int, run: dict[str, Any]) -> dict[str, Any]:
    """Rates, cost and errors of one run."""
    connection = sqlite3.connect(folder / "bench.db")
    rows = connection.execute(
        "SELECT plan_index, intended_at_ns, sent_at_ns, first_token_at_ns, done_at_ns, events, arrivals, "
        "coalesce(connected_at_ns - connect_at_ns, 0) FROM records WHERE outcome = 'ok'"
    ).fetchall()
    cpu, rss = connection.execute("SELECT avg(cpu_share), max(rss_bytes) FROM health").fetchone()
    connection.close()
    truth = read_log(folder / "log")
    sent = np.array([row[2] for row in rows])
    lag_ms = np.array([row[2] - row[1] - row[7] for row in rows]) / 1e6
    duration_s = (max(row[4] for row in rows) - sent.min()) / 1e9
    events = sum(row[5] for row in rows)
    ttft_error_ms, gap_error_ms = [], []
    for index, _, sent_at, first_at, _, _, packed, _ in rows:
        read_at, writes = truth[index]
        ttft_error_ms.append(abs((first_at - sent_at) - (int(writes[0]) - read_at)) / 1e6)
        steps = np.frombuffer(packed, dtype="<u4")[1:] / 1e3
        gap_error_ms.append(np.abs(steps - np.diff(writes) / 1e6).mean() if len(steps) else 0.0)
    planned_s = float(np.ptp([row[1] for row in rows])) / 1e9
    return {
        "requests": len(rows),
        "first_request_after_s": round((sent.min() - started_ns) / 1e9, 3),
        "requests_per_s": round(len(rows) / duration_s, 1),
        "achieved_rate_ratio": round(planned_s / (float(np.ptp(sent)) / 1e9), 5),
        "events_per_s": round(events / duration_s),
        "worker_cpu_share": round(cpu, 3),
        "cpu_us_per_event": round(cpu * duration_s * 1e6 / events, 2),
        "rss_mb": round(rss / 1e6),
        "send_lag_ms": quantiles(lag_ms),
        "ttft_error_ms": quantiles(np.array(ttft_error_ms)),
        "gap_error_ms": quantiles(np.array(gap_error_ms)),
        "verdict": run["verdict"],
        "breaches": [check["name"] for check in run["audit"]["checks"] if not check["passed"]],
    }


def read_log(path: Path) -> dict[int, tuple[int, np.ndarray]]:
    """The endpoint's truth: read time and write times of each request, by plan index."""
    data, offset, found = path.read_bytes(), 0, {}
    while offset < len(data):
        index, read_at, count = struct.unpack_from("<3Q", data, offset)
        offset += 24
        found[index] = (read_at, np.frombuffer(data, dtype="<u8", count=count, offset=offset).astype(np.int64))
        offset += 8 * count
    return found


def quantiles(values: np.ndarray) -> dict[str, float]:
    return {f"p{q}": round(float(np.quantile(values, q / 100)), 4) for q in (50, 99)} | {
        "max": round(float(values.max()), 4)
    }


def main() -> None:
    """Measure every case `BENCH_REPEATS` times (default 1) and keep medians by events a second."""
    repeats = int(os.environ.get("BENCH_REPEATS", "1"))
    cores = sorted(os.sched_getaffinity(0))
    report: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {
            "machine": platform.machine(),
            "system": platform.release(),
            "python": platform.python_version(),
            "cores": len(cores),
        },
        "repeats": repeats,
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        for label, case in CASES.items():
            found = sorted((measure(program, case, cores) for _ in range(repeats)), key=lambda r: r["events_per_s"])
            report["cases"][label] = found[len(found) // 2]
            print(label, json.dumps(report["cases"][label]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report['at'][:10]}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
