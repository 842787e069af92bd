"""The parts of a model's architecture that determine what a GPU reads and computes. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from surgeproof.errors import UsageError

_DTYPE_BYTES = {
    "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": 0.5, "int4": 0.5,
}  # fmt: skip


class ModelShape(msgspec.Struct, frozen=True):
    """A decoder.

    Attributes:
        dense_params: parameters that every token goes through: attention, norms, dense MLPs, the output layer.
            Input embeddings are looked up, not multiplied.
        expert_params: parameters of one expert over all layers; 0 without experts.
        experts: routed experts a layer.
        experts_per_token: of which each token takes so many.
        head_dim: width of a head; heads x head_dim need not be `hidden`.
        weight_bytes: bytes of a stored weight.
        kv_bytes: bytes of a number in the KV cache.
    """

    dense_params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    expert_params: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def active_params(self) -> float:
        """Parameters that one token goes through."""
        return self.dense_params + self.experts_per_token * self.expert_params

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache of one token."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes

    def weight_bytes_read(self, tokens: float) -> float:
        """Weights that one pass over `tokens` tokens reads: all dense ones, and the experts that any token takes."""
        touched = 0.0
        if self.experts:
            # Each token takes its experts alike: those left out by all are (1 - k/E)^tokens.
            touched = self.experts * (1 - (1 - self.experts_per_token / self.experts) ** max(tokens, 1.0))
        return (self.dense_params + touched * self.expert_params) * self.weight_bytes


def shape_from_config(
    config: Mapping[str, Any], weight_dtype: str | None = None, kv_dtype: str | None = None
) -> ModelShape:
    """From a Hugging Face `config.json`.

    Args:
        config: its contents; for a multi-modal model, its text part is used.
        weight_dtype: of quantised weights; default that of the file.
        kv_dtype: of the KV cache; default that of the file.

    Raises:
        UsageError: a size is missing, or a dtype unknown.
    """
    config = config.get("text_config", config)
    try:
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads, vocab = int(config["num_attention_heads"]), int(config["vocab_size"])
        ff = int(config.get("intermediate_size") or 4 * hidden)
    except (KeyError, TypeError, ValueError) as exc:
        raise UsageError(f"the model's configuration lacks {exc}") from exc
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    experts = int(config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 0)
    expert_ff = int(config.get("moe_intermediate_size") or ff)
    dense_layers = int(config.get("first_k_dense_replace") or 0) if experts else layers
    shared = int(config.get("n_shared_experts") or 0)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    dense = layers * attention + dense_layers * 3 * hidden * ff + hidden * vocab
    expert = 0.0
    if experts:
        moe_layers = layers - dense_layers
        expert = float(moe_layers * 3 * hidden * expert_ff)
        dense += shared * moe_layers * 3 * hidden * expert_ff + moe_layers * hidden * experts
    stored = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    quantised = config.get("quantization_config") or {}
    bits = quantised.get("bits") or {"fp8": 8, "fbgemm_fp8": 8}.get(str(quantised.get("quant_method")))
    weight = dtype_bytes(weight_dtype) if weight_dtype else bits / 8 if bits else dtype_bytes(stored)
    return ModelShape(
        float(dense), layers, hidden, heads, kv_heads, head_dim, expert_ff if experts else ff, vocab, expert, experts,
        int(config.get("num_experts_per_tok") or 0) if experts else 0, weight,
        dtype_bytes(kv_dtype) if kv_dtype else dtype_bytes(stored),
    )  # fmt: skip


def dtype_bytes(name: str) -> float:
    """Bytes of a number.

    Raises:
        UsageError: the type is unknown.
    """
    result = _DTYPE_BYTES.get(name.removeprefix("torch.").lower())
    if result is None:
        raise UsageError(f"unknown data type {name!r}; known are {', '.join(_DTYPE_BYTES)}")
    return result
