"""What a run was made with: versions, host, revision of the scenario. Nothing secret, no file paths."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

from surgeproof.loadgen.ceiling import Ceiling
from surgeproof.stored_runs import Environment, Host

_PACKAGES = ("surgeproof", "locust", "gevent", "httptools", "msgspec", "numpy", "sqlalchemy")


def describe_environment(scenario_path: Path | None, ceiling: Ceiling | None) -> Environment:
    """Versions, host and the host's measured ceiling, as they are now."""
    return Environment(
        python=platform.python_version(),
        packages={name: installed for name in _PACKAGES if (installed := _version(name))},
        host=Host(
            name=platform.node(),
            system=f"{platform.system()} {platform.release()}",
            machine=platform.machine(),
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            memory_bytes=psutil.virtual_memory().total,
        ),
        scenario_revision=_revision(scenario_path) if scenario_path else None,
        calibration=msgspec.to_builtins(ceiling),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision(path: Path) -> str | None:
    """The git commit of the scenario's folder, marked where the file differs from it."""
    folder = path.resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    return f"{commit}-modified" if git("status", "--porcelain", "--", path.name) else commit
