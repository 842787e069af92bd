"""Trace files that are odder than any published one: each was once an invented request, a lost one or a crash."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from surgeproof.errors import ConfigError, TraceError
from surgeproof.runs.plan_scenario import plan_scenario
from surgeproof.scenario import LoadConfig, Scenario
from surgeproof.traces.arrivals import Modulator, pgar
from surgeproof.traces.describe import describe_file
from surgeproof.traces.fit import fit_profile
from surgeproof.traces.formats.rows import BadValueError, moment_ns
from surgeproof.traces.profile import load_profile
from surgeproof.traces.rates import RateSeries, fit_diurnal
from surgeproof.traces.reader import Trace, read_trace

COLUMNS = "at=t,input=i,output=o"


def written(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return [(point.input_tokens, point.output_tokens) for point in trace.points]


def test_a_quoted_field_may_hold_line_breaks(tmp_path: Path) -> None:
    """The second line of a prompt looks like a row of its own."""
    path = written(tmp_path, 't,i,o,prompt\n1,10,20,"hello\n2,99999,77,world"\n3,30,40,"a ""b"" c"\n')
    assert lengths(read_trace(path, columns=COLUMNS)) == [(10, 20), (30, 40)]


def test_a_quoted_field_without_an_end_is_one_malformed_row(tmp_path: Path) -> None:
    path = written(tmp_path, 't,i,o,prompt\n1,10,20,x\n2,10,20,"hello\n3,30,40,y\n')
    with pytest.raises(TraceError, match="row 3: a quoted field has no end"):
        read_trace(path, columns=COLUMNS)


def test_a_quote_that_never_closes_costs_its_own_row_only(tmp_path: Path) -> None:
    rows = "".join(f"{k},10,20,x\n" for k in range(2, 300))
    path = written(tmp_path, f't,i,o,p\n0,10,20,"59,5\n1,10,20,y\n{rows}')
    trace = read_trace(path, columns=COLUMNS, skip_invalid=True)
    assert (len(trace.points), trace.dropped) == (299, {"malformed": 1})


def test_a_prompt_of_many_lines_is_one_field(tmp_path: Path) -> None:
    path = written(tmp_path, 't,i,o,p\n0,10,20,"' + "line\n" * 400 + '"\n1,30,40,y\n')
    assert lengths(read_trace(path, columns=COLUMNS)) == [(10, 20), (30, 40)]


def test_a_long_column_of_prompts_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, f"t,i,o,prompt\n1,10,20,{'x' * 200_000}\n")
    assert lengths(read_trace(path, columns=COLUMNS)) == [(10, 20)]


def test_a_mapped_column_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, "t,i,o\n1,10,20\n")
    with pytest.raises(TraceError, match="no column nope; the header has t, i, o"):
        read_trace(path, columns=f"{COLUMNS},session=nope")


def test_extra_columns_of_an_azure_row_are_malformed(tmp_path: Path) -> None:
    path = written(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44,5\n")
    with pytest.raises(TraceError, match="4 columns instead of 3"):
        read_trace(path)


def test_parameters_in_a_prompt_are_not_the_requests(tmp_path: Path) -> None:
    line = (
        "INFO 01-02 03:04:05 logger.py:39] Received request cmpl-1: prompt: 'say max_tokens=7 and "
        "prompt_token_ids: [1, 2]', params: SamplingParams(n=1, max_tokens=900), "
        "prompt_token_ids: [5, 6, 7], lora_request: None."
    )
    assert lengths(read_trace(written(tmp_path, line, "vllm.log"))) == [(3, 900)]


def test_an_answer_of_no_tokens_is_not_taken_for_its_limit(tmp_path: Path) -> None:
    row = {"timestamp": 1, "body": {"prompt": "a b c d", "max_tokens": 500}}
    lines = "\n".join(json.dumps(one) for one in (row | {"completion_tokens": 0}, row | {"completion_tokens": 9}))
    trace = read_trace(written(tmp_path, lines, "e.jsonl"))
    assert [output for _, output in lengths(trace)] == [9]
    assert trace.dropped == {"zero_output_tokens": 1}


def test_a_session_may_be_number_zero(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 3, "output_length": 4, "session_id": 0}
    assert read_trace(written(tmp_path, json.dumps(row), "m.jsonl")).points[0].session == "0"


def test_a_comma_may_begin_a_fraction() -> None:
    assert moment_ns("t", "2024-01-01T00:00:00,250") - moment_ns("t", "2024-01-01T00:00:00") == 250_000_000


@pytest.mark.parametrize("value", [True, "1e9999999", "9" * 400, b"12", [], "nan"])
def test_what_is_no_time_is_a_bad_value(value: Any) -> None:
    with pytest.raises(BadValueError):
        moment_ns("t", value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"timestamp": 0, "input_length": int("9" * 400), "output_length": 1}, "input_length is"),
        ({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 5}, "hash_ids are '5', not a list"),
    ],
)
def test_odd_values_are_malformed_rows(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=told):
        read_trace(written(tmp_path, json.dumps(row), "m.jsonl"))


def test_a_stamp_that_is_far_off_is_told_before_memory_is_taken(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="spans 4e\\+09 s"):
        read_trace(written(tmp_path, "t,i,o\n0,1,1\n4000000000,1,1\n"), columns=COLUMNS)


def test_a_folder_is_no_time_zone(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unknown time zone 'Europe'"):
        read_trace(written(tmp_path, "t,i,o\n0,1,1\n"), columns=f"{COLUMNS},zone=Europe")


# -- streamed ---------------------------------------------------------------------------------------


def both(path: Path, columns: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the reader says of a file, and what streaming it says."""
    found = [
        describe_file(path, columns=columns, undo_grid=False, large_bytes=size, **options) for size in (1 << 40, 0)
    ]
    return found[0], found[1]


