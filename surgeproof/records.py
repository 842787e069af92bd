"""What is planned and measured, one record each, frozen.

A trace point becomes a planned request, and a planned request becomes exactly one stream record.
What is concluded from records (summaries, verdicts) is in `results`. All times are integers of
nanoseconds; `*_at_ns` are points on the run's clock (nanoseconds since the Unix epoch, advanced
monotonically), `*_ns` are durations.
"""

from enum import StrEnum

import msgspec

from surgeproof.outcomes import Outcome

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_DAY = 86_400 * NS_PER_S

BLOCK_TOKENS = 512
"""Tokens of a prompt block that a hash id of a trace names, as in Mooncake's."""

REQUEST_CLASSES = ("P0", "P1", "P2")
"""Service classes in order of urgency: payment-like, query-like, log-like."""


class Verdict(StrEnum):
    """The verdict on a rule or a run. Only PASS allows a release."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class RunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    BROKEN = "broken"


class Phase(StrEnum):
    """Which part of the run a record belongs to; only `main` is judged."""

    WARMUP = "warmup"
    MAIN = "main"


class TracePoint(msgspec.Struct, frozen=True):
    """One request of a recorded trace.

    Attributes:
        at_ns: time since the first row's time stamp, ns; not negative.
        input_tokens: prompt length, tokens.
        output_tokens: answer length, tokens, at least 1.
        row: line number in the source file, from 1.
        hash_ids: ids of prefix-chained prompt blocks (Mooncake), empty where unknown.
        request_class: P0, P1 or P2 where the trace says so.
        session: name of the conversation it belongs to, where the trace says so.
        think_s: time since the session's answer before, seconds, where the trace says so.
    """

    at_ns: int
    input_tokens: int
    output_tokens: int
    row: int
    hash_ids: tuple[int, ...] = ()
    request_class: str | None = None
    session: str | None = None
    think_s: float | None = None


class RequestPlan(msgspec.Struct, frozen=True):
    """One request, decided before the first byte of the run is sent.

    Attributes:
        index: position in the global schedule, from 0.
        intended_ns: planned time since the start of the run, ns; None in a closed loop.
        request_class: P0, P1 or P2.
        input_tokens: prompt tokens asked for.
        output_tokens: answer tokens asked for (`max_tokens`).
        prompt_seed: seed of this request's own text.
        session: conversation it is a turn of; None for a request on its own.
        turn: number of the turn, from 0.
        think_ns: time between the previous answer of the session and this request; None where unknown.
        cached_tokens: prompt tokens that an unlimited prefix cache would hold, by the plan.
        hash_ids: prefix-chained blocks that the prompt is made of, empty for a text of its own.
        model: index of its model among the run's.
        content: JSON of what a dataset's row puts into the body; None for a prompt that is made.
        items: texts of an embeddings request, documents of a rerank; 1 else.
        after: indexes of the requests whose answers it waits for.
        continues: index of the request whose conversation it goes on with, with the answer that this really got.
        needs_answers: whether it is sent only if those that it waits for were answered.
        with_answers: whether the answers that it waits for are told before its own message.
        answer_uses: how many later requests tell its answer.
    """

    index: int
    intended_ns: int | None
    request_class: str
    input_tokens: int
    output_tokens: int
    prompt_seed: int
    session: int | None = None
    turn: int = 0
    think_ns: int | None = None
    cached_tokens: int = 0
    hash_ids: tuple[int, ...] = ()
    model: int = 0
    content: bytes | None = None
    items: int = 1
    after: tuple[int, ...] = ()
    continues: int | None = None
    needs_answers: bool = False
    with_answers: bool = False
    answer_uses: int = 0


KEY_RENEWED = "api_key_renewed"
"""Warning of a record whose request was refused with HTTP 401 and sent again with a new key."""


class StreamRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What happened to one planned request; there is always exactly one.

    Optional times are None where the event did not happen. Token counts come from the server's
    `usage`, None where it sent none: events are never counted as tokens. `worker` is None for a
    request that no worker was known to have taken.

    Attributes:
        first_token_not_before_at_ns: the earliest that the first token can have come; that itself where its time is
            exact. Later tokens in the same read hide it: the kernel keeps the time of the last one.
        send_ns: how long the call that sent the last byte took; `sent_at_ns` is before it.
        max_gap_least_ns: the longest wait between arrivals of output that is certain, whatever merged reads hide.
        items: vectors or scores of the answer; None for answers of text.
        task: number of the conversation or task that it is a part of; None for a request on its own.
        turn: which turn or step of it, from 0.
        planned_cached_tokens: prompt tokens that an unlimited prefix cache would hold: what earlier requests shared.
    """

    plan_index: int
    request_class: str
    worker: int | None = 0
    step: int = 0
    phase: str = Phase.MAIN
    planned_input_tokens: int
    planned_output_tokens: int
    intended_at_ns: int
    dispatched_at_ns: int | None = None
    connect_at_ns: int | None = None
    resolved_at_ns: int | None = None
    tcp_connected_at_ns: int | None = None
    connected_at_ns: int | None = None
    sent_at_ns: int | None = None
    headers_at_ns: int | None = None
    first_byte_at_ns: int | None = None
    first_event_at_ns: int | None = None
    first_token_at_ns: int | None = None
    first_token_not_before_at_ns: int | None = None
    first_answer_at_ns: int | None = None
    last_token_at_ns: int | None = None
    done_at_ns: int | None = None
    outcome: str
    error: str | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    tpot_ns: int | None = None
    max_gap_ns: int | None = None
    max_gap_least_ns: int | None = None
    send_ns: int | None = None
    token_events: int = 0
    events: int = 0
    body_bytes: int = 0
    merged_reads: int = 0
    stamp_source: str | None = None
    retries: int = 0
    retry_after_s: float | None = None
    request_id: str | None = None
    server_timing: str | None = None
    warnings: tuple[str, ...] = ()
    arrivals: bytes | None = None
    model: str | None = None
    items: int | None = None
    task: int | None = None
    turn: int | None = None
    planned_cached_tokens: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the request counts as answered."""
        return self.outcome == Outcome.OK


class HealthSample(msgspec.Struct, omit_defaults=True):
    """How the load generator itself was doing over the last sampling interval.

    Attributes:
        at_ns: end of the interval on the run's clock.
        cpu_share: CPU time over wall time of this process; 1.0 is one core.
        loop_lag_ns: worst lateness of a 10 ms heartbeat of the event loop.
        gc_pause_ns: longest garbage collection.
        in_flight: requests on the wire.
        waiting: planned requests that were due but held back by the concurrency cap.
        clock_step_ns: change of realtime against monotonic time since the run's start.
        reads: reads of sockets with a kernel stamp.
        late_reads: those of them that came over 10 ms after the kernel had the data.
        run_delay_ns: time in which the process was ready to run, but other programs had the cores.
        throttled_ns: time for which a CPU quota stopped its control group.
        steal_ns: time in which a hypervisor ran something else, mean over all cores.
    """

    at_ns: int
    cpu_share: float
    loop_lag_ns: int
    gc_pause_ns: int
    in_flight: int
    waiting: int
    clock_step_ns: int
    rss_bytes: int = 0
    reads: int = 0
    late_reads: int = 0
    run_delay_ns: int = 0
    throttled_ns: int = 0
    steal_ns: int = 0


class WorkerFacts(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the master knows of one worker.

    Attributes:
        host: name of its host.
        clock_ahead_ns: the master's time minus the worker's, taken off its stamps.
        clock_uncertainty_ns: how well that is known; 0 where both read one clock.
        failure_reason: why it did not complete its share; None where it did.
    """

    worker: int
    host: str
    clock_ahead_ns: int = 0
    clock_uncertainty_ns: int = 0
    failure_reason: str | None = None


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Static facts about a GPU; None where it does not report a value.

    `counters`: whether it has SM counters (GPM, Hopper and newer).
    """

    uuid: str
    name: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    cpu_numa_node: int | None = None
    counters: bool = False


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one GPU; a value that it does not report is None, never zero.

    Attributes:
        time_active_pct: share of time in which any kernel ran. Not a measure of how busy a GPU is.
        sm_pct: share of SM time with a warp; occupancy_pct, tensor_pct, dram_pct: of warps, tensor pipe, bandwidth.
        throttle_bits: NVML's reasons for lower clocks.
    """

    gpu: str
    at_ns: int
    time_active_pct: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_bits: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    sm_pct: float | None = None
    occupancy_pct: float | None = None
    tensor_pct: float | None = None
    dram_pct: float | None = None
