"""The rule language of objectives: grammar, then the parser that follows it. Pure.

rule       = ( objective / share-rule / flow-rule ) [ "where" selector *( "and" selector ) ] [ stalls ]
objective  = [ view ] metric [ aggregate ] comparison number [ unit ]
share-rule = condition *( "and" condition ) "for" number "%"
condition  = [ view ] latency comparison number [ unit ]
flow-rule  = "fluidity" number unit "/" number unit ( ">=" / ">" ) number "%" [ "for" number "%" ]
                                            ; deadlines of the first arrival and of each later one
stalls     = "with stalls of" number ( "ms" / "s" )
                                            ; length of stalls that the server may have, seen or not
view       = "response" / "service"         ; from the planned time (default) / from the send
aggregate  = "p" number / "mean" / "max" / "min"
comparison = "<" / "<=" / ">" / ">="
unit       = "ms" / "s" / "us" / "%" / "GB" / "W" / "C"
selector   = length ( comparison number / number ".." number )
           / ( "model" / "phase" / "step" / "worker" / "turn" ) "=" word
length     = "input" / "output" / "turn"    ; planned tokens, turns from 0; the range's upper end is left out

ttft p99 < 350ms            success >= 99.9%            output_tokens_per_s >= 1200
service e2e p95 < 800ms     ttft < 200ms and tpot < 50ms for 99%
task p95 < 60s              ttft p95 < 1s where turn >= 4
inter_chunk p99 < 60ms      fluidity 500ms/50ms >= 90% for 99%
ttft p99 < 2s where input 4000..16000 and model = llama-8b
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from surgeproof.errors import RuleError
from surgeproof.records import Phase
from surgeproof.slo.presets import preset

LATENCIES = {
    "ttft": "time to the first token",
    "first_answer": "time to the first visible text",
    "tpot": "time per output token after the first",
    "max_gap": "longest wait between two arrivals of output",
    "inter_chunk": "wait between two arrivals of output, over all of them",
    "last_token": "time to the last output; of a reply that was not streamed, to its end",
    "e2e": "time to the end of the answer: [DONE], or the end of the body",
    "task": "time from a task's or conversation's beginning to its last answer, think times and tool times included",
}
_FROM_PLANNED_TIME = ("ttft", "first_answer", "last_token", "e2e")
TASK = "task"
REQUEST_LATENCIES = tuple(name for name in LATENCIES if name not in ("inter_chunk", TASK))
"""Those of which every request has one."""
FLUIDITY = "fluidity"
SHARES = {
    "success": "share of requests that were answered",
    "shed": "share of requests refused with 429 or 503",
    "errors": "share of requests that failed, shed ones included",
}
RATES = {
    "requests_per_s": "answered requests a second",
    "input_tokens_per_s": "prompt tokens of answered requests a second",
    "output_tokens_per_s": "output tokens of answered requests a second",
    "items_per_s": "vectors or scores of answered requests a second",
}
TASK_RATE = "tasks_per_hour"
PER_GPU = "_per_gpu"
RATES |= {TASK_RATE: "tasks or conversations that were done an hour"} | {
    f"{name}{PER_GPU}": f"{text}, by the number of GPUs that an agent sampled" for name, text in RATES.items()
}
FLOWS = {FLUIDITY: "share of an answer's arrivals that meet their deadlines"}
GPU_METRICS = {
    "gpu_time_active": "share of time in which any kernel ran; not a measure of how busy a GPU is",
    "gpu_sm": "share of SM time in use",
    "gpu_tensor": "share of time in which the tensor pipe was active",
    "gpu_dram": "share of the memory's bandwidth in use",
    "gpu_memory": "memory used",
    "gpu_memory_per_request": "memory used over all GPUs, by the mean number of requests in flight",
    "gpu_power": "power drawn",
    "gpu_temperature": "temperature",
}
"""Of an agent's samples, over all GPUs."""
GPU_FIELDS = {
    "gpu_time_active": ("time_active_pct", "%", 100.0), "gpu_sm": ("sm_pct", "%", 100.0),
    "gpu_tensor": ("tensor_pct", "%", 100.0), "gpu_dram": ("dram_pct", "%", 100.0),
    "gpu_memory": ("memory_used_bytes", "gb", 1e9), "gpu_memory_per_request": ("memory_used_bytes", "gb", 1e9),
    "gpu_power": ("power_w", "w", 1.0), "gpu_temperature": ("temperature_c", "c", 1.0),
}  # fmt: skip
"""Field of a sample, unit, and how much of the field one unit is."""
METRICS = LATENCIES | SHARES | RATES | FLOWS | GPU_METRICS
_VIEWLESS = ("tpot", "max_gap", "inter_chunk")
_LENGTHS = {"input": "planned_input_tokens", "output": "planned_output_tokens", "turn": "turn"}
WHEN = ("step", "phase")
"""Selectors by these say when a rule looks; all others say at which requests."""
_NAMED = ("model", "phase")
_UNITS_MS = {"ms": 1.0, "s": 1000.0, "us": 0.001}

