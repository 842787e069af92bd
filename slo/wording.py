"""Figures as text, the same on terminal, page and report. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from surgeproof.audit_results import Audit
from surgeproof.records import Verdict
from surgeproof.results import ClassSummary, Interval, RuleVerdict, Summary
from surgeproof.slo.compare import Difference


def counts_line(summary: Summary) -> str:
    """One line of counts of all requests."""
    total = summary.total
    parts = [f"{total.requests} requests, {total.ok} answered, {total.failed} failed"]
    others = {"shed": total.shed, "cancelled": total.cancelled, "not sent": total.not_sent}
    parts += [f"{count} {name}" for name, count in others.items() if count]
    errors = {name: count for name, count in total.outcomes.items() if name.startswith("error")}
    if errors:
        parts.append(", ".join(f"{count} × {name}" for name, count in errors.items()))
    return "; ".join(parts)


def rates_line(summary: Summary) -> str | None:
    """One line of rates with their bounds and their window; None for a ladder, whose steps have rates of their own."""
    total, load = summary.total, summary.total.load
    if load is None or summary.is_ladder:
        return None
    planned = "" if load.planned_per_s is None else f"{number(load.planned_per_s)} planned, "
    parts = [
        f"requests/s: {planned}{number(load.sent_per_s)} sent, {_bounded(total, 'requests_per_s')} answered",
        *([f"output tokens/s: {_bounded(total, 'output_tokens_per_s')}"] if total.items is None else []),
        *([f"items/s: {_bounded(total, 'items_per_s')}"] if total.items is not None else []),
        f"{number(load.in_flight)} in flight",
    ]
    if isinstance(total.attainment, float):
        attained = f"{_percent(total.attainment)}{_between(total.bounds.get('attainment'), _percent)} of requests"
        parts.append(f"goodput {_bounded(total, 'goodput_per_s')}/s, {attained}")
    return f"{'; '.join(parts)}; {load.window}"


def _bounded(figures: ClassSummary, name: str) -> str:
    value = getattr(figures, name)
    if not isinstance(value, float):
        return number(None)
    return f"{number(value)}{_between(figures.bounds.get(name), number)}"


def _between(interval: Interval | None, text: Callable[[float | None], str]) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f" ({text(interval.low)} to {text(interval.high)})"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.4g} %"


def client_line(summary: Summary) -> str | None:
    """How much of the first-token time may be the client's own; None where nothing was streamed, and for a ladder."""
    p99, error = summary.total.latency_ms["ttft"].p99, summary.total.client_error_ms.get("ttft")
    if p99 is None or error is None or summary.is_ladder:
        return None
    return f"TTFT p99 {p99:.1f} ms, of which at most {error:.2f} ms is the client's own delay"


def tasks_line(summary: Summary) -> str | None:
    """One line about conversations or tasks; None without any."""
    tasks = summary.tasks
    if tasks is None:
        return None
    parts = [f"{tasks.tasks} tasks of {tasks.requests} requests: {tasks.done} done, {tasks.failed} failed"]
    parts += [f"{tasks.skipped} requests skipped, as an earlier one of their task failed"] if tasks.skipped else []
    parts += [f"{tasks.stopped} answers stopped by their users, as planned"] if tasks.stopped else []
    if (took := tasks.duration_ms).p50 is not None and took.p95 is not None:
        parts.append(f"a task took {number(took.p50 / 1e3)} s at p50, {number(took.p95 / 1e3)} s at p95")
    if tasks.per_hour is not None and not summary.is_ladder:
        parts.append(f"{number(tasks.per_hour)} an hour")
    return "; ".join(parts)


TURNS = ("turn", "answered", "ttft p50", "ttft p99", "prompt tokens", "cached, planned", "cached, by the server")
"""Columns of the table of turns; latencies in ms."""


def turn_rows(summary: Summary) -> list[tuple[str, ...]]:
    """A row of figures for every depth of conversations or tasks; none without them."""
    return [
        (
            turn.turn,
            str(turn.requests),
            number(turn.ttft_ms.p50),
            number(turn.ttft_ms.p99),
            number(turn.input_tokens),
            _percent(turn.planned_cached_share),
            _percent(turn.cached_share),
        )
        for turn in (summary.tasks.turns if summary.tasks else ())
    ]


def figure_lines(summary: Summary) -> list[str]:
    """Counts, rates, tasks, and the client's own delay, a line each."""
    lines = (counts_line(summary), rates_line(summary), tasks_line(summary), client_line(summary))
    return [line for line in lines if line]


