"""One case: the null endpoint on one core, a client on another, and the reference times.

The client is the whole product with one worker, run as a user runs it, through `surgeproof run`: schedule, sockets,
parsing, records, spool; or the C client, which does the least that any client can. The reference is the endpoint's own
log of the times at which it read each request and wrote each event.
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

_SOURCES = ("null_endpoint", "epoll_client")
_TIMEOUT_S = 240.0
_TRANSIT_NS = 200_000
"""From one process to the other through the kernel, and what is known of the difference of their clocks."""


class Case(msgspec.Struct, frozen=True):
    """What is asked of both sides.

    Attributes:
        rate: requests a second; 0 for `users`.
        arrivals: `constant` or `poisson`.
        users: requests in flight.
        seconds: of load.
        ttft_us: from the request's last byte to the first event.
        gap_us: between events; 0 is as fast as the client reads.
        tokens: events of an answer.
        turns: of live conversations, whose later turns tell the answers before; 0 for requests on their own.
    """

    rate: float = 0
    arrivals: str = "constant"
    users: int = 0
    seconds: int = 8
    ttft_us: int = 100_000
    gap_us: int = 10_000
    tokens: int = 50
    turns: int = 0

    @property
    def flags(self) -> list[str]:
        """Of `surgeproof run`."""
        load = ["--concurrency", str(self.users)]
        if self.rate:
            load = ["--request-rate", f"{self.rate:g}", "--arrivals", self.arrivals]
        load += ["--turns", "live", "--session-turns", str(self.turns)] if self.turns else []
        return ["--input-len", "50", "--output-len", str(self.tokens), "--duration", f"{self.seconds}s", *load]


def open_loop(rate: float, seconds: int = 8, arrivals: str = "constant") -> Case:
    """50-token answers at a given rate, an event every 10 ms."""
    return Case(rate=rate, arrivals=arrivals, seconds=seconds)


def closed_loop(users: int, seconds: int = 6, *, tokens: int = 200) -> Case:
    """Answers as fast as they are read."""
    return Case(users=users, seconds=seconds, ttft_us=1000, gap_us=0, tokens=tokens)


def build(folder: Path) -> None:
    """Compile the null endpoint and the C client into a folder.

    Raises:
        UsageError: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UsageError("measuring this host needs a C compiler for the endpoint with known timing: install gcc")
    for name in _SOURCES:
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run([compiler, "-O2", "-o", str(folder / name), str(source), "-lm"], check=True)


def measure_c_client(programs: Path, case: Case) -> JsonObject:
    """Run one case by the C client.

    Raises:
        UsageError: it ended with an error.
    """
    client_core, endpoint_core = _cores()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _endpoint(programs, case, folder, endpoint_core) as port:
            arguments = [port, case.users, case.rate, case.arrivals, case.seconds, folder / "client.log"]
            result = _run(_pinned(client_core, [str(programs / "epoll_client"), *map(str, arguments)]))
        if result.returncode:
            raise UsageError(f"the C client failed: {result.stderr.strip()}")
        rows = np.fromfile(folder / "client.log", dtype="<u8").astype(np.int64).reshape(-1, 4)
        truth = _read_log(folder / "log")
    events, duration_s, cpu_s = map(float, result.stdout.split())
    errors = [_first_token_error_ms(sent, first, *truth[index]) for index, _, sent, first in rows if index in truth]
    return {
        "events_per_s": round(events / duration_s),
        "cpu_s_per_million_events": round(cpu_s * 1e6 / events, 2),
        "send_lag_ms": _quantiles((rows[:, 2] - rows[:, 1]) / 1e6),
        "ttft_error_ms": _quantiles(np.array(errors)),
        "sent_gaps_ks": _distance_from_exponential(rows[:, 2]),
    }


