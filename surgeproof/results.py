"""What is concluded from the records of a run, frozen: summary, verdicts, audit, and the stored run.

Terminal, pages, reports and database all show these objects; nobody computes them twice. A ratio is
from 0 to 1; names end in their unit.
"""

from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType, field

from surgeproof.records import GpuFacts, RunState, Verdict, WorkerFacts
from surgeproof.scenario import Scenario


class Interval(Struct, frozen=True):
    """A confidence interval; an end that the sample cannot bound is None."""

    low: float | None
    high: float | None
    confidence: float = 0.95


class RuleVerdict(Struct, frozen=True, kw_only=True):
    """The verdict on one SLO rule for one class.

    Attributes:
        observed: the metric's value in the rule's unit; None where it does not exist.
        bound: the rule's bound in the same unit.
        n: number of requests that decide (failures included).
        attainment: share of requests that met a per-request bound, None for rules without one.
        interval: confidence interval of the observed value.
        reason: why, in one sentence.
    """

    request_class: str
    rule: str
    metric: str
    unit: str
    observed: float | None
    bound: float
    n: int
    interval: Interval
    verdict: Verdict
    reason: str
    attainment: float | None = None


class Effect(StrEnum):
    """What a breach of an audit check can have done to a run's figures."""

    RECORDS = "records"
    """Records are missing or wrong: nothing that is counted from them stands."""
    LATE_SEND = "late_send"
    """Requests left late: latencies from the planned time hold the client's delay."""
    LATE_READ = "late_read"
    """Answers were read late: latencies and gaps hold the client's delay."""
    CLOCK = "clock"
    """Times are off by a known amount, either way."""
    LESS_LOAD = "less_load"
    """The server had less to do than planned: what it missed stands, what it met does not."""
    MORE_LOAD = "more_load"
    """The server had more to do than planned: what it met stands, what it missed does not."""


class AuditCheck(Struct, frozen=True):
    """One condition that the load generator itself had to meet.

    Attributes:
        effects: what a breach can have changed; unknown where empty, so that it voids all latencies and rates.
    """

    name: str
    observed: float | None
    limit: float
    unit: str
    passed: bool
    remedy: str
    effects: tuple[Effect, ...] = ()

    @classmethod
    def at_most(
        cls, name: str, observed: float, limit: float, unit: str, remedy: str, *effects: Effect
    ) -> "AuditCheck":
        """A check that is passed by values up to the limit."""
        return cls(name, round(observed, 6), limit, unit, observed <= limit, remedy, effects)


class CapWait(Struct, frozen=True):
    """Requests that were due while as many as `--max-concurrency` were in flight: the server's doing, not the client's.

    Attributes:
        cap: requests in flight at most.
        requests: how many waited for a place.
        sent: of how many that were sent.
        p99_ms: wait for a place, over those that were sent.
    """

    cap: int
    requests: int
    sent: int
    p99_ms: float


class ClientError(Struct, frozen=True):
    """How far off single latencies can be by the client's doing at most, ms.

    Attributes:
        send_ms: the largest lag of a send.
        read_ms: the longest time for which the client read nothing.
        clock_ms: error of its clocks, either way.
    """

    send_ms: float = 0.0
    read_ms: float = 0.0
    clock_ms: float = 0.0


class Audit(Struct, frozen=True):
    """Is the client trustworthy? A breach voids the objectives that it can have changed."""

    checks: tuple[AuditCheck, ...] = ()
    cap_wait: CapWait | None = None
    error: ClientError = ClientError()

    @property
    def breaches(self) -> tuple[AuditCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)


class Distribution(Struct, frozen=True):
    """Quantiles, mean and extremes of `n` values, ms; None where there is no value.

    Extremes are unset for histograms, which do not keep them.
    """

    n: int
    mean: float | None = None
    min: float | UnsetType | None = UNSET
    max: float | UnsetType | None = UNSET
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p99_9: float | None = field(default=None, name="p99.9")

    @classmethod
    def of_quantiles(
        cls, n: int, mean: float | None, quantiles: dict[float, float], extremes: tuple[float, float] | None = None
    ) -> "Distribution":
        """From values by quantile, of which each of p50, p90, p95, p99 and p99.9 may be missing."""
        named = {f"p{q * 100:g}".replace(".", "_"): value for q, value in quantiles.items()}
        low, high = extremes if extremes is not None else (UNSET, UNSET)
        return cls(n, mean, low, high, **named)


class LoadFigures(Struct, frozen=True, kw_only=True):
    """What was asked of the server over the time for which rates are given.

    Attributes:
        start_s, end_s: that time, since the run's first planned request.
        window: the same in words.
        planned_per_s: requests due; None in a closed loop, which plans no times.
        sent_per_s: requests sent.
        in_flight: mean number of requests on the wire.
    """

    start_s: float
    end_s: float
    window: str
    planned_per_s: float | None
    sent_per_s: float
    in_flight: float


