"""What is concluded from the records of a run, frozen: the summary and the verdict of each rule.

Terminal, pages, reports and database all show these objects; nobody computes them twice. A ratio is
from 0 to 1; names end in their unit.
"""

from msgspec import UNSET, Struct, UnsetType, field

from surgeproof.audit_results import Audit
from surgeproof.records import Verdict


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
        unknown_output_tokens: answered requests of text without a token count.
        latency_ms: by metric, from the planned time.
        service_latency_ms: by metric, from the send.
        inter_chunk_ms: gaps between arrivals; unset for steps.
        goodput_per_s, attainment, not_evaluable: where goodput bounds were given.
        load: what was asked of the server over the window of the rates; None where nothing was sent.
        bounds: of rates and shares, by the name of the figure.
        output_length_share: output tokens of answered requests as a share of the planned ones; None where unknown.
        prompt_tokens: None where the server counted none.
        client_error_ms: how much of the p99 of a latency the client's own delay can be at most, by metric.
        items: vectors or scores of the answers; None for answers of text.
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
    items: int | None = None
    items_per_s: float | None = None


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


class TurnSummary(Struct, frozen=True):
    """Answered requests of one depth of conversations or tasks.

    Attributes:
        turn: from 0; the last one may stand for all that are deeper.
        input_tokens: of a prompt on average, by the server; None where it counts none.
        planned_cached_share: of the prompt tokens, that an endless prefix cache would hold.
        cached_share: of the prompt tokens, that the server took from its cache; None where it does not say.
    """

    turn: str
    requests: int
    ttft_ms: Distribution
    input_tokens: float | None
    planned_cached_share: float | None
    cached_share: float | None


class TaskSummary(Struct, frozen=True, kw_only=True):
    """Conversations or tasks of a run.

    Attributes:
        tasks: that began.
        done: of which every request was answered.
        failed: of which a request failed, or which did not end in time.
        requests: of all of them.
        skipped: requests that were not sent, since an earlier one of their task failed.
        stopped: requests whose user stopped reading, as planned.
        duration_ms: of those that are done, from their beginning to the last answer.
        per_hour: done an hour; None where nothing was.
        turns: by depth.
    """

    tasks: int
    done: int
    failed: int
    requests: int
    skipped: int
    stopped: int
    duration_ms: Distribution
    per_hour: float | None
    turns: tuple[TurnSummary, ...]


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
        tasks: None where no request was a part of one.
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
    tasks: TaskSummary | None = None

    @property
    def is_ladder(self) -> bool:
        """Whether the load changed from step to step, so that figures of all requests are of no one load."""
        return len(self.steps) > 1

    @property
    def total(self) -> ClassSummary:
        """Figures of all requests."""
        return self.classes["all"]


def is_voided(verdicts: tuple[RuleVerdict, ...], audit: Audit) -> bool:
    """Whether a breach of the client's audit changed a verdict, or there is no verdict that it could leave."""
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
        return is_voided(self.verdicts, self.audit)

    @property
    def title(self) -> str:
        """Which runs it is about."""
        if not self.repetitions:
            return f"Run {self.run_id}"
        return f"Runs {', '.join(map(str, self.repetitions))} together"
