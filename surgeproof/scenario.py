"""One scenario: which endpoint, which load, which objectives. Frozen, without secrets.

Keys are those of docs/scenarios.md. `scenario_file` reads one from YAML and flags; what is wrong with
one as a whole is found by `scenario_checks`.
"""

from pathlib import PurePath
from typing import Literal, get_args

import msgspec

from surgeproof.records import Phase
from surgeproof.strict_json import JsonObject

DEFAULT_MAX_CONCURRENCY = 10_000
MAX_UNCONFIRMED_S = 24 * 3600.0
"""A plan that lasts longer must be confirmed with `allow_long`."""
TEXT_SUFFIXES = (".txt", ".md", ".text")
"""Of files that are texts; with another suffix behind it where they are compressed."""
MAX_REQUESTS = 20_000_000
"""A larger plan is rejected before memory is allocated: it is most likely a typing error."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long each phase may take, seconds; null is without limit.

    `read_s` is the longest silence between two reads, the wait for the head included. The total is
    off unless asked for: a long generation is not an error.
    """

    connect_s: float = 10.0
    read_s: float | None = 120.0
    first_token_s: float | None = None
    total_s: float | None = None


class TlsOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the server's certificate is verified, and which client certificate is sent."""

    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


EndpointName = Literal["chat", "completions", "responses", "messages", "embeddings", "rerank"]
ENDPOINTS: tuple[str, ...] = get_args(EndpointName)
"""The APIs that can be asked; those of `ITEM_ENDPOINTS` answer with vectors or scores, whole."""
ITEM_ENDPOINTS = ("embeddings", "rerank")
SERVED_TOKENIZER = "server"
"""In place of a tokenizer's file: the server counts."""
RERANK_QUERY_TOKENS = 32
"""Length of the question of a made rerank request."""


class TargetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint and the form of its requests."""

    base_url: str | None = None
    model: str | None = None
    models: dict[str, float] = {}
    endpoint: EndpointName = "chat"
    stream: bool = True
    tls: TlsOptions = TlsOptions()
    timeouts: Timeouts = Timeouts()
    reuse_connections: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    ignore_eos: bool = False
    temperature: float | None = 0.0
    extra_body: JsonObject = {}
    omit: tuple[str, ...] = ()

    @property
    def fixes_lengths(self) -> bool:
        """Whether requests forbid an answer that ends early."""
        return self.ignore_eos or "min_tokens" in self.extra_body


def is_text_file(dataset: str) -> bool:
    """Whether a dataset is a plain text, from which prompts of any length are cut; told by its name."""
    return any(suffix in TEXT_SUFFIXES for suffix in PurePath(dataset).suffixes[-2:])


class ClassWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the requests of one class are, where it differs from the others.

    Headers are stored with the scenario, so they must not be secrets.
    """

    input_len: int | None = None
    output_len: int | None = None
    dataset: str | None = None
    dataset_column: str | None = None
    model: str | None = None
    endpoint: EndpointName | None = None
    headers: dict[str, str] = {}
    extra_body: JsonObject = {}


class LoadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests, when.

    With `concurrency` the load is a closed loop; otherwise it is an open loop whose times come from the
    trace (`exact`) or from an arrival process at `request_rate`. `repetition` is the number of this run, from 0, and
    of how many; their seeds follow one another. What is None is decided when the run is made, and stored so: `turns`
    and `block_tokens` by the trace, `prompt_salt` anew for each run, so that none is served from another one's cache.
    """

    trace: str | None = None
    dataset: str | None = None
    dataset_column: str | None = None
    dataset_order: Literal["keep", "shuffle"] = "keep"
    profile: str | None = None
    trace_format: str = "auto"
    trace_unit: Literal["s", "ms", "us", "ns"] | None = None
    trace_columns: str | None = None
    skip_invalid: bool = False
    keep_clock_grid: bool = False
    arrivals: Literal["exact", "constant", "poisson", "gamma"] | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    speedup: float = 1.0
    scale: Literal["superpose", "intensify", "thin", "compress"] | None = None
    conserve_count: bool = True
    turns: Literal["at_timestamp", "after_response", "live"] | None = None
    tasks: str | None = None
    session_turns: int | None = None
    think_s: float | None = None
    keep_reasoning: bool = False
    stop_share: float = 0.0
    stop_after: int = 20
    prefixes: bool = True
    block_tokens: int | None = None
    window_s: tuple[float, float] | None = None
    limit: int | None = None
    concurrency: tuple[int, ...] = ()
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY
    duration_s: float | None = None
    num_prompts: int | None = None
    input_len: int = 512
    output_len: int = 128
    batch_size: int = 1
    images: int = 0
    image_size: tuple[int, int] = (512, 512)
    classes: dict[str, float] = msgspec.field(default_factory=lambda: {"P1": 1.0})
    by_class: dict[str, ClassWork] = {}
    priorities: dict[str, int] = {}
    warmup_s: float = 0.0
    num_warmups: int = 0
    drain_s: float = 30.0
    seed: int = 1
    repetition: tuple[int, int] = (0, 1)
    allow_long: bool = False
    tokenizer: str | None = None
    words_per_token: float = 1.0
    template_tokens: int = 0
    prompt_salt: str | None = None
    abort_after: int | None = None

    @property
    def has_schedule(self) -> bool:
        """Whether the load has planned times or a planned number of requests, rather than Locust's own users."""
        sources = (self.trace, self.profile, self.request_rate, self.num_prompts, self.tasks)
        return any(source is not None for source in sources)

    @property
    def plays_tasks(self) -> bool:
        """Whether the load is one of conversations or tasks, whose requests wait for one another."""
        return self.tasks is not None or self.turns == "live"

    def makes_prompts_of(self, request_class: str) -> bool:
        """Whether prompts of a class are made to planned lengths: not taken from a dataset, and without pictures."""
        work = self.by_class.get(request_class, ClassWork())
        return (
            not self.images
            and self.tasks is None
            and work.dataset is None
            and (self.dataset is None or work.input_len is not None)
        )

    def models_of_classes(self) -> tuple[str, ...]:
        """Models that classes name for themselves, in order."""
        return tuple(dict.fromkeys(work.model for _, work in sorted(self.by_class.items()) if work.model is not None))

    def phase_of(self, index: int, since_start_ns: int) -> Phase:
        """Warm-up by rule: the first seconds, or the first requests."""
        early = max(0, since_start_ns) < self.warmup_s * 1e9 or index < self.num_warmups
        return Phase.WARMUP if early else Phase.MAIN


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a run is made of, but for secrets."""

    name: str = "unnamed"
    target: TargetConfig = TargetConfig()
    load: LoadConfig = LoadConfig()
    slo: dict[str, tuple[str, ...]] = {}
    goodput: dict[str, float] = {}
    metadata: dict[str, str] = {}
    processes: int = 1
    gpu_agents: tuple[str, ...] = ()

    @property
    def closed_loop(self) -> bool:
        """Whether users wait for their answer before they ask again."""
        return bool(self.load.concurrency)

    def endpoint_of(self, request_class: str) -> EndpointName:
        """Which API the requests of a class ask."""
        work = self.load.by_class.get(request_class)
        return work.endpoint if work is not None and work.endpoint is not None else self.target.endpoint

    def streams(self, request_class: str) -> bool:
        """Whether the requests of a class ask for a stream."""
        return self.target.stream and self.endpoint_of(request_class) not in ITEM_ENDPOINTS


def endpoints_of(scenario: Scenario) -> set[str]:
    """The APIs that a scenario asks."""
    named = {name for name, weight in scenario.load.classes.items() if weight > 0} | set(scenario.load.by_class)
    return {scenario.endpoint_of(name) for name in named} or {scenario.target.endpoint}
