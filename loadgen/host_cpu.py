"""What the host took from this process: time without a core, throttling by a CPU quota, time stolen by a hypervisor.

Reads Linux's own counters; a host that does not have them is taken as having taken nothing.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Taken(NamedTuple):
    """Totals since some time in the past, ns.

    Attributes:
        run_delay_ns: this thread was ready to run, but other programs had the cores.
        throttled_ns: its control group, or one above, had used up its CPU quota.
        steal_ns: the hypervisor ran something else, mean over all cores.
    """

    run_delay_ns: int = 0
    throttled_ns: int = 0
    steal_ns: int = 0


class HostCpu:
    """The counters of this thread and its control group.

    Args:
        proc: where /proc is.
        cgroups: where the control groups are.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._delay = SchedulerDelay(proc)
        self._quotas = [path for path in _quota_files(proc, cgroups) if path.is_file()]

    def taken(self) -> Taken:
        """The totals now."""
        throttled_ns = max((_throttled_ns(path) for path in self._quotas), default=0)
        return Taken(self._delay.total_ns() or 0, throttled_ns, _steal_ns(self._proc / "stat"))

    def close(self) -> None:
        """Give the files back."""
        self._delay.close()


class SchedulerDelay:
    """How long this thread has been ready to run but had no core, by Linux's scheduler statistics.

    Args:
        proc: where /proc is.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(proc / "thread-self" / "schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def total_ns(self) -> int | None:
        """Since the thread's start; None where the system does not tell."""
        if self._fd is None:
            return None
        try:
            return int(os.pread(self._fd, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Give the file back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _quota_files(proc: Path, cgroups: Path) -> list[Path]:
    """`cpu.stat` of this process's control group and of those above it, of version 1 or 2."""
    found = []
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                root = cgroups
            elif "cpu" in controllers.split(","):
                root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / "cpu"
            else:
                continue
            parts = Path(group.lstrip("/")).parts
            found += [root.joinpath(*parts[:depth], "cpu.stat") for depth in range(len(parts), -1, -1)]
    return found


def _throttled_ns(path: Path) -> int:
    """`throttled_usec` of version 2, `throttled_time` (ns) of version 1."""
    with contextlib.suppress(OSError, ValueError):
        values = dict(line.split() for line in path.read_text().splitlines())
        return int(values.get("throttled_time", 0)) or int(values.get("throttled_usec", 0)) * 1000
    return 0


def _steal_ns(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = path.read_text().splitlines()
        cores = sum(line.startswith("cpu") for line in lines) - 1
        return int(lines[0].split()[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") // max(1, cores)
    return 0
