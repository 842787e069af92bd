"""One case: the null endpoint on one core, the whole product with one worker on another, and the reference times.

The product is run as a user runs it, through `surgeproof run`: schedule, sockets, parsing, records,
spool. The reference is the endpoint's own log of the times at which it read each request and wrote each event.
"""

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import UsageError
from surgeproof.strict_json import JsonObject

_SOURCE = Path(__file__).with_name("null_endpoint.c")
_TIMEOUT_S = 240.0
_TRANSIT_NS = 200_000
"""From one process to the other through the kernel, and what is known of the difference of their clocks."""


class Case(msgspec.Struct, frozen=True):
    """What is asked of both sides.

    Attributes:
        flags: of `surgeproof run`.
        ttft_us: from the request's last byte to the first event.
        gap_us: between events; 0 is as fast as the client reads.
        tokens: events of an answer.
    """

    flags: tuple[str, ...]
    ttft_us: int = 100_000
    gap_us: int = 10_000
    tokens: int = 50


def open_loop(rate: float, seconds: int = 8) -> Case:
    """A constant rate of 50-token answers, an event every 10 ms."""
    return Case(("--request-rate", f"{rate:g}", "--arrivals", "constant", "--duration", f"{seconds}s"))


def closed_loop(users: int, seconds: int = 6, *, tokens: int = 200) -> Case:
    """Answers as fast as they are read."""
    return Case(("--concurrency", str(users), "--duration", f"{seconds}s"), 1000, 0, tokens)


def build(folder: Path) -> Path:
    """Compile the null endpoint.

    Raises:
        UsageError: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UsageError("measuring this host needs a C compiler for the endpoint with known timing: install gcc")
    program = folder / "null_endpoint"
    subprocess.run([compiler, "-O2", "-o", str(program), str(_SOURCE)], check=True)
    return program


def measure(program: Path, case: Case) -> JsonObject:
    """Run one case and describe it.

    Raises:
        UsageError: the run could not be made; its own message says why.
    """
    cores = sorted(os.sched_getaffinity(0))
    client_core, endpoint_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    with tempfile.TemporaryDirectory() as name, _endpoint(program, case, Path(name), endpoint_core) as base_url:
        started_ns = time.time_ns()
        command = [
            sys.executable, "-m", "surgeproof", "run", "--base-url", base_url, "--db", f"sqlite:///{name}/bench.db",
            "--input-len", "50", "--output-len", str(case.tokens), "--json", *case.flags,
        ]  # fmt: skip
        result = subprocess.run(
            _pinned(client_core, command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if not result.stdout:
            raise UsageError(f"the measuring run failed: {result.stderr.strip()}")
        return _described(Path(name), started_ns, json.loads(result.stdout))


@contextlib.contextmanager
def _endpoint(program: Path, case: Case, folder: Path, core: int | None) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [port, case.ttft_us, case.gap_us, case.tokens, folder / "log"]
    child = subprocess.Popen(_pinned(core, [str(program), *map(str, arguments)]))
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        child.terminate()
        child.wait()


def _pinned(core: int | None, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if core is not None and shutil.which("taskset") else command


def _described(folder: Path, started_ns: int, run: JsonObject) -> JsonObject:
    """Rates, cost and errors of one run; `truth` is complete only after the endpoint's log was flushed."""
    with contextlib.closing(sqlite3.connect(folder / "bench.db")) as connection:
        rows = connection.execute(
            "SELECT plan_index, intended_at_ns, sent_at_ns, first_token_at_ns, done_at_ns, events, arrivals, "
            "coalesce(connected_at_ns - connect_at_ns, 0), first_token_not_before_at_ns FROM records "
            "WHERE outcome = 'ok'"
        ).fetchall()
        cpu, rss = connection.execute("SELECT avg(cpu_share), max(rss_bytes) FROM health").fetchone()
    if not rows:
        raise UsageError("the measuring run got no answer at all")
    truth = _read_log(folder / "log")
    sent = np.array([row[2] for row in rows])
    lag_ms = np.array([row[2] - row[1] - row[7] for row in rows]) / 1e6
    duration_s = (max(row[4] for row in rows) - sent.min()) / 1e9
    events = sum(row[5] for row in rows)
    # The client's clock less the endpoint's: no request is read before it is sent, and most at once.
    anchor_ns = max((row[2] - truth[row[0]][0] for row in rows if row[0] in truth), default=0)
    ttft_error_ms, gap_error_ms, outside, vague_ms = [], [], 0, []
    for index, _, sent_at, first_at, _, _, packed, _, early_at in rows:
        if index not in truth:
            continue
        read_at, writes = truth[index]
        ttft_error_ms.append(abs((first_at - sent_at) - (int(writes[0]) - read_at)) / 1e6)
        outside += not early_at - _TRANSIT_NS <= int(writes[0]) + anchor_ns <= first_at + _TRANSIT_NS
        vague_ms.append((first_at - early_at) / 1e6)
        steps = np.frombuffer(packed, dtype="<u4")[1:] / 1e3
        gap_error_ms.append(np.abs(steps - np.diff(writes) / 1e6).mean() if len(steps) else 0.0)
    planned_s = float(np.ptp([row[1] for row in rows])) / 1e9
    return {
        "requests": len(rows),
        "first_request_after_s": round((sent.min() - started_ns) / 1e9, 3),
        "requests_per_s": round(len(rows) / duration_s, 1),
        "achieved_rate_ratio": round(planned_s / (float(np.ptp(sent)) / 1e9), 5) if len(rows) > 1 else 1.0,
        "events_per_s": round(events / duration_s),
        "worker_cpu_share": round(cpu, 3),
        "cpu_s_per_million_events": round(cpu * duration_s * 1e6 / events, 2),
        "rss_mb": round(rss / 1e6),
        "send_lag_ms": _quantiles(lag_ms),
        "ttft_error_ms": _quantiles(np.array(ttft_error_ms)),
        "ttft_uncertainty_ms": _quantiles(np.array(vague_ms)),
        "ttft_outside_bounds": round(outside / max(1, len(ttft_error_ms)), 5),
        "gap_error_ms": _quantiles(np.array(gap_error_ms)),
        "breaches": [check["name"] for check in run["audit"]["checks"] if not check["passed"]],
    }


def _read_log(path: Path) -> dict[int, tuple[int, npt.NDArray[np.int64]]]:
    """The endpoint's truth: read time and write times of each request, by plan index."""
    data, offset, result = path.read_bytes(), 0, {}
    while offset + 24 <= len(data):
        index, read_at, count = struct.unpack_from("<3Q", data, offset)
        offset += 24
        if offset + 8 * count > len(data):
            break
        result[index] = (read_at, np.frombuffer(data, dtype="<u8", count=count, offset=offset).astype(np.int64))
        offset += 8 * count
    return result


def _quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    if len(values) == 0:
        return {}
    results = {f"p{q}": round(float(np.quantile(values, q / 100)), 4) for q in (50, 99)}
    return results | {"max": round(float(values.max()), 4)}
