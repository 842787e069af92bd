"""The situations beside the scripted servers: each is played here, played elsewhere, or named as not built yet."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surgeproof.errors import TraceError
from surgeproof.loadgen.stream import StreamReader
from surgeproof.slo.distributions import distribution
from surgeproof.slo.summary import summarise
from surgeproof.strict_json import plain
from surgeproof.traces import arrivals
from surgeproof.traces.reader import read_trace
from tests.conftest import HERE
from tests.unit.loadgen.test_stream import DONE, FINISH, SSE, delta
from tests.unit.slo.columns import measured

VECTORS = {
    line["id"]: line["vector"]
    for line in map(json.loads, (HERE / "wire" / "wire_cases_vectors.jsonl").read_text("utf-8").splitlines())
}
ELSEWHERE = {
    "CN-02": "integration/loadgen/test_client.py::test_concurrency_has_no_hidden_cap",
    "CN-03": "integration/loadgen/test_client.py::test_connections_are_reused_and_their_cost_is_apart",
    "CN-04": "integration/loadgen/test_client.py::test_running_out_of_descriptors_is_ours_and_not_the_servers",
    "CN-05": "integration/loadgen/test_client.py::test_long_generations_are_no_error",
    "CN-06": "integration/loadgen/test_client.py::test_a_refused_first_address_is_left_for_good",
    "CK-01": "integration/loadgen/test_client.py::test_a_wall_clock_that_steps_moves_no_latency",
    "CK-03": "e2e/test_crash.py::test_a_starved_client_is_invalid_and_never_a_slow_server",
    "CK-05": "e2e/test_run.py::test_headless_locust_works_literally",
    "ST-06": "integration/storage/test_store.py::test_json_is_strict",
    "LS-01": "unit/loadgen/test_audit.py::test_a_rate_that_was_not_reached_voids_the_run",
    "LS-02": "unit/slo/test_verdict.py::test_response_counts_from_the_plan_and_service_from_the_send",
    "LS-03": "unit/loadgen/test_plan.py::test_equal_seeds_give_equal_plans_and_others_do_not",
    "RL-01": "e2e/test_run.py::test_ctrl_c_keeps_and_judges_what_was_measured",
    "RL-05": "e2e/test_run.py::test_headless_locust_works_literally",
    "TR-01": "unit/traces/test_reader.py::test_a_malformed_row_stops_with_its_place_and_can_be_skipped_and_counted",
    "TR-04": "unit/traces/test_reader.py::test_byte_order_mark_crlf_and_blank_lines_change_nothing",
    "PB-03": "integration/loadgen/test_client.py::test_the_request_is_one_write_with_our_headers_winning",
    "CK-02": "integration/loadgen/test_client.py::test_stamps_come_from_the_kernel_on_linux",
    "GT-01": "unit/gpu/test_nvml.py::test_utilisation_that_mig_does_not_support_is_null_and_not_zero",
    "GT-02": "unit/gpu/test_nvml.py::test_unified_memory_leaves_the_other_fields_alone",
    "GT-03": "unit/gpu/test_nvml.py::test_the_chosen_gpu_is_watched_by_index_or_uuid",
    "GT-04": "unit/gpu/test_nvml.py::test_a_missing_library_is_one_line",
    "GT-05": "unit/gpu/test_diagnosis.py::test_a_full_looking_gpu_is_told_from_a_full_one",
    "GT-06": "unit/gpu/test_nvml.py::test_availability_is_decided_by_gpu_and_field",
    "RL-03": "integration/loadgen/test_client.py::test_each_phase_has_a_timeout_that_names_itself",
}
NOT_BUILT_YET = {
    "LS-04": "pacing of users by the minute: users ask again at once",
    "LS-06": "a client that stood still sends all that is due; only its lag is tested",
    "RL-02": "the drain is tested by its timeout only",
    "RL-04": "a run in which every request failed is tested on its summary only",
    "TR-07": "prompts over the model's limit are told in a note of the plan; truncation is not offered",
    "GT-07": "NVML is asked by its library; the text of nvidia-smi is not read",
}  # fmt: skip
HERE_PLAYED = {
    "ST-01", "ST-02", "ST-03", "ST-04", "ST-05", "ST-07", "GP-01", "GP-02", "GP-03", "GP-04", "LS-05", "CK-04",
    "TR-02", "TR-03", "TR-05", "TR-06",
}  # fmt: skip


def test_every_situation_is_accounted_for() -> None:
    """None is forgotten, and every test that is named exists."""
    assert set(ELSEWHERE) | set(NOT_BUILT_YET) | HERE_PLAYED == set(VECTORS)
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (HERE / file).read_text("utf-8")


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = VECTORS[name]["expect"]
    return found


def test_one_sample_is_itself() -> None:
    figures = distribution(np.array(VECTORS["ST-01"]["samples_ms"]))
    plain_figures = plain(figures)
    assert {key: plain_figures[key] for key in expected("ST-01")} == expected("ST-01")


def test_samples_are_merged_and_never_their_percentiles() -> None:
    """Order statistics instead of interpolation: p90 is 10, a value that occurred, and far from 255."""
    figures = distribution(np.array([10.0] * 99 + [20.0] + [500.0] * 10))
    assert (figures.p50, figures.p90, figures.p95) == (10.0, 10.0, 500.0)


def test_no_sample_is_null() -> None:
    figures = plain(distribution(np.array([])))
    assert figures.pop("n") == 0
    assert set(figures.values()) == {None}


def test_single_tokens_have_no_time_per_token() -> None:
    readers = []
    for tokens, first_ms, last_ms in VECTORS["ST-04"]["requests"]:
        reader = StreamReader(None)
        reader.on_head(200, SSE, 0)
        reader.on_body(delta(content="a").encode(), first_ms * 1_000_000)
        if tokens > 1:
            reader.on_body(delta(content="b").encode(), last_ms * 1_000_000)
        usage = f'data: {{"choices":[],"usage":{{"completion_tokens":{tokens}}}}}\n\n'
        reader.on_body((FINISH + usage + DONE).encode(), last_ms * 1_000_000 + 1)
        readers.append(reader)
    found = [None if reader.tpot_ns() is None else reader.tpot_ns() / 1e6 for reader in readers]  # type: ignore[operator]
    assert found == expected("ST-04")["tpot_ms"]


def test_failures_stay_out_of_latency_and_in_the_error_rate() -> None:
    held = measured(
        [100.0] * 10, outcome=["ok"] * 8 + ["error:reset"] * 2, e2e_ms=[1000.0] * 8 + [10.0, 4910.0],
        output_tokens=[100] * 8 + [3, 3],
    )  # fmt: skip
    figures = summarise(held).total
    want = expected("ST-05")
    assert figures.latency_ms["e2e"].mean == pytest.approx(want["e2e_mean_ms"])
    assert figures.output_tokens_per_s == pytest.approx(want["output_tok_s"])
    assert 1 - figures.success_ratio == pytest.approx(want["error_rate"])


def test_a_runs_percentiles_are_of_all_its_samples() -> None:
    """Ten windows, one of them slow: p95 is the slow one's, p90 is not."""
    figures = distribution(np.array([100.0] * 900 + [900.0] * 100))
    assert (figures.p50, figures.p90, figures.p95) == (100.0, 100.0, expected("ST-07")["p95"])


