"""Record columns for tests of the judge: times in ms, one request every 10 ms."""

from typing import Any

import numpy as np

from surgeproof.columns import RecordColumns
from surgeproof.slo.measured import Measured

MS = 1_000_000
EPOCH_NS = 1_800_000_000_000_000_000


def measured(
    ttft_ms: list[float | None],
    *,
    e2e_ms: list[float | None] | None = None,
    tpot_ms: list[float | None] | None = None,
    outcome: list[str] | None = None,
    request_class: list[str] | None = None,
    every_ms: float = 10.0,
    **changes: Any,
) -> Measured:
    count = len(ttft_ms)
    intended = [EPOCH_NS + round(index * every_ms * MS) for index in range(count)]
    columns: dict[str, Any] = {"plan_index": list(range(count))}

    def after(latencies: list[float | None]) -> list[int | None]:
        return [None if ms is None else at + round(ms * MS) for at, ms in zip(intended, latencies, strict=True)]

    columns |= {
        "intended_at_ns": intended,
        "sent_at_ns": intended,
        "first_token_at_ns": after(ttft_ms),
        "first_answer_at_ns": after(ttft_ms),
        "done_at_ns": after(e2e_ms or [500.0] * count),
        "tpot_ns": [None if ms is None else round(ms * MS) for ms in tpot_ms or [None] * count],
        "outcome": outcome or ["ok"] * count,
        "request_class": request_class or ["P0"] * count,
        "phase": ["main"] * count,
        "output_tokens": [100] * count,
        "step": [0] * count,
    }
    return Measured(RecordColumns.of(columns | changes))


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)