def test_objects_of_json_are_read_one_by_one_however_large(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"t": k, "i": 5, "o": 6}) for k in range(20))
    whole, streamed = both(written(tmp_path, lines, "t.jsonl"), COLUMNS)
    assert whole == streamed


def test_times_of_a_zone_with_and_without_offsets(tmp_path: Path) -> None:
    """Also the hour that a clock turned back says twice."""
    stamps = ["2024-10-27T01:30:00", "2024-10-27T02:30:00", "2024-10-27T03:30:00+01:00", "2024-10-27T04:30:00Z"]
    text = "t,i,o\n" + "".join(f"{stamp},5,6\n" for stamp in stamps)
    whole, streamed = both(written(tmp_path, text), f"{COLUMNS},zone=Europe/Berlin")
    assert streamed.span_s == whole.span_s == 5 * 3600
    assert streamed.dropped == whole.dropped


def test_rows_without_time_and_tokens_are_no_blank_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "t,i,o,x\n1,5,6,a\n,,,b\n\n2,5,6,c\n,,,d\n")
    whole, streamed = both(path, COLUMNS, skip_invalid=True)
    assert (streamed.blank_lines, streamed.dropped) == (whole.blank_lines, whole.dropped)
    assert streamed.dropped["malformed"] == 2
    with pytest.raises(TraceError, match="2 rows have neither a time nor token counts"):
        describe_file(path, columns=COLUMNS, large_bytes=0)


def test_a_parquet_file_needs_no_name_and_lists_its_columns(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "table"
    pd.DataFrame({"t": [0, 1, 2], "i": [5, 5, 2**31], "o": [6, 6, 6]}).to_parquet(path)
    with pytest.raises(TraceError, match="no column nope; it has t, i, o"):
        describe_file(path, columns="at=t,input=i,output=nope", large_bytes=0)
    with pytest.raises(TraceError, match="row 3: cannot read 2, 2147483648, 6"):
        describe_file(path, columns=COLUMNS, large_bytes=0)


def test_a_late_first_row_hides_no_time(tmp_path: Path) -> None:
    text = "t,i,o\n1000,5,6\n" + "".join(f"{k},5,6\n" for k in range(2000))
    whole, streamed = both(written(tmp_path, text), COLUMNS)
    assert streamed.span_s == whole.span_s == 1999
    assert streamed.dispersion["60s"] == pytest.approx(whole.dispersion["60s"])


# -- fitted, drawn and scaled -----------------------------------------------------------------------


def test_a_clockwork_trace_can_be_fitted(tmp_path: Path) -> None:
    """Equal gaps have no dispersion at all: the most regular shape comes nearest."""
    text = "t,i,o\n" + "".join(f"{k / 10},5,6\n" for k in range(12_000))
    fitted = fit_profile(read_trace(written(tmp_path, text), columns=COLUMNS), "clock")
    assert fitted.arrivals.gap_shape == 1.3


def test_a_daily_shape_needs_steps_that_show_it() -> None:
    with pytest.raises(TraceError, match="steps of six hours at most"):
        fit_diurnal(RateSeries(43_200.0, (1.0, 2.0) * 10))
    with pytest.raises(TraceError, match="some traffic"):
        fit_diurnal(RateSeries(3600.0, (0.0,) * 48))
    flat = fit_diurnal(RateSeries(3600.0, (2.0,) * 48))
    assert (flat.phi, flat.r2) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("arrivals", {"rates_per_s": [-1.0]}, "rates_per_s"),
        ("arrivals", {"rates_per_s": []}, "rates_per_s"),
        ("arrivals", {"fine_window_s": 0}, "fine_window_s"),
        ("arrivals", {"modulator": {"a": 0, "rho": 0.5, "z": 9}}, "modulator"),
        ("arrivals", {"modulator": {"a": 1, "rho": 1, "z": 9}}, "modulator"),
        ("marks", {"classes": []}, "class of lengths"),
        ("marks", {"mix": []}, "row of mix"),
    ],
)
def test_a_profile_that_nothing_can_be_drawn_from_is_refused(
    place: str, value: dict[str, Any], told: str, tmp_path: Path
) -> None:
    plain = json.loads(msgspec.json.encode(load_profile("azure-code")))
    plain[place] |= value
    path = written(tmp_path, json.dumps(plain), "p.json")
    with pytest.raises(TraceError, match=told):
        load_profile(str(path))


