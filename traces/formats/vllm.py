"""The log of a vLLM server with request logging: the lines that say `Received request`.

vLLM logs when a request came and what it asked for, not what it got: the answer's length is its
`max_tokens`, an upper bound. Prompts are measured and not kept. Stamps have whole seconds and no
year; the clock grid is undone like any other.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from surgeproof.records import BLOCK_TOKENS, NS_PER_S
from surgeproof.traces.formats.rows import (
    BadValueError,
    Dropped,
    Malformed,
    NumberedLine,
    Parsed,
    Row,
    estimated_tokens,
    tokens,
    usable,
)

NOT_A_REQUEST = "not_a_request_line"
NO_LENGTH = "no_prompt_length"
_STAMP = re.compile(r"\b[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_RECEIVED = "Received request "
_MAX_TOKENS = re.compile(r"\bmax_tokens=(\d+|None)")
_PROMPT = re.compile(r"prompt: (['\"])(.*)\1, (?:params|prompt_token_ids)\b", re.DOTALL)
_TOKEN_IDS = re.compile(r"prompt_token_ids: \[([^\]]*)\]")
_A_LEAP_YEAR = 2024


class VllmLog:
    """Reads a server's log; every other line is left out by name."""

    name = "vllm"
    columns = "INFO MM-DD HH:MM:SS [logger.py:..] Received request ID: prompt: '..', params: SamplingParams(..)"
    unit_ns: int | None = None
    block_tokens = BLOCK_TOKENS

    def recognises(self, first_line: str) -> bool:
        """By vLLM's form of a log line."""
        return bool(_STAMP.search(first_line)) and not first_line.startswith("{")

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One log line a line."""
        year, month = _A_LEAP_YEAR, 0
        for number, line in lines:
            if _RECEIVED not in line:
                yield Dropped(number, NOT_A_REQUEST)
                continue
            try:
                stamp = _STAMP.search(line)
                if stamp is not None:
                    # Without a year in it, a stamp of January after one of December is of the next.
                    year += month == 12 and int(stamp[1]) == 1
                    month = int(stamp[1])
                yield _row(number, line, year)
            except BadValueError as exc:
                yield Malformed(number, str(exc))


def _row(number: int, line: str, year: int) -> Row | Dropped:
    stamp = _STAMP.search(line)
    if stamp is None:
        raise BadValueError("a request without a time stamp")
    month, day, hour, minute, second = map(int, stamp.groups())
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as exc:
        raise BadValueError(f"{stamp.group(0)!r} is not a valid time ({exc})") from exc
    prompt = _PROMPT.search(line)
    # The prompt may look like parameters; the real ones come after it.
    parameters = line[prompt.end(2) :] if prompt is not None else line
    ids, most = _TOKEN_IDS.search(parameters), _MAX_TOKENS.search(parameters)
    if ids is not None:
        inputs = ids.group(1).count(",") + 1 if ids.group(1).strip() else 0
    elif prompt is not None:
        inputs = estimated_tokens(prompt.group(2))
    else:
        return Dropped(number, NO_LENGTH)
    if most is None or most.group(1) == "None":
        raise BadValueError("max_tokens is not given, so the answer's length is unknown")
    return usable(Row(number, int(moment.timestamp()) * NS_PER_S, inputs, tokens("max_tokens", most.group(1))))