STREAMED = ("ttft", "first_answer", "tpot", "max_gap", "inter_chunk", FLUIDITY)
"""Those that an answer has only where it is streamed."""
GOODPUT_NAMES = {"ttft": "ttft", "tpot": "tpot", "e2el": "last_token", "last_token": "last_token", "e2e": "e2e"}
"""vLLM's names in `--goodput`, and ours; vLLM's end of a request is its last output, not `[DONE]`."""

View = Literal["response", "service"]

_CONDITION = re.compile(
    r"(?:(?P<view>response|service)\s+)?(?P<metric>[a-z_0-9]+)(?:\s+(?P<aggregate>p\d+(?:\.\d+)?|mean|max|min))?"
    r"\s*(?P<comparison><=|>=|<|>)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|us|s|%|gb|w|c)?"
)
_LENGTH = re.compile(
    r"(?P<of>input|output|turn)\s*(?:(?P<low>\d+)\s*\.\.\s*(?P<high>\d+)|(?P<comparison><=|>=|<|>)\s*(?P<number>\d+))"
)
_FLOW = re.compile(
    r"fluidity\s+(?P<first>\d+(?:\.\d+)?)\s*(?P<first_unit>ms|us|s)\s*/\s*(?P<next>\d+(?:\.\d+)?)\s*(?P<next_unit>ms|us|s)"
    r"\s*(?P<comparison>>=|>)\s*(?P<number>\d+(?:\.\d+)?)\s*%(?:\s+for\s+(?P<share>\d+(?:\.\d+)?)\s*%)?"
)
_EQUAL = re.compile(r"(?P<of>model|phase|step|worker|turn)\s*=\s*(?P<word>\S+)")
_STALLS = re.compile(r"\s+with stalls of (?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)$", re.IGNORECASE)
_SHARE = re.compile(r"(?P<conditions>.+?)\s+for\s+(?P<share>\d+(?:\.\d+)?)\s*%")


class Condition(msgspec.Struct, frozen=True):
    """A metric compared with a bound: ms for latencies, a ratio for what is in %, 1/s for rates."""

    metric: str
    comparison: str
    bound: float
    view: View = "response"

    def met_by(self, value: float) -> bool:
        """Whether a value satisfies the comparison; equality as it is written."""
        if self.comparison == "<":
            return value < self.bound
        if self.comparison == "<=":
            return value <= self.bound
        return value > self.bound if self.comparison == ">" else value >= self.bound

    @property
    def upper(self) -> bool:
        """Whether small values are good."""
        return self.comparison in ("<", "<=")


class Selector(msgspec.Struct, frozen=True):
    """Which requests a rule is about: a column in a half-open range, or with one value.

    Attributes:
        column: name of a record column.
        low, high: `low <= value < high`; None is no bound.
        value: the text or number that the column must have, in place of a range.
    """

    column: str
    low: int | None = None
    high: int | None = None
    value: str | int | None = None


