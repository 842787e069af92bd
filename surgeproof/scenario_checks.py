"""What is wrong with a scenario as a whole: values out of range, keys that exclude or need one another. Pure."""

import math
from collections.abc import Iterator

from surgeproof.credentials import check_headers
from surgeproof.errors import ConfigError
from surgeproof.records import REQUEST_CLASSES
from surgeproof.scenario import (
    ITEM_ENDPOINTS,
    MAX_REQUESTS,
    MAX_UNCONFIRMED_S,
    LoadConfig,
    Scenario,
    endpoints_of,
    is_text_file,
)

_MAX_TOKENS = 10_000_000
_MAX_USERS = 100_000
_MAX_MODELS = 255
_MAX_PROCESSES = 1024
_MAX_BATCH = 4096
_MAX_IMAGES = 100
_MAX_SIDE = 8192
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key")


def problems_of(scenario: Scenario) -> list[str]:
    """Every problem, in the order in which a reader should fix them; empty for a usable scenario."""
    load = scenario.load
    return [
        *_unknown_classes(scenario),
        *(f"{place} must be a finite number that is not negative" for place in _unusable_numbers(scenario)),
        *_too_much(scenario),
        *_model_problems(scenario),
        *_endpoint_problems(scenario),
        *_class_problems(scenario),
        *_exclusive_keys(load),
        *_task_problems(scenario),
        *_weight_problems(load),
        *_not_positive(load),
        *_missing(load),
    ]


def _unknown_classes(scenario: Scenario) -> Iterator[str]:
    known = f"known are {', '.join(REQUEST_CLASSES)}"
    for name in (*scenario.load.classes, *scenario.load.priorities, *scenario.load.by_class):
        if name not in REQUEST_CLASSES:
            yield f"load.classes: unknown class {name!r}; {known}"
    for name in scenario.slo:
        if name not in (*REQUEST_CLASSES, "all", "preset"):
            yield f"slo: unknown class {name!r}; {known} and all"


def _unusable_numbers(scenario: Scenario) -> Iterator[str]:
    """Keys whose numbers are out of range."""
    load, timeouts = scenario.load, scenario.target.timeouts
    numbers: dict[str, float | None] = {
        "load.warmup_s": load.warmup_s,
        "load.num_warmups": load.num_warmups,
        "load.drain_s": load.drain_s,
        "target.timeouts.connect_s": timeouts.connect_s,
        "target.timeouts.read_s": timeouts.read_s,
        "target.timeouts.first_token_s": timeouts.first_token_s,
        "target.timeouts.total_s": timeouts.total_s,
        "target.temperature": scenario.target.temperature,
        "load.burstiness": load.burstiness,
        "load.speedup": load.speedup,
        "load.words_per_token": load.words_per_token,
        "load.template_tokens": load.template_tokens,
        "load.think_s": load.think_s,
    }
    numbers |= {f"load.classes.{name}": weight for name, weight in load.classes.items()}
    for place, value in numbers.items():
        if value is not None and not 0 <= value < math.inf:
            yield place
    for name in ("connect_s", "read_s", "first_token_s", "total_s"):
        if getattr(timeouts, name) == 0:
            yield f"target.timeouts.{name} (above 0)"
    if not 0 <= load.seed < 2**63:
        yield "load.seed (below 2^63)"


def _too_much(scenario: Scenario) -> Iterator[str]:
    """Loads that no host can plan or send: rejected before memory is allocated."""
    load = scenario.load
    if not 1 <= scenario.processes <= _MAX_PROCESSES:
        yield f"processes must lie between 1 and {_MAX_PROCESSES}, not {scenario.processes}"
    if load.duration_s is not None and load.duration_s > MAX_UNCONFIRMED_S and not load.allow_long:
        days = load.duration_s / 86_400
        yield f"load.duration_s: {days:.1f} days; shorten it, or confirm with --allow-long (load.allow_long)"
    if _requests(load) > MAX_REQUESTS:
        yield f"the load asks for {_requests(load):.3g} requests; a run can plan at most {MAX_REQUESTS:,}"
    if max(load.input_len, load.output_len) > _MAX_TOKENS:
        yield f"load.input_len and load.output_len must be {_MAX_TOKENS:,} tokens or less"
    if max(load.concurrency, default=0) > _MAX_USERS:
        yield f"load.concurrency: a step can have at most {_MAX_USERS:,} users"