STEPS = ("users", "requests", "failed", "requests/s", "output tokens/s", "in flight", "ttft p50", "ttft p99",
         "tpot p50", "tpot p99", "e2e p50", "e2e p99")  # fmt: skip
"""Columns of a ladder's table; latencies in ms."""


def step_rows(summary: Summary) -> list[tuple[str, ...]]:
    """A row of figures for every step of a ladder; none without one."""
    return [_step_row(users, figures) for users, figures in summary.steps.items()] if summary.is_ladder else []


def _step_row(users: str, figures: ClassSummary) -> tuple[str, ...]:
    latencies = (figures.latency_ms[name] for name in ("ttft", "tpot", "e2e"))
    return (
        users,
        str(figures.requests),
        str(figures.failed),
        _bounded(figures, "requests_per_s"),
        _bounded(figures, "output_tokens_per_s"),
        number(figures.load.in_flight if figures.load else None),
        *(number(value) for one in latencies for value in (one.p50, one.p99)),
    )


def latency_title(summary: Summary) -> str:
    """What latencies are counted from, which the kind of load decides."""
    if not summary.closed_loop:
        return "Latency from the planned time (open loop)"
    return "Latency from the send (closed loop: users wait for their answer)"


_BUFFERED_SHARE = 0.05
_PROMPT_SHARE = 0.02
"""Difference of prompt tokens from the plan that is told."""
_CACHED_SHARE = 0.05
_SHORT = 0.5
"""Share of the planned output tokens under which the load was another one."""


def notices(summary: Summary) -> list[str]:
    """What a reader of the figures must know about how the server answered."""
    answered, warnings = summary.total.ok, summary.total.warnings
    if not answered:
        return _nothing_answered(summary)
    results = _key_notices(warnings)
    if stalls := summary.stalls:
        times = "once" if stalls.count == 1 else f"{stalls.count} times"
        results.append(
            f"the server stalled {times}: no token of any stream came for up to {stalls.longest_s:.1f} s"
            + ("; users waited, so requests are missing: use --request-rate" if summary.closed_loop else "")
        )
    buffered = warnings.get("buffered", 0) / answered
    if buffered > 0.5:
        results.append(
            f"{buffered:.0%} of the answers arrived in one read: a proxy buffers, or the server does not stream; "
            "first-token times are times of the whole answer"
        )
    in_parts = warnings.get("buffered_in_parts", 0) / answered
    if in_parts > _BUFFERED_SHARE:
        results.append(
            f"{in_parts:.0%} of the answers arrived in a few reads of many tokens each: a proxy buffers (nginx: "
            "proxy_buffering off), so first tokens look later and times per token shorter than they were"
        )
    if warnings.get("not_streamed", 0) > answered / 2:
        results.append("the server did not stream: there are no first-token times")
    if summary.total.unknown_output_tokens == answered:
        results.append("the server sends no usage: token counts, token rates and times per token are unknown")
    prompts = summary.total.prompt_tokens
    if prompts and abs(prompts.counted - prompts.planned) > max(1.0, _PROMPT_SHARE * prompts.planned):
        results.append(
            f"the server counted {number(prompts.counted - prompts.planned, '+')} prompt tokens a request against the "
            f"plan ({number(prompts.counted)} for {number(prompts.planned)}): its chat template adds to every prompt, "
            "or its tokens are not our words; for exact lengths give --tokenizer, or --template-tokens and "
            "--words-per-token as surgeproof probe shows them"
        )
    if prompts and (prompts.cached_share or 0.0) > _CACHED_SHARE:
        results.append(f"{prompts.cached_share:.0%} of the prompt tokens came from the server's cache")
    share = summary.total.output_length_share
    if share is not None and share < _SHORT:
        results.append(
            f"answers had {share:.0%} of the planned output tokens, so the load was lighter than the plan; where full "
            "lengths matter, ask for them (--ignore-eos)"
        )
    for name, text in (
        ("hidden_reasoning", "answers hold reasoning tokens that were not streamed; time per token leaves them out"),
        ("more_events_than_tokens", "answers have more events than tokens; the first may be an echo of the prompt"),
        ("short_output", "answers were shorter than asked for"),
        ("output_over_limit", "answers were longer than allowed"),
    ):
        if warnings.get(name):
            results.append(f"{warnings[name]} {text}")
    return results