class PromptTokens(Struct, frozen=True):
    """Prompt tokens of an answered request on average.

    Attributes:
        planned: by the plan.
        counted: by the server, which may add a chat template.
        cached_share: of the counted ones, from the server's cache; None where it does not say.
    """

    planned: float
    counted: float
    cached_share: float | None = None


class ClassSummary(Struct, frozen=True, kw_only=True):
    """Figures of one request class, or of one step of a ladder. Latencies are of answered requests.

    Attributes:
        shed: refused with 429 or 503; part of `failed`.
        duration_s: from the first planned time to the last end; rates are over `load`'s window instead.
        unknown_output_tokens: answered requests without a token count.
        latency_ms: by metric, from the planned time.
        service_latency_ms: by metric, from the send.
        inter_chunk_ms: gaps between arrivals; unset for steps.
        goodput_per_s, attainment, not_evaluable: where goodput bounds were given.
        load: what was asked of the server over the window of the rates; None where nothing was sent.
        bounds: of rates and shares, by the name of the figure.
        output_length_share: output tokens of answered requests as a share of the planned ones; None where unknown.
        prompt_tokens: None where the server counted none.
        client_error_ms: how much of the p99 of a latency the client's own delay can be at most, by metric.
    """

    requests: int
    sent: int
    ok: int
    failed: int
    shed: int
    cancelled: int
    not_sent: int
    success_ratio: float | None
    outcomes: dict[str, int]
    finish_reasons: dict[str, int]
    warnings: dict[str, int]
    duration_s: float
    requests_per_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    unknown_output_tokens: int
    latency_ms: dict[str, Distribution]
    service_latency_ms: dict[str, Distribution]
    goodput_per_s: float | UnsetType | None = UNSET
    attainment: float | UnsetType | None = UNSET
    not_evaluable: int | UnsetType = UNSET
    inter_chunk_ms: Distribution | UnsetType = UNSET
    load: LoadFigures | None = None
    bounds: dict[str, Interval] = {}
    client_error_ms: dict[str, float] = {}
    output_length_share: float | None = None
    prompt_tokens: PromptTokens | None = None


class Budget(Struct, frozen=True):
    """One objective's error budget.

    Attributes:
        budget: share of requests that may miss.
        spent: misses over those allowed; above 1 the budget is exceeded.
        windows: (start in seconds, requests, burn) of equal parts of the run; burn is None without requests.
    """

    request_class: str
    rule: str
    budget: float
    requests: int
    misses: int
    spent: float
    windows: tuple[tuple[float, int, float | None], ...]


class DispatchLine(Struct, frozen=True):
    """One comparison of the load that was sent with the load that was planned.

    Attributes:
        name: what is compared, with its unit.
        planned: by the plan; None where it plans none.
        achieved: the measured value; None where unknown.
        bound: the accepted range, in words; None if there is no limit.
        passed: whether the value is within the bound.
    """

    name: str
    planned: int | float | None
    achieved: int | float | None
    bound: str | None = None
    passed: bool | None = None


class GpuFigure(Struct, frozen=True):
    """One field of a GPU's samples over a run."""

    n: int
    mean: float
    max: float


class GpuSummary(Struct, frozen=True):
    """Figures by GPU and sample field (None where no sample has it), and sentences about them."""

    figures: dict[str, dict[str, GpuFigure | None]]
    diagnosis: tuple[str, ...]


class Stalls(Struct, frozen=True):
    """Times in which no token of any stream came although requests were in flight."""

    count: int
    longest_s: float


class Failure(Struct, frozen=True):
    """Requests that ended with one outcome.

    Attributes:
        by_class: how many of each request class.
        said: the commonest sentence of the server, or of the client about it; None where nothing was said.
    """

    outcome: str
    count: int
    by_class: dict[str, int]
    said: str | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """What a run measured.

    Attributes:
        records: all, warm-up included.
        warmup: records that are not judged.
        classes: `all`, and every class that occurs.
        steps: by number of users of a ladder; empty where there was none.
        dispatch: unset for closed loops, which have no schedule.
        closed_loop: whether users waited for their answer before they asked again.
        stalls: None where there was none, or nothing was streamed.
        failures: by outcome, the commonest first.
    """

    records: int
    warmup: int
    classes: dict[str, ClassSummary]
    steps: dict[str, ClassSummary]
    gpus: GpuSummary | UnsetType = UNSET
    budgets: tuple[Budget, ...] = ()
    dispatch: tuple[DispatchLine, ...] | UnsetType = UNSET
    closed_loop: bool = False
    stalls: Stalls | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def is_ladder(self) -> bool:
        """Whether the load changed from step to step, so that figures of all requests are of no one load."""
        return len(self.steps) > 1

    @property
    def total(self) -> ClassSummary:
        """Figures of all requests."""
        return self.classes["all"]


