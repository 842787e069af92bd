"""One validated scenario from YAML, environment and flags, checked as a whole before anything starts.

A scenario says which endpoint, which load and which objectives. Keys are those of docs/scenarios.md;
an unknown key is an error that names its place and the nearest known one. Secrets (API key, header
values) are no part of a scenario: they travel by environment only and are never stored.
"""

import difflib
import math
import os
import re
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec

from surgeproof.errors import ConfigError
from surgeproof.records import REQUEST_CLASSES, Phase

DEFAULT_DB = "sqlite:///surgeproof.db"
RUN_DIR_VARIABLE = "SURGEPROOF_RUN_DIR"
"""Environment variable by which a Locust of ours learns where its run lies."""
DEFAULT_MAX_CONCURRENCY = 10_000
LONGEST_UNASKED_S = 24 * 3600.0
MOST_REQUESTS = 20_000_000
"""More than this no host plans or sends; a slip of the keyboard asks for it."""
_MOST_TOKENS = 10_000_000
_MOST_USERS = 100_000
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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
    """How the server's certificate is checked and which one we show."""

    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


class TargetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint and the form of its requests."""

    base_url: str | None = None
    model: str | None = None
    models: dict[str, float] = {}
    endpoint: Literal["chat", "completions"] = "chat"
    tls: TlsOptions = TlsOptions()
    timeouts: Timeouts = Timeouts()
    reuse_connections: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    ignore_eos: bool = False
    temperature: float | None = 0.0
    extra_body: dict[str, Any] = {}


class LoadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests, when.

    With `concurrency` the load is a closed loop; else it is an open loop whose times come from the
    trace (`exact`) or from an arrival process at `request_rate`.
    """

    trace: str | None = None
    profile: str | None = None
    trace_format: str = "auto"
    trace_columns: str | None = None
    skip_invalid: bool = False
    keep_clock_grid: bool = False
    arrivals: Literal["exact", "constant", "poisson", "gamma"] | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    speedup: float = 1.0
    scale: Literal["superpose", "intensify", "thin", "compress"] | None = None
    conserve_count: bool = True
    turns: Literal["at_timestamp", "after_response"] = "at_timestamp"
    prefixes: bool = True
    block_tokens: int = 512
    window_s: tuple[float, float] | None = None
    limit: int | None = None
    concurrency: tuple[int, ...] = ()
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY
    duration_s: float | None = None
    num_prompts: int | None = None
    input_len: int = 512
    output_len: int = 128
    classes: dict[str, float] = msgspec.field(default_factory=lambda: {"P1": 1.0})
    priorities: dict[str, int] = {}
    warmup_s: float = 0.0
    num_warmups: int = 0
    drain_s: float = 30.0
    seed: int = 1
    allow_long: bool = False
    tokenizer: str | None = None
    words_per_token: float = 1.0

    @property
    def says_when(self) -> bool:
        """Whether the load has times of its own, rather than users that Locust counts."""
        sources = (self.trace, self.profile, self.request_rate, self.num_prompts)
        return any(source is not None for source in sources)

    def phase_of(self, index: int, intended_ns: int) -> Phase:
        """Warm-up by rule: the first seconds, or the first requests."""
        early = max(0, intended_ns) < self.warmup_s * 1e9 or index < self.num_warmups
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


class Secrets(msgspec.Struct, frozen=True):
    """What must not be written anywhere: headers with their values."""

    headers: dict[str, str] = {}

    @classmethod
    def from_environment(cls, environ: dict[str, str]) -> "Secrets":
        """The API key (`OPENAI_API_KEY`) and the headers that a parent process handed down."""
        headers: dict[str, str] = {}
        key = environ.get("OPENAI_API_KEY")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if handed := environ.get("SURGEPROOF_HEADERS"):
            headers |= msgspec.json.decode(handed, type=dict[str, str])
        return check_headers(headers)

    def to_environment(self) -> dict[str, str]:
        """What a child process needs to send the same headers."""
        return {"SURGEPROOF_HEADERS": msgspec.json.encode(self.headers).decode()}


def check_headers(headers: dict[str, str]) -> Secrets:
    """Refuse header names and values that would break the request apart.

    Raises:
        ConfigError: a name is not a token, or a value holds a line break or a character beyond Latin-1.
    """
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ConfigError(f"header name {name!r} is not valid")
        if any(char in value for char in "\r\n\0") or not _is_latin1(value):
            raise ConfigError(f"the value of header {name} holds a line break or a non-Latin-1 character")
    return Secrets(headers)