class Rule(msgspec.Struct, frozen=True):
    """One parsed objective.

    Attributes:
        text: as it was written.
        conditions: what a request (or the aggregate) must satisfy; several only in a share rule.
        quantile: for `pNN` and `for NN %`: the share of requests that must satisfy them.
        aggregate: `mean`, `max` or `min`, where the rule names one.
        selectors: all that a request must be for the rule to be about it.
        deadlines_ms: of the first arrival and of each later one, for fluidity.
        stall_s: length of stalls that the server may have, s: requests within one count as one.
    """

    text: str
    conditions: tuple[Condition, ...]
    quantile: float | None = None
    aggregate: str | None = None
    selectors: tuple[Selector, ...] = ()
    deadlines_ms: tuple[float, float] | None = None
    stall_s: float = 0.0

    @property
    def metric(self) -> str:
        """Name of the first metric."""
        return self.conditions[0].metric

    @property
    def tightest_ms(self) -> float | None:
        """The smallest bound, ms, on a latency from the planned time, which late sending makes longer."""
        bounds = [c.bound for c in self.conditions if c.metric in _FROM_PLANNED_TIME and c.upper]
        return min(bounds, default=None)


def parse_rule(text: str) -> Rule:
    """Read one rule.

    Raises:
        RuleError: it does not follow the grammar, or names an unknown metric.
    """
    whole = " ".join(text.strip().split())
    if stalls := _STALLS.search(whole):
        return _with_stalls(text, parse_rule(whole[: stalls.start()]), stalls)
    about, *wheres = re.split(r" where ", whole, maxsplit=1, flags=re.IGNORECASE)
    where = wheres[0] if wheres else ""
    rule = _parse_objective(text, about.lower())
    if not where:
        return rule
    if rule.metric == "inter_chunk":
        raise RuleError(f"SLO rule {text!r}: gaps are stored by class only: inter_chunk takes no 'where'")
    selectors = tuple(_selector(text, part) for part in re.split(r" and ", where, flags=re.IGNORECASE))
    if rule.metric in GPU_METRICS and any(selector.column not in WHEN for selector in selectors):
        raise RuleError(
            f"SLO rule {text!r}: a GPU serves all requests at once: "
            f"{rule.metric} takes no 'where' but with step and phase"
        )
    return msgspec.structs.replace(rule, selectors=selectors)


def at_step(rule: Rule, step: int) -> Rule:
    """The same rule about one step of a ladder."""
    stalls = _STALLS.search(rule.text)
    about, suffix = (rule.text[: stalls.start()], stalls[0]) if stalls else (rule.text, "")
    text = f"{about} {'and' if rule.selectors else 'where'} step = {step}{suffix}"
    return msgspec.structs.replace(rule, text=text, selectors=(*rule.selectors, Selector("step", value=step)))


def _with_stalls(text: str, rule: Rule, stalls: re.Match[str]) -> Rule:
    stall_s = float(stalls["number"]) * _UNITS_MS[stalls["unit"].lower()] / 1000
    per_request = rule.quantile is not None and rule.metric != "inter_chunk" and rule.metric not in GPU_METRICS
    if not per_request and rule.metric not in SHARES:
        raise RuleError(f"SLO rule {text!r}: 'with stalls of' is for shares of requests (p99, for 99%, success)")
    if not stall_s:
        raise RuleError(f"SLO rule {text!r}: a stall must be longer than 0")
    return msgspec.structs.replace(rule, text=text, stall_s=stall_s)


def _selector(text: str, part: str) -> Selector:
    part = part.strip()
    if match := _LENGTH.fullmatch(part.lower()):
        column = _LENGTHS[match["of"]]
        if match["low"] is not None and int(match["low"]) >= int(match["high"]):
            raise RuleError(f"SLO rule {text!r}: the range {part!r} is empty")
        if match["low"] is not None:
            return Selector(column, int(match["low"]), int(match["high"]))
        number, comparison = int(match["number"]), match["comparison"]
        if comparison in ("<", "<="):
            return Selector(column, high=number + (comparison == "<="))
        return Selector(column, low=number + (comparison == ">"))
    if match := _EQUAL.fullmatch(part):
        if match["of"] == "phase" and match["word"] not in tuple(Phase):
            raise RuleError(f"SLO rule {text!r}: unknown phase; known are {', '.join(Phase)}")
        if match["of"] in _NAMED:
            return Selector(match["of"], value=match["word"])
        if match["word"].isascii() and match["word"].isdigit():
            return Selector(match["of"], value=int(match["word"]))
    raise RuleError(
        f"SLO rule {text!r}: cannot read {part!r} after 'where'; write for example 'input < 1000', "
        "'input 1000..4000', 'model = llama-8b' or 'step = 64'"
    )