def _voided(verdicts: tuple[RuleVerdict, ...], audit: Audit) -> bool:
    return any(rule.verdict is Verdict.INVALID for rule in verdicts) if verdicts else bool(audit.breaches)


class RunResult(Struct, frozen=True):
    """The outcome of one run, or of several judged together; without objectives there are no verdicts.

    Attributes:
        run_id: the run, or the first of several.
        repetitions: all that were judged together; empty for one.
    """

    run_id: int
    verdict: Verdict | None
    verdicts: tuple[RuleVerdict, ...]
    audit: Audit
    summary: Summary
    exit_code: int
    repetitions: tuple[int, ...] = ()

    @property
    def voided(self) -> bool:
        """Whether a breach of the client's audit changed a verdict, or there is no verdict that it could leave."""
        return _voided(self.verdicts, self.audit)

    @property
    def title(self) -> str:
        """Which runs it is about."""
        if not self.repetitions:
            return f"Run {self.run_id}"
        return f"Runs {', '.join(map(str, self.repetitions))} together"


class Host(Struct, frozen=True):
    """The machine that sent the load."""

    name: str = ""
    system: str = ""
    machine: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None


class AgentReport(Struct, frozen=True, kw_only=True):
    """Statistics of the collection from one GPU agent; `reason` is why it has no GPU."""

    url: str
    gpus: tuple[GpuFacts, ...] = ()
    reason: str | None = None
    clock_ahead_ns: int = 0
    clock_uncertainty_ns: int = 0
    samples_lost: int = 0
    restarts: int = 0
    failed_requests: int = 0


class Environment(Struct, frozen=True, kw_only=True):
    """The environment of a run. Nothing secret, no file paths.

    Attributes:
        scenario_revision: git commit of the scenario file's folder.
        calibration: the host's measured ceiling, as plain data.
        workers: what the master knows of its workers; unset without any.
        gpu_agents: unset without any.
    """

    python: str = ""
    packages: dict[str, str] = {}
    host: Host = Host()
    scenario_revision: str | None = None
    calibration: dict[str, object] | None = None
    workers: tuple[WorkerFacts, ...] | UnsetType = UNSET
    gpu_agents: tuple[AgentReport, ...] | UnsetType = UNSET


class PlanFacts(Struct, frozen=True):
    """What identifies a stored plan.

    Attributes:
        left_out: share of a profile's requests that are due in busier minutes than any that is played.
    """

    digest: str
    seed: int
    requests: int
    left_out: float = 0.0


class RunHead(Struct, frozen=True, kw_only=True):
    """One line of the list of runs.

    Attributes:
        id: number in this database.
        uid: the run's global name, which export and import keep.
        verdict: None without objectives, and until the run has ended.
        metadata: the user's tags.
    """

    id: int
    uid: str
    name: str
    state: RunState
    started_at_ns: int
    ended_at_ns: int | None = None
    base_url: str
    model: str
    endpoint: str
    verdict: Verdict | None = None
    exit_code: int | None = None
    metadata: dict[str, str] = {}

    @property
    def comparable(self) -> bool:
        """Whether its figures are about the endpoint: it ended by itself, and its client was trustworthy."""
        return self.state is RunState.FINISHED and self.verdict is not Verdict.INVALID


class Run(RunHead, frozen=True, kw_only=True):
    """A stored run; audit and summary are None until it has ended."""

    scenario: Scenario
    environment: Environment = Environment()
    audit: Audit | None = None
    summary: Summary | None = None
    plan: PlanFacts | None = None
    verdicts: tuple[RuleVerdict, ...] = ()

    @property
    def voided(self) -> bool:
        """Whether a breach of the client's audit changed a verdict, or there is no verdict that it could leave."""
        return _voided(self.verdicts, self.audit or Audit())

    @property
    def comparable(self) -> bool:
        """Whether its figures are about the endpoint; a breach may leave verdicts, but not figures to compare."""
        return self.state is RunState.FINISHED and not (self.audit and self.audit.breaches)


class NewRun(Struct, frozen=True, kw_only=True):
    """What is stored of a run when it begins.

    Attributes:
        spool: folder of the workers' spools.
    """

    uid: str
    name: str
    started_at_ns: int
    base_url: str
    model: str
    endpoint: str
    scenario: Scenario
    metadata: dict[str, str]
    environment: Environment
    spool: str


class RunEnd(Struct, frozen=True, kw_only=True):
    """What is stored of a run when it has ended."""

    state: RunState
    ended_at_ns: int
    verdict: Verdict | None
    exit_code: int
    audit: Audit
    summary: Summary
    environment: Environment
