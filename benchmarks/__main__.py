"""`make bench`: every case of the load generator's own benchmark, as JSON in benchmarks/results/.

`python -m surgeproof.benchmarks busy` measures beside other programs on the same cores, and `... verdicts` prints how
often verdicts are wrong.
On a shared machine only ratios within one run say anything; `BENCH_REPEATS=5` keeps medians.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from surgeproof.benchmarks.measure import Case, build, closed_loop, measure, measure_c_client, open_loop
from surgeproof.benchmarks.verdicts import main as print_verdicts
from surgeproof.strict_json import JsonObject

_BUSY_RUNS = 20
RESULTS = Path(__file__).resolve().parent / "results"
CASES: dict[str, Case] = {
    "closed loop, 64 streams": closed_loop(64),
    "closed loop, 256 streams": closed_loop(256),
    "closed loop, 1000 streams": closed_loop(1000),
    "open loop, 50/s": open_loop(50),
    "open loop, 200/s": open_loop(200),
    "open loop, 500/s": open_loop(500),
    "open loop, 1000/s": open_loop(1000),
    "open loop, 500/s, Poisson": open_loop(500, arrivals="poisson"),
    "10000 streams, 1 event/s each": Case(users=10000, seconds=30, ttft_us=2_000_000, gap_us=1_000_000, tokens=20),
    "10000 streams, 10 events/s each": Case(users=10000, seconds=20, ttft_us=2_000_000, gap_us=100_000, tokens=100),
}


def main() -> None:
    """Run the benchmark that is named, that of the load generator by default."""
    parser = argparse.ArgumentParser(prog="python -m surgeproof.benchmarks")
    parser.add_argument("what", nargs="?", choices=("load", "busy", "verdicts"), default="load")
    {"load": measure_load, "busy": measure_busy, "verdicts": print_verdicts}[parser.parse_args().what]()


def measure_load() -> None:
    """Measure every case `BENCH_REPEATS` times (default 1) beside the C client; keep medians by events a second."""
    repeats = int(os.environ.get("BENCH_REPEATS", "1"))
    report = _report() | {"repeats": repeats, "cases": {}}
    with tempfile.TemporaryDirectory() as name:
        programs = Path(name)
        build(programs)
        for label, case in CASES.items():
            # In turns, so that both meet the same neighbours on a shared machine.
            pairs = [(measure_c_client(programs, case), measure(programs, case)) for _ in range(repeats)]
            c_client, result = (_median(runs) for runs in zip(*pairs, strict=True))
            report["cases"][label] = result | {"c_client": c_client, "ratio_to_c": _ratios(result, c_client)}
            print(label, json.dumps(report["cases"][label]), flush=True)
    _keep(report, "")


def measure_busy() -> None:
    """Measure beside a program that never rests on each core: do the client's bounds hold the endpoint's own p99?"""
    report = _report() | {"case": "open loop, 500/s", "runs": []}
    with tempfile.TemporaryDirectory() as name, _busy_cores():
        build(Path(name))
        for number in range(1, _BUSY_RUNS + 1):
            result = measure(Path(name), open_loop(500, 5))
            report["runs"].append(result["ttft_p99_ms"] | {"breaches": result["breaches"]})
            print(number, json.dumps(report["runs"][-1]), flush=True)
    report["contained"] = sum(run["contained"] for run in report["runs"])
    print(f"bounds contain the endpoint's own p99 in {report['contained']} of {_BUSY_RUNS} runs")
    _keep(report, "-busy")


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    programs = []
    try:
        for core in sorted(os.sched_getaffinity(0))[:2]:
            program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            os.sched_setaffinity(program.pid, {core})
            programs.append(program)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _report() -> JsonObject:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {
            "machine": platform.machine(),
            "system": platform.release(),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        },
    }


def _keep(report: JsonObject, suffix: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report['at'][:10]}{suffix}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {path}")


def _median(runs: Sequence[JsonObject]) -> JsonObject:
    return sorted(runs, key=lambda run: run["events_per_s"])[len(runs) // 2]


def _ratios(result: JsonObject, c_client: JsonObject) -> dict[str, float]:
    return {key: round(result[key] / c_client[key], 3) for key in ("events_per_s", "cpu_s_per_million_events")}


if __name__ == "__main__":
    main()
