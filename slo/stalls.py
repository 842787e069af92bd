"""Stalls of a server: times in which no token of any stream came although requests were in flight. Pure.

In a closed loop a stall stops the schedule too: the requests that would have been sent, and would have
waited, are missing, so that percentiles look good. Replies without streams show no stall.
"""

import numpy as np

from surgeproof.slo.measured import Floats, Mask, Measured

_MIN_STALL_S = 0.5
_TTFTS = 5.0
"""A stall is that many times longer than first tokens (p90) take."""
_TOKENS = 20.0
"""A stall is that many times longer than a token takes (median)."""
_EVENTS = ("first_token_at_ns", "last_token_at_ns", "done_at_ns")


def stalls_s(measured: Measured) -> Floats:
    """Length of every stall of the main phase, s, in the order of time."""
    return np.concatenate([_stalls_s(measured, run) for run in measured.by_run()])


def _stalls_s(measured: Measured, run: Mask) -> Floats:
    sent = run & measured.judged & ~np.isnan(measured.times_s["sent_at_ns"])
    first = measured.times_s["first_token_at_ns"]
    streamed = sent & ~np.isnan(first)
    if not streamed.any():
        return np.array([])
    at_s = np.concatenate([measured.times_s[name][sent] for name in _EVENTS])
    at_s = np.unique(at_s[~np.isnan(at_s)])
    starts, lengths = at_s[:-1], np.diff(at_s)
    long = lengths > _threshold_s(measured, streamed)
    found = [length for start, length in zip(starts[long], lengths[long], strict=True)
             if _all_waited(measured, sent, start, start + length)]  # fmt: skip
    return np.array(found)


def _threshold_s(measured: Measured, streamed: Mask) -> float:
    ttft_s = measured.latency_ms("ttft", "service")[streamed] / 1000
    tpot_s = measured.latency_ms("tpot")[streamed] / 1000
    per_token = float(np.nanmedian(tpot_s)) if not np.isnan(tpot_s).all() else 0.0
    return max(_MIN_STALL_S, _TTFTS * float(np.quantile(ttft_s, 0.9)), _TOKENS * per_token)


def _all_waited(measured: Measured, sent: Mask, start: float, end: float) -> bool:
    """Whether requests were in flight all the time, and each waited for its first or its next token."""
    times, length = measured.times_s, end - start
    # A user's next request is sent shortly after the answer that is the start.
    over = sent & (times["sent_at_ns"] <= start + length / 10) & (times["done_at_ns"] >= end)
    first = times["first_token_at_ns"]
    waited = np.isnan(first) | (first >= end) | (measured.latency_ms("max_gap") >= 900 * length)
    return bool(over.any() and waited[over].all())
