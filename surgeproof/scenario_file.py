"""Reads a scenario from YAML and flags, and checks it as a whole before anything starts.

An unknown key is an error that names its place and the nearest known one. Paths become absolute,
since workers run in another folder.
"""

import difflib
import math
import os
import re
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from surgeproof.errors import ConfigError
from surgeproof.records import REQUEST_CLASSES
from surgeproof.scenario import DEFAULT_MAX_CONCURRENCY, SERVED_TOKENIZER, Scenario, TargetConfig
from surgeproof.scenario_checks import problems_of
from surgeproof.strict_json import JsonObject
from surgeproof.strict_yaml import read_yaml

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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
        raise ConfigError(f"{place}: {value!r} is not a finite duration of 0 or more")
    return seconds


def load_scenario(path: Path | None, overrides: JsonObject) -> Scenario:
    """Read a scenario file, apply flags on top and check the result.

    Args:
        path: YAML file; None for flags alone.
        overrides: values by dotted key (`load.seed`), which override the file's.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong or missing.
    """
    place = str(path) if path else "flags"
    raw = _read_yaml(path) if path else {}
    if path:
        _anchor_files(raw, path)
        if "slo" in raw:
            raw["slo"] = slo_by_class(raw["slo"] or [], place)
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


def load_target(values: JsonObject, fields: JsonObject) -> TargetConfig:
    """A target from flags alone.

    Args:
        values: by key; None where not given.
        fields: of the requests, by key; None is a value.

    Raises:
        ConfigError: a value has the wrong type.
    """
    given = {key: value for key, value in values.items() if value is not None}
    return convert_scenario({"target": given | fields}, "flags").target


def convert_scenario(raw: JsonObject, place: str) -> Scenario:
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
        raise ConfigError(f"{place}: a value is not plain data (text, number, list or mapping): {exc}") from exc


def slo_by_class(raw: Any, place: str) -> JsonObject:
    """Objectives as a mapping of classes; a bare list is for all requests.

    Raises:
        ConfigError: it is neither, or holds no rule.
    """
    by_class = {"all": raw} if isinstance(raw, list) else raw
    if not isinstance(by_class, dict):
        raise ConfigError(f"{place}: slo must be a list of rules, or a mapping of P0, P1, P2 or all to lists")
    if not raw:
        raise ConfigError(f"{place}: slo has no rule: add one such as 'ttft p99 < 350ms', or leave slo out")
    if empty := [str(name) for name, rules in by_class.items() if not rules]:
        raise ConfigError(f"{place}: slo of {', '.join(empty)} has no rule: add one, or leave the class out")
    return {name: [rules] if isinstance(rules, str) else rules for name, rules in by_class.items()}


def load_slo(path: Path) -> JsonObject:
    """Read a file of objectives alone: a list, a mapping of classes, or either below `slo`; or `preset:NAME`."""
    if str(path).startswith("preset:"):
        return {"preset": [str(path).removeprefix("preset:")]}
    raw = read_yaml(path, "SLO file")
    if isinstance(raw, dict) and "slo" in raw:
        if beside := [str(name) for name in raw if name in (*REQUEST_CLASSES, "all", "preset")]:
            raise ConfigError(f"{path}: {', '.join(beside)} stands beside slo and would be ignored: move it below slo")
        raw = raw["slo"]
    by_class = slo_by_class(raw, str(path))
    for name, rules in by_class.items():
        if name not in (*REQUEST_CLASSES, "all", "preset"):
            raise ConfigError(f"{path}: unknown class {name!r}; known are {', '.join(REQUEST_CLASSES)} and all")
        if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
            raise ConfigError(f"{path}: the rules of {name} must be strings such as 'ttft p99 < 350ms'")
    return by_class


def _read_yaml(path: Path) -> JsonObject:
    raw = read_yaml(path, "scenario")
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must contain a mapping with keys such as target, load and slo")
    return raw


def _anchor_files(raw: JsonObject, path: Path) -> None:
    """Resolve relative paths of traces and datasets from the scenario's folder, unless they exist in the current."""
    load = raw.get("load")
    for holder, names in (
        (load, ("trace", "dataset", "tasks")),
        *((work, ("dataset",)) for work in _class_works(load)),
    ):
        for name in names:
            if isinstance(holder, dict) and isinstance(holder.get(name), str):
                file = Path(os.path.expanduser(holder[name]))  # noqa: PTH111
                if not file.is_absolute() and not file.exists():
                    holder[name] = str((path.parent / file).resolve())


def _class_works(load: Any) -> list[Any]:
    """The mappings below `load.by_class`, as far as it is one."""
    by_class = load.get("by_class") if isinstance(load, dict) else None
    return list(by_class.values()) if isinstance(by_class, dict) else []


def _make_absolute(raw: JsonObject) -> None:
    """Workers run in another folder: file names must not depend on ours."""
    load, target = raw.get("load"), raw.get("target")
    tls = target.get("tls") if isinstance(target, dict) else None
    for holder, names in (
        (load, ("trace", "dataset", "tasks", "tokenizer")),
        (tls, ("ca_file", "client_cert", "client_key")),
        *((work, ("dataset",)) for work in _class_works(load)),
    ):
        for name in names:
            if isinstance(holder, dict) and isinstance(holder.get(name), str) and holder[name] != SERVED_TOKENIZER:
                holder[name] = str(Path(os.path.expanduser(holder[name])).absolute())  # noqa: PTH111


def _read_durations(raw: JsonObject, place: str) -> None:
    """`duration: 60s` is `duration_s: 60`; every key that ends in `_s` also accepts such text."""
    target = raw.get("target")
    holders = [("load", raw.get("load"))]
    if isinstance(target, dict):
        holders.append(("target.timeouts", target.get("timeouts")))
    for name, holder in holders:
        if not isinstance(holder, dict):
            continue
        for short in ("duration", "warmup", "drain"):
            if short in holder and f"{short}_s" in holder:
                raise ConfigError(f"{place}: {name}.{short} and {name}.{short}_s mean the same: give only one of them")
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


def _closed_by_cap(scenario: Scenario, overrides: JsonObject) -> Scenario:
    """An unlimited rate under a cap is a closed loop of that many users, as in vLLM's bench."""
    load = scenario.load
    unlimited = load.request_rate is None or math.isinf(load.request_rate)
    capped = load.max_concurrency != DEFAULT_MAX_CONCURRENCY or "load.max_concurrency" in overrides
    if unlimited and capped and not load.concurrency and load.trace is None and load.profile is None:
        load = msgspec.structs.replace(load, concurrency=(load.max_concurrency,))
        return msgspec.structs.replace(scenario, load=load)
    return scenario


def _checked(scenario: Scenario, place: str) -> Scenario:
    problems = problems_of(scenario)
    if len(problems) == 1:
        raise ConfigError(f"{place}: {problems[0]}")
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(f"{place}: {len(problems)} problems:{lines}")
    return scenario