def _requests(load: LoadConfig) -> float:
    """Requests that the load asks for by its keys; 0 if only the trace determines it."""
    limits = [float(count) for count in (load.num_prompts, load.limit) if count is not None]
    if load.request_rate is not None and load.duration_s is not None and not math.isinf(load.request_rate):
        limits.append(load.request_rate * load.duration_s)
    # A trace that is replayed as it is holds no more than its rows.
    requests = min(limits, default=0.0) if load.trace is None or load.request_rate is not None else 0.0
    return requests * max(1, len(load.concurrency))


def _model_problems(scenario: Scenario) -> Iterator[str]:
    models = scenario.target.models
    usable = all(0 <= weight < 1e9 for weight in models.values())
    if models and (not usable or sum(models.values()) <= 0 or len(models) > _MAX_MODELS):
        yield f"target.models: the weights of at most {_MAX_MODELS} models must be positive"
    needed = {"model", "messages", "prompt", "input", "query", "documents", "stream"} & set(scenario.target.omit)
    if needed:
        yield f"target.omit: {', '.join(sorted(needed))} cannot be left out of a request"
    if models and scenario.target.model is not None:
        yield "target: name one model, or several models with their weights, not both"


def _endpoint_problems(scenario: Scenario) -> Iterator[str]:
    """What an API cannot be asked for."""
    load, asked = scenario.load, endpoints_of(scenario)
    if load.batch_size > 1 and not asked & set(ITEM_ENDPOINTS):
        yield "load.batch_size is of embeddings and rerank requests; use --endpoint embeddings or rerank"
    if load.batch_size > _MAX_BATCH:
        yield f"load.batch_size must be {_MAX_BATCH:,} or less"
    if load.images and (without := asked - {"chat", "responses", "messages"}):
        yield f"load.images: {', '.join(sorted(without))} takes no pictures; use --endpoint chat, responses or messages"
    if not 0 <= load.images <= _MAX_IMAGES or not all(0 < side <= _MAX_SIDE for side in load.image_size):
        yield f"load.images: up to {_MAX_IMAGES} pictures of up to {_MAX_SIDE:,} by {_MAX_SIDE:,} pixels"


def _exclusive_keys(load: LoadConfig) -> Iterator[str]:
    """Keys that contradict each other."""
    unlimited = load.request_rate is not None and math.isinf(load.request_rate)
    if load.concurrency and load.request_rate is not None and not unlimited:
        yield "load.concurrency: users of a closed loop have no request_rate; remove one of the two"
    if load.profile is not None and unlimited:
        yield "load.request_rate: a profile sets the arrival times, so the rate cannot be inf"
    if load.profile is not None and load.arrivals is not None:
        yield "load.arrivals: a profile sets the arrival times; remove one of the two"
    if load.dataset is None and (load.dataset_column is not None or load.dataset_order != "keep"):
        yield "load.dataset_column and load.dataset_order: need load.dataset (--dataset)"
    if load.abort_after is not None and load.abort_after < 0:
        yield "load.abort_after must be 0 (never) or a number of requests"
    if len(set(load.concurrency)) < len(load.concurrency):
        yield "load.concurrency: figures are kept by number of users, so each number is one step only; see --repeat"
    if load.scale is not None and (load.profile is None or load.request_rate is None):
        yield "load.scale: needs both load.request_rate and load.profile"
    if load.turns == "after_response" and load.concurrency:
        yield "load.turns: users of a closed loop wait for their answers anyway; remove one of the two"
    if load.trace is not None and load.profile is not None:
        yield "load.trace and load.profile: give one of them"