def _parse_flow(text: str, words: str) -> Rule:
    match = _FLOW.fullmatch(words)
    if match is None:
        raise RuleError(f"SLO rule {text!r} cannot be read; write for example 'fluidity 500ms/50ms >= 90% for 99%'")
    deadlines = tuple(float(match[of]) * _UNITS_MS[match[f"{of}_unit"]] for of in ("first", "next"))
    if not all(deadlines):
        raise RuleError(f"SLO rule {text!r}: a deadline of 0 cannot be met")
    condition = Condition(FLUIDITY, match["comparison"], _share_of(text, match["number"]))
    share = _share_of(text, match["share"]) if match["share"] else None
    return Rule(text, (condition,), quantile=share, deadlines_ms=(deadlines[0], deadlines[1]))


def _share_of(text: str, number: str) -> float:
    share = round(float(number) / 100, 12)
    if not 0 < share < 1:
        raise RuleError(f"SLO rule {text!r}: a share must lie between 0 % and 100 %")
    return share


def _parse_objective(text: str, words: str) -> Rule:
    if words.startswith(FLUIDITY):
        return _parse_flow(text, words)
    share = _SHARE.fullmatch(words)
    if share:
        conditions = tuple(_per_request(text, _match(text, part)) for part in share["conditions"].split(" and "))
        quantile = round(float(share["share"]) / 100, 12)
        if not 0 < quantile < 1:
            raise RuleError(f"SLO rule {text!r}: the share must lie between 0 % and 100 %")
        if len({condition.metric == TASK for condition in conditions}) > 1:
            raise RuleError(f"SLO rule {text!r}: task is about tasks, not requests; give it a rule of its own")
        if len(conditions) > 1 and any(condition.metric == "inter_chunk" for condition in conditions):
            raise RuleError(f"SLO rule {text!r}: inter_chunk counts gaps, not requests; give it a rule of its own")
        return Rule(text, conditions, quantile=quantile)
    match = _match(text, words)
    condition = _condition(text, match)
    aggregate = match["aggregate"]
    if condition.metric not in LATENCIES | GPU_METRICS:
        if aggregate:
            raise RuleError(f"SLO rule {text!r}: {condition.metric} is one number per run and takes no {aggregate}")
        return Rule(text, (condition,))
    if aggregate is None:
        raise RuleError(
            f"SLO rule {text!r}: {condition.metric} needs an aggregate: p99, p50, mean, max, or "
            f"'{words} for 99%' for a share of requests"
        )
    if aggregate.startswith("p"):
        quantile = round(float(aggregate[1:]) / 100, 12)
        if not 0 < quantile < 1:
            raise RuleError(f"SLO rule {text!r}: {aggregate} is not a percentile between p0 and p100")
        return Rule(text, (condition,), quantile=quantile)
    return Rule(text, (condition,), aggregate=aggregate)


class Objectives(msgspec.Struct, frozen=True):
    """The rules that a run is judged by, of each class in the order in which they were written."""

    by_class: dict[str, tuple[Rule, ...]] = {}

    def __iter__(self) -> Iterator[tuple[str, Rule]]:
        """Every rule with the class it is about."""
        return ((name, rule) for name, rules in self.by_class.items() for rule in rules)

    def __bool__(self) -> bool:
        return any(self.by_class.values())

    @property
    def tightest_ms(self) -> float | None:
        """The smallest bound on a latency from the planned time, ms; None without one."""
        bounds = [rule.tightest_ms for _, rule in self]
        return min((bound for bound in bounds if bound is not None), default=None)

    def by_step(self, steps: Sequence[int]) -> list[tuple[str, Rule]]:
        """Every rule; in a ladder of several steps once for each, since figures over steps are of no one load.

        Args:
            steps: numbers of users. Gaps between arrivals are not kept by step: rules on them stay one.
        """
        results = []
        for name, rule in self:
            named = any(selector.column == "step" for selector in rule.selectors)
            apart = len(steps) > 1 and not named and rule.metric != "inter_chunk"
            results += [(name, at_step(rule, step)) for step in steps] if apart else [(name, rule)]
        return results

    @property
    def need_arrivals(self) -> bool:
        """Whether a rule is about the times of single arrivals."""
        return any(rule.deadlines_ms is not None for _, rule in self)


