"""Logs of gateways and servers, tables of any form, large files, and the way back to other tools."""

import bz2
import gzip
import json
import lzma
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from surgeproof.errors import TraceError
from surgeproof.traces.describe import describe_file
from surgeproof.traces.mooncake_export import mooncake_lines
from surgeproof.traces.reader import Trace, read_trace

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def written(tmp_path: Path, *lines: Any, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def told(trace: Trace) -> list[tuple[float, int, int, str | None]]:
    return [(p.at_ns / 1e9, p.input_tokens, p.output_tokens, p.session) for p in trace.points]


def test_litellm_calls_are_read_and_others_left_out_by_name(tmp_path: Path) -> None:
    call = {"call_type": "acompletion", "status": "success", "prompt_tokens": 10, "completion_tokens": 5}
    path = written(
        tmp_path,
        call | {"startTime": 1753780607.25, "trace_id": "t1"},
        call | {"startTime": 1753780608.5, "call_type": "anthropic_messages"},
        call | {"startTime": "2025-07-29T09:16:49.750000Z"},
        call | {"startTime": 1753780610.0, "status": "failure", "completion_tokens": 0},
        call | {"startTime": 1753780611.0, "call_type": "aembedding"},
    )
    trace = read_trace(path)
    assert trace.format_name == "litellm"
    assert told(trace) == [(0.0, 10, 5, "t1"), (1.25, 10, 5, None), (2.5, 10, 5, None)]
    assert trace.dropped == {"failed_request": 1, "not_a_generation": 1}


def span(start_ns: int, **attributes: Any) -> dict[str, Any]:
    kinds = {int: "intValue", str: "stringValue"}
    return {
        "name": "chat",
        "startTimeUnixNano": str(start_ns),
        "attributes": [
            {"key": key.replace("__", "."), "value": {kinds[type(value)]: str(value)}}
            for key, value in attributes.items()
        ],
    }


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


SPANS = (
    span(1_000_000_000, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=12,
         gen_ai__usage__output_tokens=7, gen_ai__conversation__id="c"),
    span(1_500_000_000, gen_ai__usage__prompt_tokens=3, gen_ai__usage__completion_tokens=2),
    span(1_600_000_000, http__route="/v1/chat/completions"),
    span(1_700_000_000, gen_ai__operation__name="embeddings", gen_ai__usage__input_tokens=3),
    span(1_800_000_000, gen_ai__operation__name="chat"),
)  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_opentelemetry_spans_are_read_from_lines_and_from_a_document(indent: int | None, tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(otlp(*SPANS), indent=indent))
    trace = read_trace(path, "auto" if indent is None else "otel")
    assert told(trace) == [(0.0, 12, 7, "c"), (0.5, 3, 2, None)]
    assert trace.dropped == {"not_a_generation": 2, "no_token_usage": 1}


def test_evalscope_bodies_are_measured_and_not_kept(tmp_path: Path) -> None:
    """Forty characters are ten tokens; the answer is as long as it was, or else as it might have been."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 64}
    path = written(
        tmp_path,
        {"timestamp": 100.0, "body": body, "completion_tokens": 9, "request_id": "a", "headers": {}},
        {"timestamp": "1970-01-01T00:01:41.5Z", "body": json.dumps(body)},
        {"timestamp": 102.0, "body": {"prompt": "x"}},
    )
    trace = read_trace(path, skip_invalid=True)
    assert trace.format_name == "evalscope"
    assert told(trace) == [(0.0, 10, 9, None), (1.5, 10, 64, None)]
    assert trace.examples == ["row 3: neither completion_tokens nor max_tokens gives the answer's length"]


def test_vllm_request_lines_are_read_from_a_server_log(tmp_path: Path) -> None:
    sampling = "SamplingParams(n=1, temperature=0.7, max_tokens=100, min_tokens=0)"
    path = written(
        tmp_path,
        "(APIServer pid=9) INFO 02-13 11:33:33 [logger.py:49] Received request chatcmpl-a: prompt: 'abcd efgh', "
        f"params: {sampling}, prompt_token_ids: [1, 2, 3], prompt_embeds shape: None, lora_request: None.",
        "(APIServer pid=9) INFO 02-13 11:33:33 [async_llm.py:382] Added request chatcmpl-a.",
        '(APIServer pid=9) INFO:     10.80.23.18:51408 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        f"INFO 02-13 11:33:35 [logger.py:49] Received request b: prompt: 'abcd efgh', params: {sampling}.",
        f"INFO 02-13 11:33:36 [logger.py:49] Received request c: params: {sampling}, lora_request: None.",
    )
    trace = read_trace(path)
    assert trace.format_name == "vllm"
    assert told(trace) == [(0.0, 3, 100, None), (2.0, 3, 100, None)]
    assert trace.dropped == {"not_a_request_line": 2, "no_prompt_length": 1}


def test_a_vllm_log_goes_on_over_new_year(tmp_path: Path) -> None:
    request = "Received request a: prompt: 'abcd', params: SamplingParams(max_tokens=7)."
    path = written(
        tmp_path, f"INFO 12-31 23:59:58 [logger.py:49] {request}", f"INFO 01-01 00:00:03 [logger.py:49] {request}"
    )
    assert [one[0] for one in told(read_trace(path))] == [0.0, 5.0]


def test_any_table_is_read_by_a_column_map(tmp_path: Path) -> None:
    csv = written(tmp_path, "when,in,out,who", "1500,3,4,a", "2750.5,5,6,", name="t.csv")
    assert told(read_trace(csv, columns="at=when,input=in,output=out,session=who,unit=ms")) == [
        (0.0, 3, 4, "a"),
        (1.2505, 5, 6, None),
    ]
    nested = written(
        tmp_path,
        {"time": "2024-03-31T01:59:59", "usage": {"in": 1, "out": 2}},
        {"time": "2024-03-31T03:00:00", "usage": {"in": 1, "out": 2}},
    )
    # In Berlin that night the clock jumps from two to three: the two moments are one second apart.
    columns = "at=time,input=usage.in,output=usage.out,zone=Europe/Berlin"
    assert [row[0] for row in told(read_trace(nested, columns=columns))] == [0.0, 1.0]


def test_parquet_is_read_like_any_table(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "t.parquet"
    frame = pd.DataFrame(
        {"t": pd.to_datetime(["2024-01-01T00:00:00.25", "2024-01-01"], format="ISO8601"), "i": [3, 5], "o": [1, 2]}
    )
    frame.to_parquet(path)
    trace = read_trace(path, columns="at=t,input=i,output=o")
    assert told(trace) == [(0.0, 5, 2, None), (0.25, 3, 1, None)]
    assert trace.out_of_order == 1
    streamed = describe_file(path, columns="at=t,input=i,output=o", large_bytes=0)
    assert (streamed.rows, streamed.out_of_order) == (2, 1)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("at=a,input=b", "missing output"),
        ("at=a,input=b,output=c,colour=d", "unknown colour"),
        ("at=a,input=b,output=c,unit=weeks", "unit 'weeks'"),
    ],
)
def test_a_wrong_column_map_says_what_is_wrong(columns: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=problem):
        read_trace(written(tmp_path, "a,b,c", "1,2,3"), columns=columns)


def test_a_missing_column_lists_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="row 2: no tokens; the row has a, b, c"):
        read_trace(written(tmp_path, "a,b,c", "1,2,3"), columns="at=a,input=tokens,output=c")


def test_repeated_rows_and_blank_lines_are_counted_and_kept(tmp_path: Path) -> None:
    row = {"at_s": 1.0, "input_tokens": 5, "output_tokens": 6}
    trace = read_trace(written(tmp_path, row, "", row, "   ", row | {"at_s": 2.0}))
    assert (len(trace.points), trace.repeated, trace.blank_lines) == (3, 1, 2)


def test_export_is_read_back_as_the_same_trace(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [0, 7], "session_id": "s"},
        {"timestamp": 1250, "input_length": 9, "output_length": 4},
    ]
    trace = read_trace(written(tmp_path, *rows))
    lines = list(mooncake_lines(trace.points))
    assert [json.loads(line) for line in lines] == rows
    again = read_trace(written(tmp_path, *lines, name="again"))
    assert again.points == trace.points


def test_a_streamed_table_gives_the_figures_of_one_read_whole(tmp_path: Path, real_trace: Any) -> None:
    path = real_trace("AzureLLMInferenceTrace_conv.csv")
    whole, streamed = describe_file(path), describe_file(path, large_bytes=0)
    for key in ("rows", "span_s", "dispersion", "input_tokens", "output_tokens", "clock_grid_s", "out_of_order"):
        assert getattr(streamed, key) == getattr(whole, key), key
    assert streamed.gap_cv == pytest.approx(whole.gap_cv, rel=1e-6)


def test_a_streamed_table_counts_what_it_leaves_out(tmp_path: Path) -> None:
    lines = ["t,i,o", "0,5,6", "1.5,0,6", "2,5,0", "", "x,5,6", "3,5,NaN", "4,7,8"]
    path = written(tmp_path, *lines)
    columns = "at=t,input=i,output=o"
    with pytest.raises(TraceError, match="row 6: cannot read x, 5"):
        describe_file(path, columns=columns, large_bytes=0)
    facts = describe_file(path, columns=columns, skip_invalid=True, large_bytes=0)
    assert facts.dropped == {"malformed": 2, "zero_output_tokens": 1, "zero_input_tokens": 1}
    assert (facts.rows, facts.blank_lines, facts.span_s) == (2, 1, 4.0)
    read = describe_file(path, columns=columns, skip_invalid=True)
    for key in ("rows", "dropped", "blank_lines", "input_tokens"):
        assert getattr(facts, key) == getattr(read, key), key


def test_chunks_do_not_change_the_figures() -> None:
    from surgeproof.traces.streaming import StreamedInspection

    rng = np.random.default_rng(0)
    at_ns = np.cumsum(rng.integers(0, 10**9, 5000))
    lengths = rng.integers(1, 900, (2, 5000))
    whole, parts = StreamedInspection(), StreamedInspection()
    whole.add(at_ns, *lengths)
    for piece in np.array_split(np.arange(5000), 7):
        parts.add(at_ns[piece], lengths[0][piece], lengths[1][piece])
    expected, found = whole.result("x", "y"), parts.result("x", "y")
    assert found.gap_cv == pytest.approx(expected.gap_cv)
    assert found == msgspec.structs.replace(expected, gap_cv=found.gap_cv)


def chat(number: int, parent: int, at_s: float, **more: Any) -> dict[str, Any]:
    lengths = {"input_length": 40, "output_length": 9, "turn": 1, "hash_ids": [1, 2, 3]}
    return {"chat_id": number, "parent_chat_id": parent, "timestamp": at_s} | lengths | more


def test_bailian_rows_are_seconds_and_turns_follow_their_chats(tmp_path: Path) -> None:
    rows = [chat(7, -1, 0.0), chat(8, 7, 0.75), chat(9, -1, 1.0), chat(10, 8, 2.5), chat(11, 999, 3.0)]
    trace = read_trace(written(tmp_path, *rows))
    assert trace.format_name == "bailian"
    assert told(trace) == [
        (0.0, 40, 9, "7"), (0.75, 40, 9, "7"), (1.0, 40, 9, "9"), (2.5, 40, 9, "7"), (3.0, 40, 9, "11"),
    ]  # fmt: skip
    assert trace.block_tokens == 16


def test_a_delayed_turn_comes_after_the_turn_before_and_a_prompt_is_measured(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 100, "input_length": 40, "output_length": 9},
        {"session_id": "b", "timestamp": 200, "text_input": "x" * 40, "output_length": 9},
        {"session_id": "a", "delay": 500, "input_length": 20, "output_length": 9},
        {"session_id": "a", "timestamp": None, "delay": 250.5, "input_length": 30, "output_length": 9},
    ]
    trace = read_trace(written(tmp_path, *rows))
    assert told(trace) == [(0.0, 40, 9, "a"), (0.1, 10, 9, "b"), (0.5, 20, 9, "a"), (0.7505, 30, 9, "a")]
    assert [point.think_s for point in trace.points] == [None, None, 0.5, 0.2505]
    assert trace.delayed == 2
    with pytest.raises(TraceError, match=r"row 2: a delay, but no turn of its session_id before it"):
        read_trace(written(tmp_path, rows[0], {"delay": 5, "input_length": 2, "output_length": 1}))


@pytest.mark.parametrize("unit", [None, "s", "ms"])
def test_times_that_may_be_seconds_are_asked_for_their_unit(unit: str | None, tmp_path: Path) -> None:
    """45 s of requests with fractions, in a field that others fill with milliseconds."""
    rows = [{"timestamp": number * 0.75, "input_length": 4, "output_length": 2} for number in range(61)]
    path = written(tmp_path, *rows)
    if unit is None:
        with pytest.raises(TraceError, match="fractions: name their unit"):
            read_trace(path)
        return
    assert told(read_trace(path, unit=unit))[-1][0] == pytest.approx({"s": 45.0, "ms": 0.045}[unit])


def test_whole_numbers_that_may_be_seconds_are_read_as_the_format_says_with_a_note(tmp_path: Path) -> None:
    rows = [{"timestamp": number, "input_length": 4, "output_length": 2} for number in range(60)]
    trace = read_trace(written(tmp_path, *rows))
    assert trace.points[-1].at_ns == 59_000_000
    assert "60 requests in 0.059 s if its times are milliseconds" in str(trace.unit_note)
    slow = [row | {"timestamp": row["timestamp"] * 100.5} for row in rows]
    assert read_trace(written(tmp_path, *slow)).unit_note is None


def test_a_unit_is_refused_where_the_format_has_one(tmp_path: Path) -> None:
    path = written(tmp_path, {"at_s": 0, "input_tokens": 1, "output_tokens": 1})
    with pytest.raises(TraceError, match="the times of format surgeproof have a fixed unit"):
        read_trace(path, unit="ms")


PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_files_are_read_whatever_their_name(packer: str, tmp_path: Path) -> None:
    text = "t,i,o\n" + "".join(f"{number},10,5\n" for number in range(300))
    path = tmp_path / "trace.csv"
    path.write_bytes(PACKERS[packer](text.encode()))
    columns = "at=t,input=i,output=o"
    assert told(read_trace(path, columns=columns))[-1] == (299.0, 10, 5, None)
    assert describe_file(path, columns=columns, large_bytes=0).rows == 300
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TraceError, match="cut off or damaged"):
        read_trace(path, columns=columns)


def test_an_archive_and_utf_16_are_told(tmp_path: Path) -> None:
    row = '{"at_s": 0, "input_tokens": 1, "output_tokens": 1}'
    (tmp_path / "wide").write_bytes(row.encode("utf-16"))
    assert told(read_trace(tmp_path / "wide")) == [(0.0, 1, 1, None)]
    with zipfile.ZipFile(tmp_path / "trace.zip", "w") as archive:
        archive.writestr("trace.jsonl", row)
    with pytest.raises(TraceError, match="is a zip archive: unpack it first"):
        read_trace(tmp_path / "trace.zip")


def test_seconds_that_may_be_milliseconds_are_read_as_the_format_says_with_a_note(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, *(chat(number, -1, number * 500) for number in range(30))))
    assert trace.points[-1].at_ns == 14_500_000_000_000
    assert "30 requests in 1.45e+04 s if its times are seconds" in str(trace.unit_note)
    slow = read_trace(written(tmp_path, *(chat(number, -1, number * 50) for number in range(30))))
    assert slow.unit_note is None


def test_delays_that_overlap_are_not_out_of_order(tmp_path: Path) -> None:
    lengths = {"input_length": 4, "output_length": 2}
    rows = [
        {"session_id": name, "timestamp": start} | lengths
        if turn == 0
        else {"session_id": name, "delay": 500} | lengths
        for start, name in ((0, "a"), (900, "b"), (1800, "c"))
        for turn in range(3)
    ]
    trace = read_trace(written(tmp_path, *rows))
    assert (trace.out_of_order, trace.delayed) == (0, 6)