def measure(programs: Path, case: Case) -> JsonObject:
    """Run one case by the product and describe it.

    Raises:
        UsageError: the run could not be made; its own message says why.
    """
    client_core, endpoint_core = _cores()
    with tempfile.TemporaryDirectory() as name:
        with _endpoint(programs, case, Path(name), endpoint_core) as port:
            started_ns = time.time_ns()
            command = [
                sys.executable, "-m", "surgeproof", "run", "--base-url", f"http://127.0.0.1:{port}/v1", "--db",
                f"sqlite:///{name}/bench.db", "--json", *case.flags,
            ]  # fmt: skip
            result = _run(_pinned(client_core, command))
        if not result.stdout:
            raise UsageError(f"the measuring run failed: {result.stderr.strip()}")
        return _described(Path(name), started_ns, json.loads(result.stdout))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _cores() -> tuple[int | None, int | None]:
    """A core for the client and one for the endpoint, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (None, None)


@contextlib.contextmanager
def _endpoint(programs: Path, case: Case, folder: Path, core: int | None) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [port, case.ttft_us, case.gap_us, case.tokens, folder / "log"]
    child = subprocess.Popen(_pinned(core, [str(programs / "null_endpoint"), *map(str, arguments)]))
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        yield port
    finally:
        child.terminate()
        child.wait()


def _pinned(core: int | None, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if core is not None and shutil.which("taskset") else command


def _described(folder: Path, started_ns: int, run: JsonObject) -> JsonObject:
    """Rates, cost and errors of one run, after the endpoint has written the rest of its log."""
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
    ttft_error_ms, gap_error_ms, outside, bounds_ms = [], [], 0, []
    for index, _, sent_at, first_at, _, _, packed, _, early_at in rows:
        if index not in truth:
            continue
        read_at, writes = truth[index]
        ttft_error_ms.append(_first_token_error_ms(sent_at, first_at, read_at, writes))
        wrote_at = int(writes[0]) + anchor_ns
        outside += not early_at - _TRANSIT_NS <= wrote_at <= first_at + _TRANSIT_NS
        bounds_ms.append([(at - sent_at) / 1e6 for at in (early_at, wrote_at, first_at)])
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
        "planned_gaps_ks": _distance_from_exponential(np.array([row[1] for row in rows])),
        "sent_gaps_ks": _distance_from_exponential(sent),
        "ttft_error_ms": _quantiles(np.array(ttft_error_ms)),
        "ttft_uncertainty_ms": _quantiles(np.array([late - early for early, _, late in bounds_ms])),
        "ttft_p99_ms": _percentiles(bounds_ms),
        "ttft_outside_bounds": round(outside / max(1, len(ttft_error_ms)), 5),
        "gap_error_ms": _quantiles(np.array(gap_error_ms)),
        "breaches": [check["name"] for check in run["audit"]["checks"] if not check["passed"]],
    }


def _first_token_error_ms(sent_at: int, first_at: int, read_at: int, writes: npt.NDArray[np.int64]) -> float:
    """Difference of the client's first-token time from the endpoint's own."""
    return abs((first_at - sent_at) - (int(writes[0]) - read_at)) / 1e6


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


def _distance_from_exponential(times_ns: npt.NDArray[np.int64]) -> float:
    """Kolmogorov-Smirnov distance of the gaps from an exponential law of their own mean: small for Poisson arrivals."""
    gaps = np.sort(np.diff(np.sort(times_ns)))
    if len(gaps) == 0:
        return 1.0
    law = -np.expm1(-gaps / gaps.mean())
    above = np.arange(1, len(gaps) + 1) / len(gaps) - law
    return round(float(max(above.max(), (law - np.arange(len(gaps)) / len(gaps)).max())), 4)


def _percentiles(bounds_ms: list[list[float]]) -> JsonObject:
    """The 99th percentile of first-token times from the send: the client's bounds for it, and by the endpoint's log."""
    if not bounds_ms:
        return {}
    early, true, late = (round(float(value), 4) for value in np.quantile(np.array(bounds_ms), 0.99, axis=0))
    transit = _TRANSIT_NS / 1e6
    return {"low": early, "true": true, "high": late, "contained": early - transit <= true <= late + transit}


def _quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    if len(values) == 0:
        return {}
    results = {f"p{q}": round(float(np.quantile(values, q / 100)), 4) for q in (50, 99)}
    return results | {"max": round(float(values.max()), 4)}