def parse_objectives(slo: Mapping[str, Sequence[str]]) -> Objectives:
    """Read the rules of every class; those of `preset` are names of presets, whose rules are added.

    Raises:
        RuleError: a rule does not follow the grammar, or there is no such preset.
    """
    texts = {name: tuple(rules) for name, rules in slo.items() if name != "preset"}
    for chosen in slo.get("preset", ()):
        for name, rules in preset(chosen).items():
            texts[name] = (*texts.get(name, ()), *rules)
    return Objectives({name: tuple(parse_rule(text) for text in rules) for name, rules in texts.items()})


def parse_goodput(pairs: list[str]) -> dict[str, float]:
    """Read vLLM's `ttft:500 tpot:50 e2el:3000` as bounds in ms by our names.

    Raises:
        RuleError: a name is unknown or a bound is no positive number.
    """
    bounds: dict[str, float] = {}
    for pair in pairs:
        name, _, number = pair.partition(":")
        if name not in GOODPUT_NAMES:
            raise RuleError(f"goodput {pair!r}: unknown metric {name!r}; known are {', '.join(GOODPUT_NAMES)}")
        try:
            bound = float(number)
        except ValueError:
            bound = -1.0
        if not 0 < bound < float("inf"):
            raise RuleError(f"goodput {pair!r}: write the bound in milliseconds, such as {name}:500")
        bounds[GOODPUT_NAMES[name]] = bound
    return bounds


def _match(text: str, words: str) -> re.Match[str]:
    match = _CONDITION.fullmatch(words)
    if match is None:
        raise RuleError(
            f"SLO rule {text!r} cannot be read; write for example 'ttft p99 < 350ms', "
            f"'success >= 99.9%' or 'ttft < 200ms for 99%'"
        )
    return match


def _condition(text: str, match: re.Match[str]) -> Condition:
    metric, unit, number = match["metric"], match["unit"], float(match["number"])
    if metric not in METRICS:
        near = difflib.get_close_matches(metric, METRICS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RuleError(f"SLO rule {text!r}: unknown metric {metric!r}; {hint}known are {', '.join(METRICS)}")
    number = _bound(text, metric, match["comparison"], number, unit)
    view = match["view"]
    if view and (metric not in LATENCIES or metric in _VIEWLESS):
        raise RuleError(f"SLO rule {text!r}: {metric} has no {view} view")
    return Condition(metric, match["comparison"], number, "service" if view == "service" else "response")


def _bound(text: str, metric: str, comparison: str, number: float, unit: str | None) -> float:
    """A bound in the unit that verdicts count in: ms, ratio, 1/s, or the GPU field's own."""
    if metric in LATENCIES:
        if unit not in _UNITS_MS:
            raise RuleError(f"SLO rule {text!r}: {metric} needs a unit: us, ms or s")
        if comparison in (">", ">="):
            raise RuleError(f"SLO rule {text!r}: {metric} is a latency: use an upper bound (< or <=)")
        return number * _UNITS_MS[unit]
    if metric in SHARES:
        if unit != "%":
            raise RuleError(f"SLO rule {text!r}: {metric} is a share: write a percentage such as 99.9%")
        if number > 100:
            raise RuleError(f"SLO rule {text!r}: a share cannot exceed 100 %")
        if (comparison, number) in (("<", 0.0), (">", 100.0)):
            raise RuleError(f"SLO rule {text!r}: a share cannot be below 0 % or above 100 %: write <= 0% or >= 100%")
        return number / 100
    if metric in GPU_METRICS:
        _, wanted, _ = GPU_FIELDS[metric]
        if unit != wanted:
            raise RuleError(f"SLO rule {text!r}: {metric} is in {wanted.upper()}")
        return number / 100 if unit == "%" else number
    if unit is not None:
        raise RuleError(f"SLO rule {text!r}: {metric} is a number per second: write it without a unit")
    return number


def _per_request(text: str, match: re.Match[str]) -> Condition:
    condition = _condition(text, match)
    if condition.metric not in LATENCIES or match["aggregate"]:
        raise RuleError(f"SLO rule {text!r}: 'for' needs a latency of single requests, such as ttft < 200ms")
    return condition
