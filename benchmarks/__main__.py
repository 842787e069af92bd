"""`make bench`: every case of the load generator's own benchmark, as JSON in benchmarks/results/.

`python -m surgeproof.benchmarks verdicts` prints how often verdicts are wrong instead.
On a shared machine only ratios within one run say anything; `BENCH_REPEATS=5` keeps medians.
"""

import argparse
import json
import os
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from surgeproof.benchmarks.measure import Case, build, closed_loop, measure, open_loop
from surgeproof.benchmarks.verdicts import main as print_verdicts
from surgeproof.strict_json import JsonObject

RESULTS = Path(__file__).resolve().parent / "results"
CASES: dict[str, Case] = {
    "closed loop, 64 streams": closed_loop(64),
    "closed loop, 256 streams": closed_loop(256),
    "closed loop, 1000 streams": closed_loop(1000),
    "open loop, 50/s": open_loop(50),
    "open loop, 200/s": open_loop(200),
    "open loop, 500/s": open_loop(500),
    "open loop, 1000/s": open_loop(1000),
    "10000 streams, 1 event/s each": Case(("--concurrency", "10000", "--duration", "30s"), 2_000_000, 1_000_000, 20),
    "10000 streams, 10 events/s each": Case(("--concurrency", "10000", "--duration", "20s"), 2_000_000, 100_000, 100),
}


def main() -> None:
    """Run the benchmark that is named, that of the load generator by default."""
    parser = argparse.ArgumentParser(prog="python -m surgeproof.benchmarks")
    parser.add_argument("what", nargs="?", choices=("load", "verdicts"), default="load")
    print_verdicts() if parser.parse_args().what == "verdicts" else measure_load()


def measure_load() -> None:
    """Measure every case `BENCH_REPEATS` times (default 1) and keep medians by events a second."""
    repeats = int(os.environ.get("BENCH_REPEATS", "1"))
    report: JsonObject = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {
            "machine": platform.machine(),
            "system": platform.release(),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "repeats": repeats,
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        for label, case in CASES.items():
            result = sorted((measure(program, case) for _ in range(repeats)), key=lambda run: run["events_per_s"])
            report["cases"][label] = result[len(result) // 2]
            print(label, json.dumps(report["cases"][label]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report['at'][:10]}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