def _is_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def sqlite_path(db_url: str) -> Path | None:
    """The file of a SQLite URL; None for other databases and for memory."""
    scheme, separator, rest = db_url.partition(":///")
    if not separator or scheme.partition("+")[0] != "sqlite":
        return None
    name = rest.partition("?")[0]
    return Path(name) if name and name != ":memory:" else None


def parse_duration_s(value: Any, place: str) -> float:
    """Read `60`, `60s`, `5m`, `1h30m` or `250ms` as seconds.

    Raises:
        ConfigError: it is none of these, or negative.
    """
    text = str(value).strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION.findall(text)
        rest = _DURATION.sub("", text).strip()
        if not parts or rest:
            raise ConfigError(f"{place}: {value!r} is not a duration such as 60s, 5m or 1h30m") from None
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{place}: {value!r} is not a duration that can be waited for")
    return seconds


def load_scenario(path: Path | None, overrides: dict[str, Any]) -> Scenario:
    """Read a scenario file, lay flags over it and check the whole.

    Args:
        path: YAML file; None for flags alone.
        overrides: values by dotted key (`load.seed`), which win over the file's.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong or missing.
    """
    place = str(path) if path else "flags"
    raw = _read_yaml(path) if path else {}
    if path:
        _anchor_trace(raw, path)
        raw["slo"] = slo_by_class(raw.get("slo") or {}, place)
        _read_durations(raw, place)
        raw.setdefault("name", path.stem)
    for key, value in overrides.items():
        section, _, name = key.rpartition(".")
        holder = raw.setdefault(section, {}) if section else raw
        if not isinstance(holder, dict):
            raise ConfigError(f"{place}: {section} must be a mapping")
        holder[name] = value
    _make_absolute(raw)
    scenario = convert_scenario(raw, place)
    return _checked(_closed_by_cap(scenario, overrides), place)


def load_target(values: dict[str, Any]) -> TargetConfig:
    """A target from flags alone.

    Raises:
        ConfigError: a value has the wrong type.
    """
    given = {key: value for key, value in values.items() if value is not None}
    return convert_scenario({"target": given}, "flags").target


def convert_scenario(raw: dict[str, Any], place: str) -> Scenario:
    """Turn plain data into a scenario.

    Raises:
        ConfigError: a key is unknown or a value has the wrong type.
    """
    _refuse_unknown(raw, Scenario, place, "")
    if isinstance(raw.get("metadata"), dict):
        # YAML reads `build: 41` as a number; a tag is a text.
        numbers = {key: str(value) for key, value in raw["metadata"].items() if isinstance(value, int | float | date)}
        raw = raw | {"metadata": raw["metadata"] | numbers}
    try:
        msgspec.json.encode(raw)
        return msgspec.convert(raw, Scenario, strict=False)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at ")
        where = where.strip("`").removeprefix("$.").replace("[...]", "")
        raise ConfigError(f"{place}: {where or 'the scenario'}: {what[:1].lower()}{what[1:]}") from exc
    except (RecursionError, TypeError, UnicodeEncodeError, ValueError) as exc:
        raise ConfigError(f"{place}: a value is not plain data that can be sent: {exc}") from exc


def slo_by_class(raw: Any, place: str) -> dict[str, Any]:
    """Objectives as a mapping of classes; a bare list is for all requests.

    Raises:
        ConfigError: it is neither.
    """
    by_class = {"all": raw} if isinstance(raw, list) else raw
    if not isinstance(by_class, dict):
        raise ConfigError(f"{place}: slo must be a list of rules, or a mapping of P0, P1, P2 or all to lists")
    return {name: [rules] if isinstance(rules, str) else rules for name, rules in by_class.items()}


