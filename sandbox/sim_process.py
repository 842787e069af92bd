"""The simulated endpoint as a child process on a free loopback port, for demos and tests."""

import json
import subprocess
import sys
from types import TracebackType

from surgeproof.errors import RunBrokenError


class SimProcess:
    """Starts `surgeproof sim` and ends it.

    Args:
        arguments: more flags of `surgeproof sim`.
    """

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.base_url = ""

    def __enter__(self) -> "SimProcess":
        self._child = subprocess.Popen(
            [sys.executable, "-m", "surgeproof", "sim", "--port", "0", *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdout is not None, "started with a pipe"
        line = self._child.stdout.readline()
        if not line:
            raise RunBrokenError(f"the simulated endpoint ended with code {self._child.wait()}")
        self.base_url = str(json.loads(line)["base_url"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
