"""The estimator against counters of a real H200, and shapes against published parameter counts."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares

from surgeproof.errors import UsageError
from surgeproof.gpu.datasheets import GPUS, gpu_named
from surgeproof.gpu.model_shape import shape_from_config
from surgeproof.gpu.sm_estimate import Estimate, Fit, decode_work, estimate, estimate_steps, prefill_work

DATA = Path(__file__).with_name("data")
H200 = GPUS["H200"]


def measured() -> list[dict[str, Any]]:
    """Rows whose counters saw the steps alone: with pauses, the first file's also saw the warm-up."""
    rows = []
    for name in ("h200_step_counters.json", "h200_step_counters_mixed.json"):
        found = json.loads((DATA / name).read_text())["rows"]
        rows += [row for row in found if row["duty"] == 1 or "mixed" in name]
    return rows


def errors(rows: list[dict[str, Any]], fit: Fit | None = None) -> np.ndarray:
    """Points by which SM busy, DRAM and tensor share are off; shape (rows, 3)."""
    found = estimate_steps(rows, H200, fit)
    truth = [[row["counters_pct"][name] for name in ("sm", "dram", "tensor")] for row in rows]
    return np.array([[e.sm_pct, e.dram_pct, e.tensor_pct] for e in found]) - np.array(truth)


def fitted(rows: list[dict[str, Any]]) -> Fit:
    """The numbers that other rows alone give."""

    def fit_of(numbers: Iterable[float]) -> Fit:
        names = (
            "bandwidth_power", "compute_power", "idle_loss", "activation_factor", "tensor_compute", "tensor_attention",
        )  # fmt: skip
        return Fit(**dict(zip(names, map(float, numbers), strict=True)))

    found = least_squares(
        lambda numbers: (errors(rows, fit_of(numbers)) * (1, 1, 0.2)).ravel(),
        [1.1, 0.72, 0.08, 4.0, 1.0, 0.6], loss="soft_l1", f_scale=2, diff_step=1e-3,
        bounds=([0.8, 0.4, 0, 0, 0.5, 0], [1.6, 1.3, 0.3, 12, 1.6, 2]),
    )  # fmt: skip
    return fit_of(found.x)


def test_shares_are_within_points_of_the_counters_and_far_nearer_than_nvml() -> None:
    rows = measured()
    off = np.abs(errors(rows)).mean(axis=0)
    nvml = np.mean([abs(row["nvml_gpu"] - row["counters_pct"]["sm"]) for row in rows])
    assert off[0] < 2.5
    assert off[1] < 1.5
    assert nvml > 10 * off[0]


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["llama8b", "dense1.5b"])
def test_a_model_left_out_of_the_fit_is_estimated_as_well(left_out: str) -> None:
    """Under 4 points of SM busy and 3 of DRAM share, by model and not by row."""
    rows = measured()
    fit = fitted([row for row in rows if row["model"] != left_out])
    off = np.abs(errors([row for row in rows if row["model"] == left_out], fit)).mean(axis=0)
    assert off[0] < 4.0
    assert off[1] < 3.0


@pytest.mark.slow
def test_the_shipped_numbers_are_those_of_the_fit() -> None:
    shipped, found = Fit(), fitted(measured())
    for name in ("bandwidth_power", "compute_power", "activation_factor", "tensor_attention"):
        assert getattr(shipped, name) == pytest.approx(getattr(found, name), rel=0.05), name


def test_intervals_cover_as_they_say() -> None:
    rows = measured()
    found = estimate_steps(rows, H200)
    sm = [e.sm_low <= row["counters_pct"]["sm"] <= e.sm_high for e, row in zip(found, rows, strict=True)]
    dram = [e.dram_low <= row["counters_pct"]["dram"] <= e.dram_high for e, row in zip(found, rows, strict=True)]
    assert 0.85 <= np.mean(sm) <= 0.97
    assert 0.85 <= np.mean(dram) <= 0.99


def test_the_bytes_of_a_step_are_the_dram_counter() -> None:
    """61.1 % estimated from first principles, 60.8 % counted: one sequence of 512 tokens on an 8B model."""
    row = next(r for r in measured() if r["tag"] == "decode_graph" and r["batch"] == 1 and r["context"] == 512)
    (found,) = estimate_steps([row], H200)
    assert found.dram_pct == pytest.approx(61.1, abs=0.3)
    assert found.limit == "bandwidth"


LLAMA_8B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_parameters_follow_from_the_configuration() -> None:
    """Llama 3 8B has 8.03 billion, 0.525 of them input embeddings; its cache takes 128 KiB a token."""
    shape = shape_from_config(LLAMA_8B)
    assert shape.dense_params == pytest.approx(8.03e9 - 128256 * 4096, rel=0.001)
    assert shape.kv_bytes_per_token == 131_072
    assert shape_from_config(LLAMA_8B, "int4", "fp8").weight_bytes == 0.5
    assert shape_from_config({"text_config": LLAMA_8B}) == shape


def test_a_mixture_of_experts_reads_what_its_batch_touches() -> None:
    """Mixtral 8x7B: 46.7 billion in all, 12.9 active; one token reads 2 of 8 experts, a large batch all."""
    shape = shape_from_config(LLAMA_8B | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2})
    embeddings = 32000 * 4096
    assert shape.dense_params + 8 * shape.expert_params + embeddings == pytest.approx(46.7e9, rel=0.005)
    assert shape.active_params + embeddings == pytest.approx(12.9e9, rel=0.01)
    one, many = shape.weight_bytes_read(1), shape.weight_bytes_read(500)
    assert one == pytest.approx(2 * shape.active_params)
    assert many == pytest.approx(2 * (shape.dense_params + 8 * shape.expert_params), rel=1e-6)


def share(**changes: Any) -> Estimate:
    settings = {"wall_s": 1.0, "busy_share": 1.0} | changes
    shape = shape_from_config(LLAMA_8B)
    return estimate(decode_work(shape, 32, 1024).times(100), H200, **settings)


def test_estimates_go_the_way_that_loads_go() -> None:
    shape = shape_from_config(LLAMA_8B)
    assert share().sm_pct < estimate(decode_work(shape, 32, 4096).times(100), H200, 1.0, 1.0).sm_pct
    assert share(gpus=2).dram_pct == pytest.approx(share().dram_pct / 2, abs=0.01)
    assert estimate(prefill_work(shape, 8192).times(4), H200, 1.0, 1.0).limit == "compute"
    idle = share(busy_share=0.5)
    assert idle.limit == "load"
    assert idle.dram_pct == pytest.approx(share().dram_pct, abs=0.01)
    assert share().sm_low <= share().sm_pct <= share().sm_high


@pytest.mark.parametrize(
    ("name", "key"),
    [("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
     ("NVIDIA H100 PCIe", "H100-PCIe"), ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA L40S", "L40S"), ("l4", "L4"),
     ("NVIDIA A10", "A10"), ("NVIDIA B200", "B200")],
)  # fmt: skip
def test_data_sheets_are_found_by_nvmls_names(name: str, key: str) -> None:
    assert gpu_named(name) is GPUS[key]


def test_what_is_unknown_is_said() -> None:
    with pytest.raises(UsageError, match="no data sheet of GPU 'TPU'; known are"):
        gpu_named("TPU")
    with pytest.raises(UsageError, match="lacks 'hidden_size'"):
        shape_from_config({})
    with pytest.raises(UsageError, match="row 0"):
        estimate_steps([{"tag": "decode"}], H200)