def _task_problems(scenario: Scenario) -> Iterator[str]:
    """Conversations and tasks: where they come from, and which APIs can go on with them."""
    load = scenario.load
    sources = [load.dataset, load.trace, load.session_turns]
    if load.tasks is not None and (any(source is not None for source in sources) or load.turns not in (None, "live")):
        yield "load.tasks: the file says what is asked and when; remove dataset, trace, session_turns and turns"
    elif load.turns == "live" and load.tasks is None and sum(source is not None for source in sources) != 1:
        yield "load.turns: live needs conversations: one of load.dataset, load.trace and load.session_turns"
    if load.turns != "live" and (load.session_turns is not None or load.think_s is not None):
        yield "load.session_turns and load.think_s: need load.turns: live (--turns live)"
    if load.plays_tasks and (without := endpoints_of(scenario) - {"chat", "responses", "messages"}):
        yield f"load.turns: {', '.join(sorted(without))} has no messages to go on with; use chat, responses or messages"
    if load.plays_tasks and any(work.dataset or work.input_len for work in load.by_class.values()):
        yield "load.by_class: conversations and tasks say what is asked; remove dataset and input_len"
    if not 0 <= load.stop_share <= 1:
        yield "load.stop_share must lie between 0 and 1"


def _class_problems(scenario: Scenario) -> Iterator[str]:
    for name, work in scenario.load.by_class.items():
        for key in ("input_len", "output_len"):
            length = getattr(work, key)
            if length is not None and not 0 < length <= _MAX_TOKENS:
                yield f"load.by_class.{name}.{key} must lie between 1 and {_MAX_TOKENS:,} tokens"
        if work.dataset is not None and work.input_len is not None and not is_text_file(work.dataset):
            yield f"load.by_class.{name}: a dataset's rows have lengths of their own; remove input_len"
        if secret := [header for header in work.headers if header.lower() in _SECRET_HEADERS]:
            yield f"load.by_class.{name}.headers: {secret[0]} would be stored; give it with --header or OPENAI_API_KEY"
        try:
            check_headers(work.headers)
        except ConfigError as exc:
            yield f"load.by_class.{name}.headers: {exc}"


def _weight_problems(load: LoadConfig) -> Iterator[str]:
    if not load.classes or sum(load.classes.values()) <= 0 or min(load.classes.values()) < 0:
        yield "load.classes: the weights must be positive"


def _not_positive(load: LoadConfig) -> Iterator[str]:
    positive = (
        "request_rate", "burstiness", "speedup", "limit", "max_concurrency", "duration_s", "num_prompts",
        "input_len", "output_len", "words_per_token", "block_tokens", "batch_size", "session_turns", "stop_after",
    )  # fmt: skip
    for key in positive:
        value = getattr(load, key)
        if value is not None and not value > 0:
            yield f"load.{key} must be above 0, not {value:g}"
    if any(users < 1 for users in load.concurrency):
        yield "load.concurrency: each step needs at least 1 user"
    number, of = load.repetition
    if not 0 <= number < of or number > load.seed:
        yield "load.repetition must be [number, of]: the number from 0, below `of`, and not above the seed"
    if load.window_s is not None and not 0 <= load.window_s[0] < load.window_s[1]:
        yield "load.window_s must be [start, end] in seconds with start before end"


def _missing(load: LoadConfig) -> Iterator[str]:
    """What the load still needs; one sentence at most, since each would follow from the one before."""
    unlimited = load.request_rate is not None and math.isinf(load.request_rate)
    if load.arrivals == "exact" and load.trace is None:
        yield "load.arrivals: exact needs a trace (load.trace or --trace)"
    elif load.arrivals in ("constant", "poisson", "gamma") and load.request_rate is None and load.profile is None:
        yield f"load.arrivals: {load.arrivals} needs load.request_rate (--request-rate)"
    elif load.concurrency and load.duration_s is None and load.num_prompts is None:
        yield "a closed loop needs load.duration_s (--duration) or load.num_prompts (--num-prompts)"
    elif load.concurrency or load.trace is not None or load.profile is not None or load.tasks is not None:
        return
    elif not load.has_schedule:
        yield "no load: give --trace, --profile, --request-rate, --concurrency or --num-prompts"
    elif load.num_prompts is None and (load.duration_s is None or unlimited or load.request_rate is None):
        yield "the load has no end: give --duration or --num-prompts"
