"""Trace files: formats, rows that are wrong, clocks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surgeproof.errors import TraceError
from surgeproof.traces.clock_grid import dequantise, detect_grid_ns
from surgeproof.traces.formats.rows import moment_ns
from surgeproof.traces.inspection import dispersion, inspect_trace
from surgeproof.traces.reader import read_trace


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def mooncake(*rows: Any) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def row(at_ms: Any, inputs: Any = 8, outputs: Any = 4) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": inputs, "output_length": outputs}


def test_azure_times_keep_all_their_digits(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109"
    )
    points = read_trace(written(tmp_path, text)).points
    assert [(p.at_ns, p.input_tokens, p.output_tokens, p.row) for p in points] == [
        (0, 374, 44, 2),
        (4_314_579_000, 396, 109, 3),
    ]


def test_azure_times_may_carry_an_offset() -> None:
    """The 2024 files do."""
    assert moment_ns("t", "2024-05-10 02:00:00.5+02:00") == moment_ns("t", "2024-05-10 00:00:00.500")
    assert moment_ns("t", "2024-05-10 00:00:00") == 1_715_299_200_000_000_000


def test_burstgpt_is_read_in_both_forms_and_failed_rows_are_dropped_by_name(tmp_path: Path) -> None:
    six = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n50,GPT-4,0,3,3,API log\n"
    )
    trace = read_trace(written(tmp_path, six))
    assert [(p.at_ns, p.input_tokens) for p in trace.points] == [(0, 472)]
    assert trace.dropped == {"zero_output_tokens": 1, "zero_input_tokens": 1}
    eight = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,abc,43,GPT-4,906,446,1352,Conversation log\n19440161.5,,2,ChatGPT,36,29,65,API log\n"
    )
    trace = read_trace(written(tmp_path, eight))
    assert [(p.at_ns, p.output_tokens) for p in trace.points] == [(0, 446), (51_500_000_000, 29)]


def test_our_own_format_carries_classes(tmp_path: Path) -> None:
    text = (
        '{"at_s": 0, "input_tokens": 1, "output_tokens": 2, "request_class": "P2"}\n'
        '{"at_s": 0.25, "input_tokens": 3, "output_tokens": 4}'
    )
    points = read_trace(written(tmp_path, text)).points
    assert [(p.at_ns, p.request_class) for p in points] == [(0, "P2"), (250_000_000, None)]


def test_mooncake_hash_ids_are_kept(tmp_path: Path) -> None:
    text = mooncake(row(0) | {"hash_ids": [0, 1]}, row(27_482))
    points = read_trace(written(tmp_path, text)).points
    assert points[0].hash_ids == (0, 1)
    assert points[1].at_ns == 27_482_000_000


def test_a_malformed_row_stops_with_its_place_and_can_be_skipped_and_counted(tmp_path: Path) -> None:
    """A published trace had such a line."""
    bad = '{"timestamp": 40, "input_length": 900, "output_length":27 61}'
    path = written(tmp_path, mooncake(row(0), row(20), bad, row(60), row(80)))
    with pytest.raises(TraceError, match=r"row 3: not valid JSON.*--skip-invalid"):
        read_trace(path)
    trace = read_trace(path, skip_invalid=True)
    assert len(trace.points) == 4
    assert trace.dropped == {"malformed": 1}
    assert trace.examples[0].startswith("row 3:")


def test_rows_out_of_order_are_sorted_stably_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, mooncake(*(row(at) for at in (0, 50, 30, 30, 90)))))
    assert [point.row for point in trace.points] == [1, 3, 4, 2, 5]
    assert trace.out_of_order == 1


@pytest.mark.parametrize("at", [-5, float("nan"), float("inf"), "x", None])
def test_a_time_that_cannot_be_waited_for_is_rejected_with_its_line(tmp_path: Path, at: Any) -> None:
    path = written(tmp_path, mooncake(row(0), row(at)))
    with pytest.raises(TraceError, match="row 2: timestamp is"):
        read_trace(path)


def test_byte_order_mark_crlf_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    """Line numbers are those of the file."""
    lines = [json.dumps(row(0)), "", json.dumps(row(5)), json.dumps(row(9)), "", ""]
    trace = read_trace(written(tmp_path, b"\xef\xbb\xbf" + "\r\n".join(lines).encode()))
    assert [point.row for point in trace.points] == [1, 3, 4]
    assert trace.dropped == {}


def test_a_missing_field_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    text = json.dumps({"timestamp": 0, "input_length": 1, "output_tokens": 4})
    with pytest.raises(TraceError, match=r"no field 'output_length'; the row has input_length, output_tokens"):
        read_trace(written(tmp_path, text))


def test_zero_output_is_skipped_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, mooncake(row(0, outputs=4), row(1, outputs=0), row(2, outputs=7))))
    assert [point.output_tokens for point in trace.points] == [4, 7]
    assert trace.dropped == {"zero_output_tokens": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b,c\n1,2,3", "no known format"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no usable row"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1.5,2", "row 2: ContextTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46", "row 2: 1 columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2", "row 2: TIMESTAMP"),
    ],
)
def test_a_file_that_is_no_trace_is_told_in_one_sentence(tmp_path: Path, text: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="unknown trace format"):
        read_trace(written(tmp_path, mooncake(row(0))), "nonsense")


def test_a_clock_grid_is_found_and_undone() -> None:
    """Times rounded to 3 s are found; spreading them restores Poisson's dispersion of 1."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.3, 12_000)) * 1e9
    rounded = (times // 3e9 * 3e9).astype(np.int64)
    assert detect_grid_ns(rounded) == 3_000_000_000
    spread = np.sort(dequantise(rounded, 3_000_000_000, rng)) / 1e9
    before, after = dispersion(rounded / 1e9, 1.0), dispersion(spread, 1.0)
    assert before is not None
    assert after is not None
    assert before > 5
    assert after == pytest.approx(1.0, abs=0.06)


def test_times_with_few_digits_are_no_grid() -> None:
    """Milliseconds with hardly a repeat are left alone."""
    times = np.unique(np.random.default_rng(1).integers(0, 10**7, 2000)) * 1_000_000
    assert detect_grid_ns(times) is None


def test_dispersion_of_regular_and_clustered_arrivals() -> None:
    assert dispersion(np.arange(0, 100, 0.1) + 0.05, 1.0) == pytest.approx(0.0, abs=1e-9)
    clustered = np.repeat(np.arange(0, 200, 2.0), 20)
    counts = np.array([20, 0] * 99)
    assert dispersion(clustered, 1.0) == pytest.approx(counts.var(ddof=1) / counts.mean(), rel=0.02)
    assert dispersion(np.array([0.0, 1.5]), 1.0) is None


FIGURES = {
    # rows, span, CV, dispersion at 1/10/60 s, grid: from the table beside the traces
    "AzureLLMInferenceTrace_conv.csv": (19_366, 3_502, 1.09, 1.39, 3.87, 16.4, None),
    "AzureLLMInferenceTrace_code.csv": (8_819, 3_436, 13.15, 13.2, 71.9, 167, None),
    "mooncake_conversation_trace.jsonl": (12_031, 3_539, 1.01, 1.05, 1.51, 2.86, 3.0),
}


@pytest.mark.parametrize("name", FIGURES)
def test_public_traces_have_the_published_figures(name: str, real_trace: Any) -> None:
    rows, span, cv, one, ten, sixty, grid = FIGURES[name]
    facts = inspect_trace(read_trace(real_trace(name)))
    assert facts.rows == rows
    assert facts.span_s == pytest.approx(span, abs=1)
    assert facts.gap_cv == pytest.approx(cv, rel=0.01)
    # Undoing a grid draws random times, so dispersion is that of one draw.
    tolerance = 0.06 if grid else 0.01
    assert facts.dispersion["1s"] == pytest.approx(one, rel=tolerance)
    assert facts.dispersion["10s"] == pytest.approx(ten, rel=tolerance)
    assert facts.dispersion["60s"] == pytest.approx(sixty, rel=tolerance)
    assert facts.clock_grid_s == grid


def test_a_grid_that_is_kept_looks_like_a_burst(real_trace: Any) -> None:
    """The collector's artefact: dispersion 7.9 at 1 s, gap CV 3.03."""
    facts = inspect_trace(read_trace(real_trace("mooncake_conversation_trace.jsonl"), undo_grid=False))
    assert facts.dispersion["1s"] == pytest.approx(7.90, rel=0.01)
    assert facts.gap_cv == pytest.approx(3.03, rel=0.01)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (row(1e30), "not a time since the start"),
        (row(0, inputs=2**31), "not a count of tokens"),
        (row(0, outputs=True), "not a number"),
        (row(0) | {"hash_ids": ["a"]}, "hash_ids"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_values_beyond_all_bounds_are_malformed_rows(tmp_path: Path, wrong: Any, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_trace(written(tmp_path, mooncake(row(0), wrong)), "mooncake")
