"""Scenarios: read, overlaid by flags, refused with place and way out."""

from pathlib import Path
from typing import Any

import pytest

from surgeproof.credentials import Secrets, check_headers
from surgeproof.errors import ConfigError
from surgeproof.scenario_file import load_scenario, load_slo, parse_duration_s
from surgeproof.storage.database_url import sqlite_path
from surgeproof.strict_yaml import read_yaml

MINIMAL = {"load.request_rate": 1.0, "load.duration_s": 1.0}


def scenario_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, "load: {request_rate: 5, duration: 2m, seed: 3}\nslo: ['ttft p99 < 1s']\n")
    found = load_scenario(path, {"load.duration_s": 60.0, "target.model": "m"})
    assert (found.name, found.load.duration_s, found.load.seed, found.target.model) == ("s", 60.0, 3, "m")
    assert found.slo == {"all": ("ttft p99 < 1s",)}


def test_a_relative_trace_is_meant_from_the_scenarios_folder(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x")
    found = load_scenario(scenario_file(tmp_path, "load: {trace: t.csv}"), {})
    assert found.load.trace == str(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load: {request_rat: 3}", r"s.yaml: unknown key 'load.request_rat'; did you mean 'request_rate'"),
        ("lod: {}", "did you mean 'load'"),
        ("load: 3", "load must be a mapping"),
        ("load: {request_rate: fast}", "request_rate"),
        ("load: {request_rate: -1, duration: 1s}", "must be above 0"),
        ("load: {request_rate: 1}", "has no end"),
        ("load: {request_rate: inf, duration: 1s}", "has no end"),
        ("load: {}", "no load"),
        ("load: {concurrency: [4]}", "--duration"),
        ("load: {profile: azure-conv, request_rate: inf, duration: 1s}", "the rate cannot be inf"),
        ("load: {profile: azure-conv, arrivals: poisson, duration: 1s}", "a profile sets the arrival times"),
        ("load: {request_rate: 1, duration: 1s, scale: thin}", "needs both load.request_rate and load.profile"),
        ("target: {models: {a: .nan}}\nload: {request_rate: 1, duration: 1s}", "target.models"),
        ("load: {concurrency: [0], duration: 1s}", "at least 1 user"),
        ("load: {arrivals: exact, duration: 1s}", "needs a trace"),
        ("load: {arrivals: poisson, num_prompts: 4}", "needs load.request_rate"),
        ("load: {request_rate: 1, duration: soon}", r"load.duration_s: 'soon' is not a duration"),
        ("load: {request_rate: 1, duration: 1s, classes: {P9: 1}}", "unknown class 'P9'"),
        ("load: {request_rate: 1, duration: 1s, classes: {P0: 0}}", "weights must be positive"),
        ("load: {request_rate: 1, duration: 1s}\nslo: {P7: [success > 1%]}", "unknown class 'P7'"),
        ("load: {trace: a, profile: b}", "give one of them"),
        ("load: {trace: a, window_s: [5, 2]}", "start before end"),
        ("load: {request_rate: 1, duration: 1s, drain: -1}", "load.drain_s must be a finite number"),
        ("load: {request_rate: 1, duration: 1s, warmup: .nan}", "load.warmup_s must be a finite number"),
        ("load: {request_rate: 1, duration: 1s, num_warmups: -5}", "load.num_warmups"),
        ("load: {request_rate: 1, duration: 1s, seed: -1}", "load.seed"),
        ("load: {request_rate: 1, duration: 1s, seed: 99999999999999999999}", "seed"),
        ("load: {request_rate: 1, duration: 1s, classes: {P1: .inf}}", "load.classes.P1"),
        ("load: {request_rate: 1, duration: 1s, classes: {P1: .nan}}", "load.classes.P1"),
        ("load: {1: 2}", "unknown key 'load.1'"),
        ("load: {null: 2}", "unknown key 'load.None'"),
        ("load: {request_rate: 1, duration: 1s}\ntarget: {temperature: .nan}", "target.temperature"),
        ("load: {request_rate: 1, duration: 1s}\ntarget: {timeouts: {read_s: -5}}", "timeouts.read_s"),
        ("load: {request_rate: 1, duration: 1s}\ntarget: {timeouts: {connect_s: 0}}", "above 0"),
        ("load: {request_rate: 1, duration: 1s}\ntarget: {timeouts: {connect_s: .inf}}", "timeouts.connect_s"),
        ("load: {request_rate: 1, duration: 1s}\ntarget: {extra_body: &a {x: *a}}", "line 2: values are nested deeper"),
        ("load: {request_rate: 1, duration: 1s}\nprocesses: 0", "processes"),
        ("load: {request_rate: 1, duration: 1s, window_s: [5]}", "load.window_s"),
        ("load: {request_rate: 4, duration: 99999h}", r"4166.6 days; shorten it"),
        ("load: {request_rate: 1.0e+12, duration: 5s}", r"asks for 5e\+12 requests"),
        ("load: {request_rate: inf, num_prompts: 100000000000}", r"1e\+11 requests"),
        ("load: {request_rate: 1, duration: 1s, input_len: 99999999999}", "10,000,000 tokens or less"),
        ("load: {concurrency: [100000000], num_prompts: 3}", "can have at most 100,000 users"),
        ("load: {request_rate: 5, concurrency: [1], duration: 2s}", "remove one of the two"),
        ("load: {request_rate: 1, duration: 2s, duration_s: 4}", "mean the same"),
        ("load: {request_rate: 1, duration: 1s}\nprocesses: 1000000", "between 1 and 1024, not 1000000"),
        ("slo: 3", "slo must be"),
        ("load: {request_rate: 1, duration: 1s}\nslo: []", "slo has no rule"),
        ("load: {request_rate: 1, duration: 1s}\nslo:", "slo has no rule"),
        ("load: {request_rate: 1, duration: 1s}\nslo: {P0: []}", "slo of P0 has no rule"),
        ("load: {request_rate: 1}\nslo: [a]\nload: {duration: 1s}", r"line 3: 'load' stands twice \(first in line 1\)"),
        ("slo:\n  P0: [a]\n  P1: [b]\n  P0: [c]", r"line 4: 'P0' stands twice \(first in line 2\)"),
        ("- a", "must contain a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_scenario_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_scenario(scenario_file(tmp_path, text), {})


def test_a_number_is_a_tag_too(tmp_path: Path) -> None:
    text = "load: {request_rate: 1, duration: 1s}\nmetadata: {build: 41, ratio: 0.5}"
    assert load_scenario(scenario_file(tmp_path, text), {}).metadata == {"build": "41", "ratio": "0.5"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_scenario(tmp_path / "nowhere.yaml", {})


def test_an_unlimited_rate_under_a_cap_is_a_closed_loop() -> None:
    """As in vLLM's bench."""
    found = load_scenario(None, {"load.request_rate": float("inf"), "load.max_concurrency": 8, "load.num_prompts": 50})
    assert found.closed_loop
    assert found.load.concurrency == (8,)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), (60, 60), ("60s", 60), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5 s", 1.5)],
)
def test_durations_are_read(text: Any, seconds: float) -> None:
    assert parse_duration_s(text, "x") == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-3", "nan", "inf", "5m later"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="x: "):
        parse_duration_s(text, "x")


def test_secrets_come_from_the_environment_and_stay_out_of_the_scenario() -> None:
    held = Secrets.from_environment({"OPENAI_API_KEY": "k1", "SURGEPROOF_HEADERS": '{"X-Org": "o"}'})
    assert held.headers == {"Authorization": "Bearer k1", "X-Org": "o"}
    assert Secrets.from_environment(held.to_environment()).headers == held.headers


@pytest.mark.parametrize(("name", "value"), [("X Y", "a"), ("", "a"), ("X", "a\r\nY: b"), ("X", "\u20ac")])
def test_a_header_that_would_break_the_request_is_refused_without_its_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_headers({name: value})
    assert value not in str(caught.value) or len(value) == 1


def test_slo_files_take_three_forms(tmp_path: Path) -> None:
    for text in ("['a']", "all: ['a']", "slo: {all: a}"):
        assert load_slo(scenario_file(tmp_path, text)) == {"all": ["a"]}


def test_slo_files_of_other_forms_are_told_with_their_name(tmp_path: Path) -> None:
    for text in ("[3]", "P0: {a: b}", "3", "slo: 7", ""):
        with pytest.raises(ConfigError, match="s.yaml"):
            load_slo(scenario_file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("P0: [a]\nP0: [b]", "line 2: 'P0' stands twice"),
        ("slo: [a]\nP0: [b]", "P0 stands beside slo and would be ignored"),
        ("[]", "slo has no rule"),
        ("P0: [a]\nP1: []", "slo of P1 has no rule"),
    ],
)
def test_a_rule_that_would_be_lost_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_slo(scenario_file(tmp_path, text))


def test_yaml_anchors_and_merges_are_not_duplicates(tmp_path: Path) -> None:
    text = "a: &a {P0: [x]}\nslo:\n  <<: *a\n  P1: [y]"
    assert load_slo(scenario_file(tmp_path, text)) == {"P0": ["x"], "P1": ["y"]}


def test_only_sqlite_urls_have_a_file() -> None:
    assert sqlite_path("sqlite:///x.db") == Path("x.db")
    assert sqlite_path("sqlite:////a/x.db?mode=ro") == Path("/a/x.db")
    assert sqlite_path("sqlite:///a?b.db") == Path("a?b.db")
    assert sqlite_path("sqlite://") is None
    assert sqlite_path("postgresql://u@h/d") is None


def test_a_file_that_grows_as_it_is_read_is_refused(tmp_path: Path) -> None:
    """A billion laughs: ten lists of ten aliases each, of the one before."""
    lines = ["a0: &a0 [lol, lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (tmp_path / "laughs.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="or are more than 100,000 with all that aliases"):
        read_yaml(tmp_path / "laughs.yaml", "scenario")
    (tmp_path / "deep.yaml").write_text("[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError, match="nested deeper than 50"):
        read_yaml(tmp_path / "deep.yaml", "scenario")
    (tmp_path / "fair.yaml").write_text("rules: &r ['ttft p99 < 1s']\nslo: {P0: *r, P1: *r}\n")
    assert read_yaml(tmp_path / "fair.yaml", "scenario")["slo"] == {"P0": ["ttft p99 < 1s"], "P1": ["ttft p99 < 1s"]}