def test_errors_are_misses() -> None:
    outcome = ["ok"] * 8 + ["error:reset"] * 2
    held = measured([100.0] * 6 + [900.0] * 2 + [100.0] * 2, outcome=outcome, e2e_ms=[500.0] * 10, every_ms=500.0)
    figures = summarise(held, {"ttft": 200.0}).total
    assert figures.attainment == pytest.approx(expected("GP-01")["attainment"])
    assert figures.goodput_per_s == pytest.approx(expected("GP-01")["goodput_rps"])


def test_objectives_hold_jointly() -> None:
    vector = VECTORS["GP-02"]
    ttft, tpot = ([float(value) for value in side] for side in zip(*vector["requests"], strict=True))
    limits = {"ttft": float(vector["limits"]["ttft_ms"]), "tpot": float(vector["limits"]["tpot_ms"])}
    figures = summarise(measured(ttft, tpot_ms=tpot), limits).total
    assert figures.attainment == expected("GP-02")["attainment"]


def test_without_objectives_nothing_is_shown() -> None:
    assert {"attainment", "goodput_per_s"}.isdisjoint(plain(summarise(measured([1.0])).total))


def test_what_cannot_be_told_is_neither_met_nor_missed() -> None:
    """Answers without a first token: no attainment, and they are counted."""
    figures = summarise(measured(VECTORS["GP-04"]["ttft_ms"]), {"ttft": 200.0}).total
    assert figures.attainment is expected("GP-04")["attainment"]
    assert figures.not_evaluable == expected("GP-04")["not_evaluable"]


