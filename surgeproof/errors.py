"""Surgeproof's own exceptions.

    SurgeproofError                 anything below; carries the exit code
    ├── UsageError                  2  bad flags, scenario, trace, SLO: nothing was sent
    │   ├── ConfigError                an option or a key of the scenario
    │   ├── TraceError                 a trace file; names file, row and reason
    │   ├── RuleError                  an SLO rule
    │   └── EndpointError              unreachable, refuses the request, or has no such model
    ├── InterruptedEarlyError     128+n  signal n came before anything was sent
    ├── StoreError                  5  the database cannot be read or written
    │   └── DatabaseUnusableError   2  it cannot be opened, or is not ours: nothing was done
    └── RunBrokenError              5  the run could not be completed

Errors of the measured endpoint are not exceptions: they are fields of a record.
"""

from surgeproof.exit_codes import ExitCode


class SurgeproofError(Exception):
    """Base of all our errors; its text is one sentence a user can act on."""

    exit_code: int = ExitCode.CRASH


class UsageError(SurgeproofError):
    """The user asked for something that cannot be done; no request was sent."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A flag or a key of a scenario is wrong."""


class TraceError(UsageError):
    """A trace file cannot be read as asked."""


class RuleError(UsageError):
    """An SLO rule cannot be understood."""


class EndpointError(UsageError):
    """The endpoint failed the check before the run."""


class InterruptedEarlyError(SurgeproofError):
    """A signal ended the command before it sent anything.

    Args:
        signal_number: the signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__("interrupted; nothing was sent")
        self.exit_code = 128 + signal_number


class StoreError(SurgeproofError):
    """The database cannot be opened, read or written."""

    exit_code = ExitCode.INVALID


class DatabaseUnusableError(StoreError):
    """The database that was named cannot be opened, or is another program's."""

    exit_code = ExitCode.USAGE


class RunBrokenError(SurgeproofError):
    """The run stopped for a reason other than the endpoint."""

    exit_code = ExitCode.INVALID
