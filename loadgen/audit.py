"""Is the client itself trustworthy? Judged before any objective. Pure over records and samples.

Each check compares what the load generator did with the plan, and states the remedy
in words. Time that opening a connection took is the network's and the server's, and time for which
the concurrency cap held a request back is the server's: both are taken off the send lag.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.audit_results import Audit, AuditCheck, CapWait, ClientError, Effect
from surgeproof.columns import RecordColumns
from surgeproof.dispersion import dispersion
from surgeproof.loadgen.token_audit import cache_checks, output_checks, prompt_checks
from surgeproof.outcomes import Outcome
from surgeproof.records import KEY_RENEWED, HealthSample, WorkerFacts
from surgeproof.send_lag import cap_wait_ms, own_lag_ms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MIN_DISPERSION_WINDOWS = 30
"""With fewer whole windows, an index of dispersion is too uncertain to judge by."""
DISPERSION_TOLERANCE = 0.05
RATE_TOLERANCE = 0.01
_LAG = "send_lag_p99"
_LAG_FLOOR_MS = 5.0
_LAG_SHARE = 0.02
_WAITED_MS = 1.0
_MERGED_SHARE = 0.05
"""Verdicts allow for what merged reads hide; figures that are compared with other runs' do not."""
_NOTICEABLE = 0.05
"""From this share of the time on, what the host took is named as the cause."""
_THROTTLED_SHARE = 0.01
_BUSY = 0.7
"""From this share of a core on, a worker's own work is named as the cause."""
_MORE_PROCESSES = "use more worker processes (--processes) or a lower rate"