def test_warm_up_is_cut_and_shown() -> None:
    vector = VECTORS["LS-05"]
    values = [float(vector["first10_ms"])] * 10 + [float(vector["rest_ms"])] * 90
    cut = summarise(measured(values, phase=["warmup"] * 10 + ["main"] * 90))
    whole = summarise(measured(values))
    assert cut.total.latency_ms["ttft"].mean == pytest.approx(expected("LS-05")["mean_with_warmup"])
    assert whole.total.latency_ms["ttft"].mean == pytest.approx(expected("LS-05")["mean_without"])


def test_events_of_one_read_share_its_time_however_long_parsing_takes() -> None:
    reader = StreamReader(None)
    reader.on_head(200, SSE, 0)
    padded = delta(content="b").replace('{"choices"', '{"pad": "' + "x" * 2_000_000 + '", "choices"')
    reader.on_body((delta(content="a") + padded + delta(content="c")).encode(), 77)
    assert len(set(reader.arrivals_at_ns)) == expected("CK-04")["distinct_arrival_times"]
    assert reader.token_events == VECTORS["CK-04"]["events_in_read"]


def trace_of(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps({"input_length": 8, "output_length": 4} | row) for row in rows))
    return path


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    trace = read_trace(trace_of(tmp_path, [{"timestamp": at} for at in VECTORS["TR-02"]["timestamps_ms"]]))
    assert [point.row for point in trace.points] == expected("TR-02")["order"]
    assert trace.out_of_order == expected("TR-02")["out_of_order"]


def test_times_that_cannot_be_waited_for_are_rejected(tmp_path: Path) -> None:
    times = [float(at) if isinstance(at, str) else at for at in VECTORS["TR-03"]["timestamps_ms"]]
    path = trace_of(tmp_path, [{"timestamp": at} for at in times])
    with pytest.raises(TraceError, match="row 2"):
        read_trace(path)
    trace = read_trace(path, skip_invalid=True)
    assert [int(example.split()[1].rstrip(":")) for example in trace.examples] == expected("TR-03")["rejected_lines"]


def test_zero_output_is_skipped(tmp_path: Path) -> None:
    lengths = VECTORS["TR-05"]["output_lengths"]
    trace = read_trace(trace_of(tmp_path, [{"timestamp": i, "output_length": n} for i, n in enumerate(lengths)]))
    assert len(trace.points) == expected("TR-05")["sent"]
    assert sum(trace.dropped.values()) == expected("TR-05")["skipped"]


def test_the_unit_of_a_format_is_its_own(tmp_path: Path) -> None:
    """An hour in milliseconds is an hour; a plan of more than a day asks for confirmation."""
    trace = read_trace(trace_of(tmp_path, [{"timestamp": 0}, {"timestamp": VECTORS["TR-06"]["span"]}]))
    assert trace.points[-1].at_ns / 1e9 == expected("TR-06")["as_ms_s"]
    assert arrivals.constant(1.0, count=2).tolist() == [0, 1_000_000_000]
