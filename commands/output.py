"""Standard streams whose reader may be gone or whose disk may be full: the exit code says the verdict all the same."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surgeproof.redaction import Redactor


class TolerantStream:
    """A text stream whose errors do not end the program: a run's verdict must reach the exit code.

    After the first error everything goes to the null device, so that the interpreter's last flush succeeds too.

    Args:
        stream: standard output or error.
        redact: takes secrets out of what is written.
        report: called with the reason, unless the reader has just left.
    """

    def __init__(self, stream: Any, redact: Redactor, report: Callable[[str], object] | None = None) -> None:
        self._stream, self._redact, self._report = stream, redact, report

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            self._stream.write(self._redact(text))
        except OSError as exc:
            self._drop(exc)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            self._stream.flush()
        except OSError as exc:
            self._drop(exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop(self, exc: OSError) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if self._report is not None and not isinstance(exc, BrokenPipeError):
            self._report(f"Error: standard output cannot be written: {exc.strerror}\n")


def guard_output(redact: Redactor) -> None:
    """From now on nothing secret is printed, and a closed pipe or a full disk behind it does not end the program."""
    # Python has no stream where the shell closed the descriptor.
    error = TolerantStream(sys.stderr or Path(os.devnull).open("w"), redact)  # noqa: SIM115
    sys.stderr = error
    sys.stdout = TolerantStream(sys.stdout or Path(os.devnull).open("w"), redact, error.write)  # noqa: SIM115
