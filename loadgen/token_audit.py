"""Audit of the tokens that the server counted: prompts and answers as long as planned, and none from a cache. Pure."""

import numpy as np
import numpy.typing as npt

from surgeproof.audit_results import AuditCheck, Effect
from surgeproof.columns import RecordColumns
from surgeproof.outcomes import Outcome

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_VARIED = 0.1
"""Planned lengths whose standard deviation is above this share of their mean show a slope, given enough of them."""
_MIN_FITTED = 30
_CACHE_BLOCK_TOKENS = 64
"""Caches work in blocks, and templates end within one: so many cached tokens a prompt are nobody's."""
_CACHED_SHARE = 0.05


def prompt_checks(columns: RecordColumns, made: Mask) -> list[AuditCheck]:
    """Prompt tokens that the server counted against those that were planned, apart from what it adds to each prompt.

    Where planned lengths differ, their slope tells how many tokens a planned one became. Where they are alike, a chat
    template cannot be told from longer words, so only fewer tokens than planned are a breach.

    Args:
        columns: the run's records.
        made: those whose prompts were made to planned lengths; shape (n,).
    """
    counted = made & (columns.texts("outcome") == Outcome.OK) & columns.has("input_tokens")
    if not counted.any():
        return []
    got, planned = (
        columns.integers(name)[counted].astype(np.float64) for name in ("input_tokens", "planned_input_tokens")
    )
    ratio, varied = float(got.mean() / planned.mean()), float(planned.std()) > _VARIED * float(planned.mean())
    if varied and len(got) >= _MIN_FITTED:
        ratio = float(np.cov(planned, got)[0, 1] / planned.var(ddof=1))
        off = abs(ratio - 1)
    else:
        off = max(0.0, 1 - ratio)
    remedy = (
        f"a planned prompt token was {ratio:.2f} of the server's: give --tokenizer, "
        f"or --words-per-token {1 / max(ratio, 0.01):.2f}"
    )
    effect = Effect.LESS_LOAD if ratio < 1 else Effect.MORE_LOAD
    return [AuditCheck.at_most("prompt_tokens_error", off, 0.25, "ratio", remedy, effect)]


def cache_checks(columns: RecordColumns, made: Mask, shared_tokens: Ints) -> list[AuditCheck]:
    """Prompt tokens that the server took from its cache beyond what the plan's prompts and its template share.

    Args:
        columns: the run's records.
        made: those whose prompts no other run has; shape (n,).
        shared_tokens: of each, that an earlier prompt of the plan shares; shape (n,).
    """
    answered = made & (columns.texts("outcome") == Outcome.OK)
    counted = answered & columns.has("cached_tokens") & columns.has("input_tokens")
    if not counted.any():
        return []
    inputs, planned, cached = (
        columns.integers(name)[counted] for name in ("input_tokens", "planned_input_tokens", "cached_tokens")
    )
    template = np.maximum(0, inputs - planned)
    excess = np.maximum(0, cached - shared_tokens[counted] - template - _CACHE_BLOCK_TOKENS)
    share = float(excess.sum() / max(1, inputs.sum()))
    remedy = (
        f"the server took {share:.0%} of the prompt tokens from a cache although no earlier prompt of this run shares "
        "them: another run or user sent the same prompts; leave --prompt-salt out, or clear the server's cache"
    )
    return [AuditCheck.at_most("cached_tokens_excess", share, _CACHED_SHARE, "ratio", remedy, Effect.LESS_LOAD)]


def output_checks(columns: RecordColumns) -> list[AuditCheck]:
    """Output tokens that the server counted against those that it was asked for, where it must not end earlier."""
    counted = (columns.texts("outcome") == Outcome.OK) & columns.has("output_tokens")
    if not counted.any():
        return []
    got, planned = (
        float(columns.integers(name)[counted].mean()) for name in ("output_tokens", "planned_output_tokens")
    )
    remedy = (
        f"answers had {got:.0f} of {planned:.0f} planned tokens although an early end was forbidden, so the load was "
        "lighter than the plan: the server ignores ignore_eos or min_tokens, or its context is too short"
    )
    return [
        AuditCheck.at_most("output_tokens_missing", max(0.0, 1 - got / planned), 0.1, "ratio", remedy, Effect.LESS_LOAD)
    ]