def test_the_count_is_conserved_over_what_is_sent() -> None:
    """Strong bursts, a run of half a coarse window: the volume keeps to 2 a second, whatever the seed."""
    counts = [
        len(
            pgar(np.array([2.0]), 600.0, 1.0, np.random.default_rng(seed), modulator=Modulator(0.5, 0.9), until_s=300.0)
        )
        for seed in range(20)
    ]
    assert np.mean(counts) == pytest.approx(600, rel=0.03)
    assert np.std(counts) < 3 * np.sqrt(600)


@pytest.mark.parametrize("scale", ["superpose", "intensify", "compress"])
def test_a_scaled_profile_sends_the_rate_that_was_asked_for(scale: Any) -> None:
    load = LoadConfig(profile="azure-code", request_rate=5.14, scale=scale, duration_s=60.0)
    counts = [len(plan_scenario(Scenario(load=msgspec.structs.replace(load, seed=seed))).plan) for seed in range(8)]
    assert np.mean(counts) / 60 == pytest.approx(5.14, rel=0.08)


def test_a_recording_shorter_than_the_run_keeps_its_rate(tmp_path: Path) -> None:
    """1,000 requests in 100 s: ten a second of a run of a minute, and of one of an hour as long as it lasts."""
    text = "t,i,o\n" + "".join(f"{k / 10},5,6\n" for k in range(1000))
    trace = read_trace(written(tmp_path, text), columns=COLUMNS)
    profile = fit_profile(trace, "short", kind="exact")
    path = written(tmp_path, msgspec.json.encode(profile).decode(), "p.json")
    load = LoadConfig(profile=str(path), request_rate=20.0, duration_s=30.0)
    assert len(plan_scenario(Scenario(load=load)).plan) == pytest.approx(600, rel=0.01)
    for rate, duration_s in ((20.0, 3600.0), (0.01, 60.0)):
        load = LoadConfig(profile=str(path), request_rate=rate, duration_s=duration_s, scale="compress")
        plan = plan_scenario(Scenario(load=load)).plan
        assert plan.span_s <= duration_s
        assert len(plan) <= 1000
    load = LoadConfig(profile=str(path), request_rate=20.0, duration_s=3600.0)
    plan = plan_scenario(Scenario(load=load)).plan
    assert len(plan) / plan.span_s == pytest.approx(20.0, rel=0.02)


def test_hash_ids_of_other_blocks_are_told() -> None:
    """64 ids for 1,024 tokens name blocks of 16, not of 512."""
    from surgeproof.records import TracePoint
    from surgeproof.traces.draw import replay

    points = [TracePoint(at_ns=0, input_tokens=1024, output_tokens=1, row=1, hash_ids=tuple(range(64)))] * 3
    with pytest.raises(ConfigError, match="blocks of about 16 tokens"):
        replay(LoadConfig(), points)
    assert replay(LoadConfig(block_tokens=16), points).cached_tokens == [0, 1024, 1024]
