"""Exit codes: the contract with pipelines, in one place."""

from enum import IntEnum

from surgeproof.records import Verdict


class ExitCode(IntEnum):
    """Exit codes of Surgeproof processes."""

    PASS = 0
    CRASH = 1
    USAGE = 2
    FAIL = 3
    INCONCLUSIVE = 4
    INVALID = 5
    SIGINT = 130
    SIGTERM = 143


def exit_code_of(verdict: Verdict | None) -> ExitCode:
    """The exit code of a run's verdict; a run without objectives passes."""
    return ExitCode.PASS if verdict is None else ExitCode[verdict.name]
