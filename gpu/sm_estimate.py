"""What a GPU's SMs, tensor cores and memory did, from what was asked of the model. Pure.

    w = bytes of weights and activations / (busy time x peak bandwidth)
    k = bytes of the KV cache / (busy time x peak bandwidth)
    f = operations / (busy time x peak rate)
    SM busy = busy x (1 - (1 - W w^a) (1 - K k^b) (1 - F f^c)) x (1 - g (1 - busy))

Weights are read once a pass, the cache for each sequence; operations are two a parameter and token, and
attention. Kernels that read the cache keep SMs busier for each byte than those that read weights, so the two
have curves of their own. The numbers were fitted on step counters of an H200 with nine dense models. Intervals
are 90 %: half widths come from models left out of the fit. NVML's `utilization.gpu` is the share of time in
which any kernel ran, and no part of this.
"""

import msgspec

from surgeproof.errors import UsageError
from surgeproof.gpu.datasheets import Gpu
from surgeproof.gpu.model_shape import ModelShape
from surgeproof.strict_json import JsonObject

FITTED_PARAMS = (0.4e9, 35e9)
FITTED_HIDDEN = (1024, 5120)
FITTED_GPU = "H200"
_BEST_TENSOR = 0.84
"""Share of the peak rate at which the tensor pipe's counter reads full."""


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted numbers; half widths of the intervals are shares at a busy share of 1.

    `decode_scale` and `prefill_scale` are how much more work an engine does than a lean one would; a calibration
    finds them. A stored fit of another curve has other fields, and is refused when it is read.
    """

    weight_factor: float = 1.025
    weight_power: float = 1.193
    cache_factor: float = 1.13
    cache_power: float = 0.624
    compute_factor: float = 1.379
    compute_power: float = 0.736
    idle_loss: float = 0.108
    activation_factor: float = 2.754
    tensor_compute: float = 0.995
    tensor_attention: float = 0.587
    sm_half: float = 0.0585
    dram_half: float = 0.0205
    tensor_half: float = 0.106
    decode_scale: float = 1.0
    prefill_scale: float = 1.0


class Work(msgspec.Struct, frozen=True):
    """What a stretch of time asked of a GPU: bytes and operations in all."""

    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    activation_bytes: float = 0.0
    flops: float = 0.0
    attention_flops: float = 0.0

    def times(self, count: float) -> "Work":
        """This work, repeated."""
        return Work(*(getattr(self, name) * count for name in self.__struct_fields__))

    def plus(self, other: "Work") -> "Work":
        """Both together."""
        return Work(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Estimate(msgspec.Struct, frozen=True):
    """Shares in per cent of the wall time, with 90 % intervals; `limit` is the limiting resource."""

    sm_pct: float
    sm_low: float
    sm_high: float
    dram_pct: float
    dram_low: float
    dram_high: float
    tensor_pct: float
    tensor_low: float
    tensor_high: float
    limit: str


def decode_work(shape: ModelShape, batch: float, context: float) -> Work:
    """One step: a token for each of `batch` sequences with `context` tokens in the cache."""
    return Work(
        weight_bytes=shape.weight_bytes_read(batch),
        kv_bytes=batch * context * shape.kv_bytes_per_token,
        activation_bytes=batch * _activation_bytes(shape),
        flops=2.0 * shape.active_params * batch,
        attention_flops=4.0 * shape.layers * shape.heads * shape.head_dim * context * batch,
    )


def prefill_work(shape: ModelShape, tokens: float, prompts: float = 1.0) -> Work:
    """One pass over `prompts` prompts of `tokens` tokens each."""
    total = tokens * prompts
    return Work(
        weight_bytes=shape.weight_bytes_read(total),
        kv_bytes=total * shape.kv_bytes_per_token,
        activation_bytes=total * _activation_bytes(shape),
        flops=2.0 * shape.active_params * total,
        attention_flops=2.0 * shape.layers * shape.heads * shape.head_dim * tokens * total,
    )


def _activation_bytes(shape: ModelShape) -> float:
    """Numbers of one token that a layer's kernels hand on, in 16 bits."""
    return shape.layers * (4.0 * shape.hidden + 3.0 * shape.ff) * 2.0


