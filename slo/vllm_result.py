"""A run under the names that vLLM's `bench serve` writes, so that scripts made for it work. Pure.

Its figures are of answered requests and from the send (`service`), as vLLM measures; throughputs are
over the time from the first send to the last end. `std` is the population's, as there.
"""

from typing import NamedTuple

import numpy as np

from surgeproof.slo.intervals import quantile
from surgeproof.slo.measured import Floats, Measured
from surgeproof.strict_json import JsonObject

_PERCENTILES = (50, 90, 95, 99)


class VllmFacts(NamedTuple):
    """What the run was; the tags of `metadata` become keys of the result."""

    date: str
    model_id: str
    request_rate: float | None
    burstiness: float
    max_concurrency: int
    metadata: dict[str, str]


def vllm_result(measured: Measured, facts: VllmFacts, itls_ms: list[list[float]] | None) -> JsonObject:
    """The result file as plain data.

    Args:
        measured: the run's records.
        facts: what the run was.
        itls_ms: gaps between arrivals of each answered request; None where they were not kept.
    """
    sent, ok = measured.judged, measured.judged & measured.ok
    times = measured.times_s
    duration = float(np.nanmax(times["done_at_ns"][ok]) - np.nanmin(times["sent_at_ns"][ok])) if ok.any() else 0.0
    inputs = np.nan_to_num(measured.numbers["input_tokens"][ok])
    outputs = np.nan_to_num(measured.numbers["output_tokens"][ok])
    rate = 1 / duration if duration > 0 else 0.0
    rate_asked = facts.request_rate
    known = facts._asdict() | {"request_rate": str(rate_asked) if rate_asked == float("inf") else rate_asked}
    result: JsonObject = (
        {k: v for k, v in known.items() if k != "metadata"}
        | facts.metadata
        | {
            "backend": "surgeproof",
            "num_prompts": int(sent.sum()),
            "duration": duration,
            "completed": int(ok.sum()),
            "failed": int((sent & ~measured.ok).sum()),
            "total_input_tokens": int(inputs.sum()),
            "total_output_tokens": int(outputs.sum()),
            "request_throughput": float(ok.sum() * rate),
            "output_throughput": float(outputs.sum() * rate),
            "total_token_throughput": float((inputs.sum() + outputs.sum()) * rate),
            "input_lens": inputs.astype(int).tolist(),
            "output_lens": outputs.astype(int).tolist(),
            "ttfts": _seconds(measured.latency_ms("ttft", "service")[ok]),
            "start_times": times["sent_at_ns"][ok].tolist(),
        }
    )
    gaps = np.concatenate([np.array(of, dtype=np.float64) for of in itls_ms]) if itls_ms else np.zeros(0)
    for name, values in (
        ("ttft", measured.latency_ms("ttft", "service")[ok]),
        ("tpot", measured.latency_ms("tpot")[ok]),
        ("itl", gaps),
        # vLLM stops its clock at the last output, not at [DONE].
        ("e2el", measured.latency_ms("last_token", "service")[ok]),
    ):
        result |= _figures(name, values[~np.isnan(values)])
    if itls_ms is not None:
        result["itls"] = [[gap / 1e3 for gap in of] for of in itls_ms]
    return result


def _figures(name: str, values: Floats) -> dict[str, float]:
    if len(values) == 0:
        return {}
    ordered = np.sort(values)
    results = {f"mean_{name}_ms": float(values.mean()), f"std_{name}_ms": float(values.std())}
    results[f"median_{name}_ms"] = quantile(ordered, 0.5)
    return results | {f"p{q}_{name}_ms": quantile(ordered, q / 100) for q in _PERCENTILES}


def _seconds(values_ms: Floats) -> list[float]:
    """VLLM writes 0 for a request without a first token."""
    seconds: list[float] = (np.nan_to_num(values_ms) / 1e3).tolist()
    return seconds