def load_slo(path: Path) -> dict[str, Any]:
    """Read a file of objectives alone: a list, a mapping of classes, or either below `slo`; or `preset:NAME`."""
    import yaml

    if str(path).startswith("preset:"):
        return {"preset": [str(path).removeprefix("preset:")]}
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read SLO file {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(exc).split())}") from exc
    if isinstance(raw, dict) and "slo" in raw:
        raw = raw["slo"]
    by_class = slo_by_class(raw, str(path))
    for name, rules in by_class.items():
        if name not in (*REQUEST_CLASSES, "all", "preset"):
            raise ConfigError(f"{path}: unknown class {name!r}; known are {', '.join(REQUEST_CLASSES)} and all")
        if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
            raise ConfigError(f"{path}: the rules of {name} must be texts such as 'ttft p99 < 350ms'")
    return by_class


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read scenario {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold a mapping with keys such as target, load and slo")
    return raw


def _anchor_trace(raw: dict[str, Any], path: Path) -> None:
    """A relative trace path is meant from the scenario's folder, unless it is there from here."""
    load = raw.get("load")
    if isinstance(load, dict) and isinstance(load.get("trace"), str):
        trace = Path(os.path.expanduser(load["trace"]))  # noqa: PTH111
        if not trace.is_absolute() and not trace.exists():
            load["trace"] = str((path.parent / trace).resolve())


def _make_absolute(raw: dict[str, Any]) -> None:
    """Workers run in another folder: file names must not depend on ours."""
    load, target = raw.get("load"), raw.get("target")
    tls = target.get("tls") if isinstance(target, dict) else None
    for holder, names in ((load, ("trace", "tokenizer")), (tls, ("ca_file", "client_cert", "client_key"))):
        for name in names:
            if isinstance(holder, dict) and isinstance(holder.get(name), str):
                holder[name] = str(Path(os.path.expanduser(holder[name])).absolute())  # noqa: PTH111


def _read_durations(raw: dict[str, Any], place: str) -> None:
    """`duration: 60s` is `duration_s: 60`; every key that ends in `_s` takes such texts too."""
    target = raw.get("target")
    holders = [("load", raw.get("load"))]
    if isinstance(target, dict):
        holders.append(("target.timeouts", target.get("timeouts")))
    for name, holder in holders:
        if not isinstance(holder, dict):
            continue
        for short in ("duration", "warmup", "drain"):
            if short in holder and f"{short}_s" in holder:
                raise ConfigError(f"{place}: {name}.{short} and {name}.{short}_s say the same: give one of them")
            if short in holder:
                holder[f"{short}_s"] = holder.pop(short)
        for key, value in list(holder.items()):
            if str(key).endswith("_s") and isinstance(value, str):
                holder[key] = parse_duration_s(value, f"{place}: {name}.{key}")
        if isinstance(holder.get("concurrency"), int):
            holder["concurrency"] = [holder["concurrency"]]


def _refuse_unknown(raw: Any, kind: Any, place: str, prefix: str) -> None:
    if not isinstance(raw, dict):
        return
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(fields))}"
            raise ConfigError(f"{place}: unknown key {prefix + str(key)!r}; {hint}")
        if isinstance(fields[key], type) and issubclass(fields[key], msgspec.Struct):
            if not isinstance(value, dict):
                raise ConfigError(f"{place}: {prefix}{key} must be a mapping")
            _refuse_unknown(value, fields[key], place, f"{prefix}{key}.")


def _closed_by_cap(scenario: Scenario, overrides: dict[str, Any]) -> Scenario:
    """An unlimited rate under a cap is a closed loop of that many users, as in vLLM's bench."""
    load = scenario.load
    unlimited = load.request_rate is None or math.isinf(load.request_rate)
    capped = load.max_concurrency != DEFAULT_MAX_CONCURRENCY or "load.max_concurrency" in overrides
    if unlimited and capped and not load.concurrency and load.trace is None and load.profile is None:
        load = msgspec.structs.replace(load, concurrency=(load.max_concurrency,))
        return msgspec.structs.replace(scenario, load=load)
    return scenario


def _checked(scenario: Scenario, place: str) -> Scenario:
    for problem in _problems(scenario):
        raise ConfigError(f"{place}: {problem}")
    return scenario


def _problems(scenario: Scenario) -> list[str]:
    """Everything that is wrong with a scenario as a whole, the first being the one to tell."""
    load = scenario.load
    found: list[str] = []
    classes = f"known are {', '.join(REQUEST_CLASSES)}"
    found += [
        f"load.classes: unknown class {name!r}; {classes}"
        for name in (*load.classes, *load.priorities)
        if name not in REQUEST_CLASSES
    ]
    found += [
        f"slo: unknown class {name!r}; {classes} and all"
        for name in scenario.slo
        if name not in (*REQUEST_CLASSES, "all", "preset")
    ]
    found += [f"{place} must be a finite number that is not negative" for place in _unusable_numbers(scenario)]
    found += _too_much(scenario)
    if load.concurrency and load.request_rate is not None and not math.isinf(load.request_rate):
        found.append("load.concurrency: users of a closed loop have no request_rate; leave one of the two out")
    models = scenario.target.models
    usable = all(0 <= weight < 1e9 for weight in models.values())
    if models and (not usable or sum(models.values()) <= 0 or len(models) > 255):
        found.append("target.models: the weights of at most 255 models must be positive")
    if load.profile is not None and load.request_rate is not None and math.isinf(load.request_rate):
        found.append("load.request_rate: a profile has arrivals of its own; an unlimited rate has none")
    if load.profile is not None and load.arrivals is not None:
        found.append("load.arrivals: a profile has arrivals of its own; leave one of the two out")
    if load.profile is not None and load.window_s is not None:
        found.append("load.window_s: cuts a trace; a profile is cut by load.duration_s")
    if load.scale is not None and (load.profile is None or load.request_rate is None):
        found.append("load.scale: says how load.request_rate changes load.profile; both are needed")
    if load.turns == "after_response" and load.concurrency:
        found.append("load.turns: users of a closed loop wait for their answers anyway; leave one of the two out")
    if models and scenario.target.model is not None:
        found.append("target: name one model, or several models with their weights, not both")
    if not load.classes or sum(load.classes.values()) <= 0 or min(load.classes.values()) < 0:
        found.append("load.classes: the weights must be positive")
    positive = {
        "request_rate": load.request_rate, "burstiness": load.burstiness, "speedup": load.speedup,
        "limit": load.limit, "max_concurrency": load.max_concurrency, "duration_s": load.duration_s,
        "num_prompts": load.num_prompts, "input_len": load.input_len, "output_len": load.output_len,
        "words_per_token": load.words_per_token, "block_tokens": load.block_tokens,
    }  # fmt: skip
    found += [f"load.{key} must be above 0, not {value:g}" for key, value in positive.items()
              if value is not None and not value > 0]  # fmt: skip
    if any(users < 1 for users in load.concurrency):
        found.append("load.concurrency: each step needs at least 1 user")
    if load.window_s is not None and not 0 <= load.window_s[0] < load.window_s[1]:
        found.append("load.window_s must be [start, end] in seconds with start before end")
    found += _missing(load)
    return found