def _key_notices(warnings: Mapping[str, int]) -> list[str]:
    results = []
    if renewed := warnings.get("api_key_renewed"):
        results.append(
            f"{renewed} requests were refused with HTTP 401 and sent again with a new key; their latencies from the "
            "planned time include the wait for it"
        )
    if refused := warnings.get("api_key_not_renewed"):
        results.append(f"{refused} requests were refused with HTTP 401 and --api-key-command gave no new key")
    return results


def _nothing_answered(summary: Summary) -> list[str]:
    errors = {name: count for name, count in summary.total.outcomes.items() if name.startswith("error")}
    if not errors:
        return []
    name = max(errors, key=lambda one: errors[one])
    return [f"0 of {summary.total.sent} answered: {errors[name]} × {name}"]


def breach_lines(audit: Audit, *, voided: bool) -> list[str]:
    """What the client's audit found wrong, and whether a verdict depends on it."""
    end = "" if voided else " (no verdict depends on it)"
    return [f"{check.name}: {check.remedy}{end}" for check in audit.breaches]


def cap_line(audit: Audit) -> str | None:
    """How far the concurrency cap held requests back; None where it did not."""
    wait = audit.cap_wait
    if wait is None:
        return None
    return (
        f"{wait.requests} of {wait.sent} requests waited for one of the {wait.cap} places of --max-concurrency "
        f"(p99 {number(wait.p99_ms)} ms): the server answers more slowly than the plan asks for. "
        "Latencies from the planned time include the wait; to send on time, raise --max-concurrency"
    )


def number(value: float | None, sign: str = "") -> str:
    """A number to four digits, or to all before the point where there are more; a dash where there is none.

    Args:
        value: the number.
        sign: "+" to show that of a difference.
    """
    if value is None:
        return "–"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"


def figure(value: float | None, unit: str) -> str:
    """A number with its unit; a dash where there is none."""
    if value is None:
        return "–"
    if unit == "%":
        return f"{value * 100:.5g} %"
    return f"{number(value)}{unit}" if unit == "/s" else f"{value:.1f} {unit}"


BOARD = ("class", "objective", "observed", "95 % bounds", "n", "attained", "verdict")
"""Columns of the SLO board."""


def board_row(verdict: RuleVerdict) -> tuple[str, ...]:
    """One objective's cells."""
    return (
        verdict.request_class,
        verdict.rule,
        figure(verdict.observed, verdict.unit),
        f"{figure(verdict.interval.low, verdict.unit)} – {figure(verdict.interval.high, verdict.unit)}",
        str(verdict.n),
        "–" if verdict.attainment is None else f"{verdict.attainment * 100:.6g} %",
        str(verdict.verdict),
    )


def difference(d: Difference) -> str:
    """How far a figure moved between two runs, with its bounds, and the margin where it has one."""
    shown = f"{number(d.after - d.before, '+')} ({number(d.low, '+')} to {number(d.high, '+')})"
    if d.margin is None:
        return shown
    return f"{shown}, accepted {'+' if d.metric.endswith('ms') else '-'}{number(d.margin)}"


def mark(d: Difference) -> str:
    """The verdict of a figure that decides; of any other, whether it differs, and by more than is accepted."""
    if d.verdict is not None:
        return str(d.verdict)
    return "look at this" if d.unclear else "differs" if d.significant else ""


def comparison_line(differences: Sequence[Difference]) -> str:
    """The result of a comparison, in one sentence."""
    parts = []
    if alarms := [f"{d.group} {d.metric}" for d in differences if d.alarm]:
        parts.append(f"worse than accepted: {', '.join(alarms)}")
    if unclear := [_unclear(d) for d in differences if d.verdict is Verdict.INCONCLUSIVE]:
        parts.append(f"not shown to be within the accepted margin: {', '.join(unclear)}")
    if explored := [f"{d.group} {d.metric}" for d in differences if d.unclear and d.verdict is None]:
        parts.append(f"found by exploration, to be confirmed by another pair of runs: {', '.join(explored)}")
    if parts:
        return "; ".join(parts)
    deciding = [d.metric for d in differences if d.verdict is not None]
    return f"within the accepted margin, with 95 % confidence: {', '.join(deciding)}"


def _unclear(d: Difference) -> str:
    if d.more_requests is None:
        return f"{d.group} {d.metric}"
    return f"{d.group} {d.metric} ({d.more_requests} more requests in each run would decide)"


def when(at_ns: int | None) -> str:
    """A time in UTC, to the second."""
    return "–" if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