def estimate(
    work: Work, gpu: Gpu, wall_s: float, busy_share: float, *, fit: Fit | None = None, gpus: int = 1, fp8: bool = False
) -> Estimate:
    """Estimate a stretch of time.

    Args:
        work: what was asked in it.
        gpu: data sheet.
        wall_s: its length.
        busy_share: share of it in which the engine had work, as far as the client can tell.
        fit: the fitted numbers; default those of the H200's counters.
        gpus: tensor-parallel GPUs that share the work.
        fp8: matrix products run on 8-bit units.
    """
    fit = fit or Fit()
    busy = min(max(busy_share, 0.0), 1.0)
    busy_s = max(wall_s * busy, 1e-9)
    bytes_at_most = gpus * busy_s * gpu.dram_bytes_per_s
    weights = (work.weight_bytes + fit.activation_factor * work.activation_bytes) / bytes_at_most
    cache = work.kv_bytes / bytes_at_most
    compute = (work.flops + work.attention_flops) / gpus / (busy_s * (gpu.flops_8 if fp8 else gpu.flops_16))
    idle_of_memory = (1 - _curve(weights, fit.weight_factor, fit.weight_power)) * (
        1 - _curve(cache, fit.cache_factor, fit.cache_power)
    )
    by_compute = _curve(compute, fit.compute_factor, fit.compute_power)
    sm = busy * (1 - idle_of_memory * (1 - by_compute)) * (1 - fit.idle_loss * (1 - busy))
    tensor = busy * min(fit.tensor_compute * compute / _BEST_TENSOR + fit.tensor_attention * cache, 1.0)
    limit = _limit(1 - idle_of_memory, by_compute, busy)
    return Estimate(
        *_bounded(sm, fit.sm_half * busy),
        *_bounded(busy * (weights + cache), fit.dram_half * busy),
        *_bounded(tensor, fit.tensor_half * busy),
        limit,
    )


def outside_fit(shape: ModelShape, gpu: Gpu) -> str | None:
    """Why the intervals do not hold for a model or GPU: it is none of those the estimate was fitted on."""
    params = shape.dense_params + shape.experts * shape.expert_params
    if gpu.name != FITTED_GPU:
        return f"counters of a {gpu.name} were never compared with it"
    if shape.experts:
        return "mixtures of experts were never compared with it"
    if shape.weight_bytes != 2 or shape.kv_bytes != 2:
        return "weights or caches of other than 16 bits were never compared with it"
    if not FITTED_PARAMS[0] <= params <= FITTED_PARAMS[1] or not FITTED_HIDDEN[0] <= shape.hidden <= FITTED_HIDDEN[1]:
        return f"{params / 1e9:.2g} billion parameters, {shape.hidden} wide, are outside the fitted models (0.6 to 32)"
    return None


def _curve(share: float, factor: float, power: float) -> float:
    """Share of SM time that a use of a share of a peak keeps busy."""
    kept_busy: float = factor * min(share, 1.0) ** power
    return min(kept_busy, 1.0)


def _bounded(value: float, half: float) -> tuple[float, float, float]:
    """Value, low and high in per cent, within 0 and 100."""

    def percent(share: float) -> float:
        return round(100 * min(max(share, 0.0), 1.0), 2)

    value = min(max(value, 0.0), 1.0)
    return percent(value), percent(value - half), percent(value + half)


def _limit(by_memory: float, by_compute: float, busy: float) -> str:
    """The resource that more load would exhaust first."""
    if busy < 0.7:
        return "load"
    if max(by_memory, by_compute) < 0.5:
        return "host"
    return "bandwidth" if by_memory >= by_compute else "compute"


def estimate_steps(rows: list[JsonObject], gpu: Gpu, fit: Fit | None = None) -> list[Estimate]:
    """Estimate measured steps.

    Args:
        rows: `tag` (decode.., prefill.., mixed..), `steps`, `wall_s`, `busy_s`, `params`, `layers`, `d`, `heads`,
            `kv_heads`, `ff`, `vocab`, `batch`, `context`, for mixed ones `prefill_tokens` and `decode_steps`;
            counters, NVML's figures and power are not looked at.
        gpu: data sheet.
        fit: the fitted numbers.

    Raises:
        UsageError: a row lacks a field, or is of an unknown kind.
    """
    results = []
    for number, row in enumerate(rows):
        try:
            work = _step_work(row).times(float(row["steps"]))
            results.append(
                estimate(work, gpu, float(row["wall_s"]), float(row["busy_s"]) / float(row["wall_s"]), fit=fit)
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
            raise UsageError(f"row {number} of the steps cannot be read: {exc!r}") from exc
    return results


def step_shape(row: JsonObject) -> ModelShape:
    """The model of a measured step."""
    heads, hidden = int(row["heads"]), int(row["d"])
    dtype = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp32": 4.0}.get(str(row.get("dtype", "bf16")), 2.0)
    experts = int(row.get("experts") or 0)
    return ModelShape(
        dense_params=float(row["params"]), layers=int(row["layers"]), hidden=hidden, heads=heads,
        kv_heads=int(row["kv_heads"]), head_dim=int(row.get("head_dim") or hidden // heads), ff=int(row["ff"]),
        vocab=int(row["vocab"]), expert_params=float(row.get("expert_params") or 0.0), experts=experts,
        experts_per_token=int(row.get("experts_per_token") or 0), weight_bytes=dtype,
    )  # fmt: skip


def _step_work(row: JsonObject) -> Work:
    shape = step_shape(row)
    batch, context, tag = float(row["batch"]), float(row["context"]), str(row["tag"])
    if tag.startswith("decode"):
        return decode_work(shape, batch, context)
    if tag.startswith("prefill"):
        return prefill_work(shape, context, batch)
    if tag.startswith("mixed"):
        steps = decode_work(shape, batch, context).times(float(row["decode_steps"]))
        return steps.plus(prefill_work(shape, float(row["prefill_tokens"])))
    raise ValueError(f"unknown kind {tag!r}")
