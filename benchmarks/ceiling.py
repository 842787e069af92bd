"""Measures this host's timing error and ceiling by increasing paced loads, until the client's audit fails."""

import os
import platform
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from surgeproof.benchmarks.measure import build, closed_loop, measure, open_loop
from surgeproof.errors import UsageError
from surgeproof.loadgen.ceiling import Ceiling, StampError

_RATES = (25, 50, 100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400)
_SECONDS = 5
_TRIES = 2  # a short stall of a shared machine is not the ceiling


def measure_ceiling(report: Callable[[str], None]) -> Ceiling:
    """Measure this host; takes about a minute.

    Args:
        report: called with a line about each step.

    Raises:
        UsageError: there is no C compiler, or the audit fails at the lowest load.
    """
    errors, events_per_s = [], 0.0
    with tempfile.TemporaryDirectory() as name:
        programs = Path(name)
        build(programs)
        for rate in _RATES:
            for _ in range(_TRIES):
                result = measure(programs, open_loop(rate, _SECONDS))
                if not result["breaches"]:
                    break
            error = result["ttft_error_ms"]
            report(
                f"{rate:5g} requests/s of 50 tokens: first token within {error['p50']:.3f} ms (p50), "
                f"{error['p99']:.3f} ms (p99); {result['worker_cpu_share']:.0%} of a core"
                + (f"; {', '.join(result['breaches'])}" if result["breaches"] else "")
            )
            if result["breaches"]:
                break
            errors.append(StampError(rate, error["p50"], error["p99"]))
            events_per_s = float(result["events_per_s"])
        requests = measure(programs, closed_loop(64, _SECONDS, tokens=1))
    if not errors:
        raise UsageError("the client's audit fails at the lowest load already: end other programs and try again")
    report(f"ceiling of one process: {events_per_s:.0f} events/s, {requests['requests_per_s']:.0f} requests/s")
    return Ceiling(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        cores=len(os.sched_getaffinity(0)),
        events_per_s=events_per_s,
        requests_per_s=float(requests["requests_per_s"]),
        stamp_errors=tuple(errors),
    )