def _unusable_numbers(scenario: Scenario) -> list[str]:
    """Places of numbers that no clock, server or database can take."""
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
    }
    numbers |= {f"load.classes.{name}": weight for name, weight in load.classes.items()}
    found = [place for place, value in numbers.items() if value is not None and not 0 <= value < math.inf]
    found += [
        f"target.timeouts.{name} (above 0)"
        for name in ("connect_s", "read_s", "first_token_s", "total_s")
        if getattr(timeouts, name) == 0
    ]
    if not 0 <= load.seed < 2**63:
        found.append("load.seed (below 2^63)")
    return found


def _too_much(scenario: Scenario) -> list[str]:
    """What no host can plan or carry: told before memory is taken for it."""
    load = scenario.load
    found = []
    if not 1 <= scenario.processes <= 1024:
        found.append(f"processes must lie between 1 and 1024, not {scenario.processes}")
    if load.duration_s is not None and load.duration_s > LONGEST_UNASKED_S and not load.allow_long:
        days = load.duration_s / 86_400
        found.append(f"load.duration_s: {days:.1f} days; shorten it, or confirm with --allow-long (load.allow_long)")
    limits = [float(count) for count in (load.num_prompts, load.limit) if count is not None]
    if load.request_rate is not None and load.duration_s is not None and not math.isinf(load.request_rate):
        limits.append(load.request_rate * load.duration_s)
    # A trace that is replayed as it is holds no more than its rows.
    requests = min(limits, default=0.0) if load.trace is None or load.request_rate is not None else 0.0
    if requests * max(1, len(load.concurrency)) > MOST_REQUESTS:
        found.append(f"the load asks for {requests:.3g} requests; {MOST_REQUESTS:,} is the most that one run plans")
    if max(load.input_len, load.output_len) > _MOST_TOKENS:
        found.append(f"load.input_len and load.output_len: {_MOST_TOKENS:,} tokens is the most")
    if max(load.concurrency, default=0) > _MOST_USERS:
        found.append(f"load.concurrency: {_MOST_USERS:,} users is the most of one step")
    return found


def _missing(load: LoadConfig) -> list[str]:
    rate_unlimited = load.request_rate is not None and math.isinf(load.request_rate)
    if load.arrivals == "exact" and load.trace is None:
        return ["load.arrivals: exact needs a trace (load.trace or --trace)"]
    if load.arrivals in ("constant", "poisson", "gamma") and load.request_rate is None:
        return [f"load.arrivals: {load.arrivals} needs load.request_rate (--request-rate)"]
    if load.concurrency and load.duration_s is None and load.num_prompts is None:
        return ["a closed loop needs load.duration_s (--duration) or load.num_prompts (--num-prompts)"]
    if load.trace is not None and load.profile is not None:
        return ["load.trace and load.profile: give one of them"]
    if load.concurrency or load.trace is not None or load.profile is not None:
        return []
    if not load.says_when:
        return ["no load: give --trace, --profile, --request-rate, --concurrency or --num-prompts"]
    if load.num_prompts is None and (load.duration_s is None or rate_unlimited or load.request_rate is None):
        return ["the load has no end: give --duration or --num-prompts"]
    return []