def audit_run(
    columns: RecordColumns,
    health: Mapping[int, Sequence[HealthSample]],
    workers: Sequence[WorkerFacts] = (),
    *,
    open_loop: bool,
    interrupted: bool,
    tightest_ms: float | None,
    cap: int,
    processes: int = 1,
    fixed_lengths: bool = False,
    damaged_bytes: int = 0,
    broken: bool = False,
    shared_tokens: Ints | None = None,
    made_prompts: Mask | None = None,
) -> Audit:
    """Audit one run.

    Args:
        columns: the run's records.
        health: samples by worker.
        workers: what the master noted of them, where there was one.
        open_loop: whether the load had a schedule of its own.
        interrupted: the user ended the run early, so unsent requests are not a fault.
        tightest_ms: the smallest latency objective, ms.
        cap: requests in flight at most, over all workers (open loop).
        processes: workers that shared it.
        fixed_lengths: the requests forbade an early end, so output lengths are a part of the plan.
        damaged_bytes: of the workers' spools, that could not be read.
        broken: the load generator failed, so its records may be incomplete.
        shared_tokens: prompt tokens of each record that an earlier prompt of the plan shares; shape (n,). None where
            prompts may repeat those of other runs, so that hits in the server's cache are wanted.
        made_prompts: records whose prompts were made to planned lengths, and not taken from a dataset, whose lengths
            are estimates; shape (n,). None for all.
    """
    outcome = columns.texts("outcome")
    waits_ms = cap_wait_ms(columns, max(1, cap // max(1, processes))) if open_loop else np.zeros(len(columns))
    cause = _cause(health)
    checks = [_lag(columns, waits_ms, tightest_ms, cause), _merged(columns, tightest_ms, cause)]
    if open_loop:
        unsent = int((outcome == Outcome.NOT_SENT).sum())
        if not interrupted:
            remedy = f"{unsent} planned requests were not sent: see their reasons; {_MORE_PROCESSES}"
            checks.append(AuditCheck.at_most("not_sent", float(unsent), 0.0, "requests", remedy, Effect.LESS_LOAD))
        checks += _fidelity(columns, waits_ms, cause)
    refused = int((outcome == Outcome.CLIENT_RESOURCE).sum())
    remedy = (
        f"{refused} requests failed on this host, for lack of descriptors, ports or memory (their errors say which): "
        "raise 'ulimit -n' or net.ipv4.ip_local_port_range, or lower the rate"
    )
    checks.append(AuditCheck.at_most("client_resource", float(refused), 0.0, "requests", remedy, Effect.RECORDS))
    checks += _record_checks(damaged_bytes, broken=broken)
    checks += _worker_checks(workers)
    checks += _health_checks(health, cause, open_loop=open_loop)
    made = np.ones(len(columns), dtype=np.bool_) if made_prompts is None else made_prompts
    checks += prompt_checks(columns, made)
    if shared_tokens is not None:
        checks += cache_checks(columns, made, shared_tokens)
    if fixed_lengths:
        checks += output_checks(columns)
    error = ClientError(
        send_ms=_largest(own_lag_ms(columns, waits_ms)) if open_loop else 0.0,
        read_ms=max((max(s.loop_lag_ns, s.gc_pause_ns) / 1e6 for one in health.values() for s in one), default=0.0),
        clock_ms=_clock_error_ms(health, workers),
    )
    return Audit(tuple(check for check in checks if check is not None), _cap_wait(columns, waits_ms, cap), error)


def _largest(values_ms: Floats) -> float:
    known = values_ms[~np.isnan(values_ms)]
    return max(0.0, float(known.max())) if len(known) else 0.0


def _clock_error_ms(health: Mapping[int, Sequence[HealthSample]], workers: Sequence[WorkerFacts]) -> float:
    step_ns = max((abs(sample.clock_step_ns) for one in health.values() for sample in one), default=0)
    return (step_ns + max((facts.clock_uncertainty_ns for facts in workers), default=0)) / 1e6


def _record_checks(damaged_bytes: int, *, broken: bool) -> list[AuditCheck]:
    """Whether all that was measured is there: what is missing may have been the worst."""
    unreadable = f"{damaged_bytes} bytes of what the workers recorded cannot be read, so records are missing"
    failed = "the load generator failed, so records may be missing (its message says why)"
    return [
        AuditCheck.at_most(name, float(count), 0.0, unit, f"{what}: check the disk and run again", Effect.RECORDS)
        for name, count, unit, what in (
            ("spool_damaged_bytes", damaged_bytes, "bytes", unreadable),
            ("load_generator_failed", int(broken), "", failed),
        )
    ]


def _cap_wait(columns: RecordColumns, wait_ms: Floats, cap: int) -> CapWait | None:
    sent = columns.has("sent_at_ns")
    waited = int((wait_ms[sent] > _WAITED_MS).sum())
    if not waited:
        return None
    p99 = float(np.quantile(wait_ms[sent], 0.99, method="inverted_cdf"))
    return CapWait(cap, waited, int(sent.sum()), round(p99, 3))


def with_objectives(audit: Audit, tightest_ms: float | None) -> Audit:
    """A stored audit under other objectives: the send lag may be a share of their tightest latency."""
    limit = lag_limit_ms(tightest_ms)
    checks = tuple(
        msgspec.structs.replace(check, limit=limit, passed=check.observed is not None and check.observed <= limit)
        if check.name == _LAG
        else check
        for check in audit.checks
    )
    return msgspec.structs.replace(audit, checks=checks)


def lag_limit_ms(tightest_ms: float | None) -> float:
    """The largest accepted p99 of the send lag, by the tightest latency objective, ms."""
    return max(_LAG_FLOOR_MS, _LAG_SHARE * (tightest_ms or 0.0))


def _merged(columns: RecordColumns, tightest_ms: float | None, cause: str) -> AuditCheck | None:
    """Streams whose first token is known too vaguely, as the client read it with later ones.

    Gaps over merged reads are left to the verdicts, which take them as pairs: one of fifty must not void first tokens.
    """
    streamed = (columns.texts("outcome") == Outcome.OK) & columns.has("first_token_not_before_at_ns")
    if not streamed.any():
        return None
    limit_ms = lag_limit_ms(tightest_ms)
    uncertain_ms = columns.between_ms("first_token_at_ns", "first_token_not_before_at_ns")[streamed]
    share = float((uncertain_ms > limit_ms).mean())
    remedy = (
        f"{share:.1%} of the first tokens are uncertain by over {limit_ms:.3g} ms, as the client read them with later "
        f"ones: {cause}"
    )
    return AuditCheck.at_most("merged_first_tokens_share", share, _MERGED_SHARE, "ratio", remedy, Effect.LATE_READ)


def _lag(columns: RecordColumns, waits_ms: Floats, tightest_ms: float | None, cause: str) -> AuditCheck | None:
    # A request that its key delayed was sent twice, the first time as planned.
    in_one_attempt = columns.has("sent_at_ns") & ~columns.texts("warnings").containing(KEY_RENEWED)
    lag = own_lag_ms(columns, waits_ms)[in_one_attempt]
    if len(lag) == 0:
        return None
    # Of under 200 requests a single one would be the p99: two that are late are no pattern.
    rank = min(math.ceil(0.99 * len(lag)), max(1, len(lag) - 2))
    p99 = float(np.partition(lag, rank - 1)[rank - 1])
    remedy = f"requests left {p99:.1f} ms late at p99: {cause}"
    return AuditCheck.at_most(_LAG, p99, lag_limit_ms(tightest_ms), "ms", remedy, Effect.LATE_SEND)


def _fidelity(columns: RecordColumns, waits_ms: Floats, cause: str) -> list[AuditCheck]:
    """Rate and dispersion of what was sent against what was planned, or allowed by the cap."""
    has_left = columns.has("sent_at_ns")
    if has_left.sum() < 2:
        return []
    allowed_ns = columns.integers("intended_at_ns") + np.round(waits_ms * 1e6).astype(np.int64)
    planned, sent = np.sort(allowed_ns[has_left]), np.sort(columns.integers("sent_at_ns")[has_left])
    planned, sent = planned - planned[0], sent - planned[0]
    planned_span, sent_span = float(planned[-1]) / 1e9, float(sent[-1] - sent[0]) / 1e9
    checks = []
    # Under 5 ms a difference of spans is the lag of two single requests, not a rate.
    if planned_span > 0.5:
        off = max(0.0, abs(sent_span - planned_span) - 0.005) / planned_span
        remedy = f"the achieved rate is off by {off:.1%}: {cause}"
        effect = Effect.LESS_LOAD if sent_span >= planned_span else Effect.MORE_LOAD
        checks.append(AuditCheck.at_most("achieved_rate_error", off, RATE_TOLERANCE, "ratio", remedy, effect))
    planned_idc, sent_idc = (dispersion(times / 1e9, 1.0, MIN_DISPERSION_WINDOWS) for times in (planned, sent))
    if planned_idc is not None and sent_idc is not None:
        off = dispersion_error(planned_idc, sent_idc)
        how = "less" if sent_idc <= planned_idc else "more"
        remedy = f"the sent times are {how} bursty than planned (dispersion off by {off:.0%}): {cause}"
        effect = Effect.LESS_LOAD if sent_idc <= planned_idc else Effect.MORE_LOAD
        checks.append(AuditCheck.at_most("dispersion_error", off, DISPERSION_TOLERANCE, "ratio", remedy, effect))
    return checks


def dispersion_error(planned: float, achieved: float) -> float:
    """How far an achieved index of dispersion is off the planned one, as a ratio.

    Of at least Poisson's 1: relative to a planned value near 0, any error would be large.
    """
    return abs(achieved - planned) / max(planned, 1.0)


def _worker_checks(workers: Sequence[WorkerFacts]) -> list[AuditCheck]:
    """Whether all workers completed their shares, and how well the clocks of their hosts are known."""
    if not workers:
        return []
    lost = [
        f"worker {facts.worker} on {facts.host} {facts.failure_reason}" for facts in workers if facts.failure_reason
    ]
    checks = [AuditCheck.at_most("workers_lost", float(len(lost)), 0.0, "workers", "; ".join(lost))]
    uncertainty_ms = max(facts.clock_uncertainty_ns for facts in workers) / 1e6
    remedy = (
        f"the clock of a worker's host is known to within {uncertainty_ms:.1f} ms only: "
        "put master and workers on one network, or run on one host with --processes"
    )
    return [
        *checks,
        AuditCheck.at_most("clock_uncertainty_max", uncertainty_ms, _LAG_FLOOR_MS, "ms", remedy, Effect.CLOCK),
    ]


def _health_checks(health: Mapping[int, Sequence[HealthSample]], cause: str, *, open_loop: bool) -> list[AuditCheck]:
    checks = []
    # A client that reads late sends the next request of a closed loop late, too.
    reading = (Effect.LATE_READ,) if open_loop else (Effect.LATE_READ, Effect.LESS_LOAD)
    slow = (Effect.LATE_SEND, *reading)
    busy = {w: float(np.median([s.cpu_share for s in samples])) for w, samples in health.items() if samples}
    if busy:
        worst = max(busy, key=lambda worker: busy[worker])
        over = sum(share > 0.95 for share in busy.values())
        remedy = f"{over} of {len(busy)} workers were CPU-bound (worker {worst}: {busy[worst]:.0%}): {_MORE_PROCESSES}"
        checks.append(AuditCheck.at_most("worker_cpu_share", busy[worst], 0.95, "of a core", remedy, *slow))
    samples = [sample for of_worker in health.values() for sample in of_worker]
    if samples:
        lags = np.array([sample.loop_lag_ns for sample in samples]) / 1e6
        lag = float(np.quantile(lags, 0.99, method="inverted_cdf"))
        remedy = f"the event loop was blocked for {lag:.0f} ms: {cause}"
        checks.append(AuditCheck.at_most("loop_lag_p99", lag, 100.0, "ms", remedy, *reading))
        checks.append(_throttled(health, slow))
        pause = max(sample.gc_pause_ns for sample in samples) / 1e6
        checks.append(
            AuditCheck.at_most("gc_pause_max", pause, 50.0, "ms", f"a garbage collection took {pause:.0f} ms", *reading)
        )
        step = max(abs(sample.clock_step_ns) for sample in samples) / 1e6
        remedy = f"the wall clock moved by {step:.0f} ms against the monotonic one: check time synchronisation (NTP)"
        checks.append(AuditCheck.at_most("clock_step_max", step, 50.0, "ms", remedy, Effect.CLOCK))
    return checks


def _cause(health: Mapping[int, Sequence[HealthSample]]) -> str:
    """What to do about a client that was late, by what the host took from its worst worker."""
    throttled, stolen, waited = (
        _taken_share(health, name) for name in ("throttled_ns", "steal_ns", "run_delay_ns")
    )  # fmt: skip
    if throttled > _THROTTLED_SHARE:
        return f"a CPU quota stopped the client for {throttled:.0%} of the time; raise its container's CPU limit"
    if stolen > _NOTICEABLE:
        return f"the hypervisor ran other guests for {stolen:.0%} of the time; use a host whose cores are not shared"
    if waited > _NOTICEABLE:
        return (
            f"other programs had the cores for {waited:.0%} of the time; stop them, or give the client cores of its own"
        )
    busy = max((float(np.median([s.cpu_share for s in one])) for one in health.values() if one), default=0.0)
    if busy > _BUSY:
        return f"a worker was busy for {busy:.0%} of a core; {_MORE_PROCESSES}"
    return "nothing that this host counts explains it; run again, or give the client cores of its own"


def _throttled(health: Mapping[int, Sequence[HealthSample]], slow: tuple[Effect, ...]) -> AuditCheck:
    share = _taken_share(health, "throttled_ns")
    remedy = f"a CPU quota stopped the client for {share:.1%} of the time: raise its container's CPU limit"
    return AuditCheck.at_most("cpu_throttled_share", share, _THROTTLED_SHARE, "ratio", remedy, *slow)


def _taken_share(health: Mapping[int, Sequence[HealthSample]], name: str) -> float:
    """Share of the time that the host took from the worker that lost most."""
    shares = [0.0]
    for samples in health.values():
        span_ns = samples[-1].at_ns - samples[0].at_ns if samples else 0
        if span_ns > 0:
            shares.append(sum(getattr(sample, name) for sample in samples[1:]) / span_ns)
    return max(shares)
