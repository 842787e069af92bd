"""The progress of a run on a terminal: the plan before it starts, then a bar; lines where there is no terminal."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from surgeproof.commands.terminal import new_console
from surgeproof.outcomes import NOT_JUDGED
from surgeproof.records import StreamRecord
from surgeproof.runs.collect import RunInProgress

_LINE_EVERY_S = 10.0


class Progress:
    """Shows the progress of a run.

    Args:
        quiet: print nothing, because standard output is for JSON only.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = new_console(stderr=True, quiet=quiet)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.fields[of]} requests, {task.fields[failed]} failed"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task: Any = None
        self._done = self._failed = 0
        self._total: int | None = None
        self._length_s: float | None = None
        self._began_at = self._line_at = time.monotonic()

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._show(self._bar.stop)

    def notice(self, text: str) -> None:
        """Print a sentence that must be read while the run goes on; also where only JSON is wanted."""
        self._show(new_console(stderr=True).print, text, style="yellow", highlight=False, soft_wrap=True)

    def begin(self, run: RunInProgress, notes: tuple[str, ...]) -> None:
        """Print the plan: number of requests, duration, endpoint."""
        load, count = run.spec.scenario.load, len(run.plan)
        if run.spec.scenario.closed_loop:
            length = f"{load.duration_s:g} s" if load.duration_s else f"{load.num_prompts} requests"
            steps = ", ".join(map(str, load.concurrency))
            what = f"closed loop of {steps} users, {length} per step"
            self._total = load.num_prompts and load.num_prompts * len(load.concurrency)
            self._length_s = load.duration_s and load.duration_s * len(load.concurrency)
        else:
            what = f"{count} requests over {run.plan.span_s:.1f} s"
            self._total, self._length_s = count, run.plan.span_s
        uid, digest = run.spec.uid[:8], run.plan.digest[:12]
        self._print(
            f"Run {run.run_id} ({uid}): {what} to {run.spec.model} at {run.spec.base_url}; "
            f"seed {load.seed}, plan {digest}"
        )
        for note in notes:
            self._print(f"Note: {note}")
        self._began_at = self._line_at = time.monotonic()
        self._task = self._bar.add_task("Sending", total=self._total, of=self._total or "?", failed=0)

    def advance(self, fresh: list[StreamRecord]) -> None:
        """Count new records."""
        tried = [record for record in fresh if record.outcome not in NOT_JUDGED]
        self._done += len(tried)
        self._failed += sum(not record.ok for record in tried)
        self._show(self._bar.update, self._task, completed=self._done, failed=self._failed)
        if not self._console.is_terminal and time.monotonic() - self._line_at > _LINE_EVERY_S:
            self._line_at = time.monotonic()
            self._print(self._line(time.monotonic() - self._began_at))

    def _line(self, elapsed_s: float) -> str:
        """One line of a log: how far the run is, by requests or else by time."""
        shares = [
            reached / whole for reached, whole in ((self._done, self._total), (elapsed_s, self._length_s)) if whole
        ]
        done = f"{min(1.0, shares[0]):4.0%}  " if shares else ""
        of = f" of {self._total}" if self._total else ""
        length = f" of {self._length_s:.0f}" if self._length_s else ""
        clock = time.strftime("%H:%M:%S")
        return f"{clock}  {done}{self._done}{of} requests, {self._failed} failed, {elapsed_s:.0f}{length} s"

    def _print(self, text: str) -> None:
        self._show(self._console.print, text, highlight=False, soft_wrap=True)

    def _show(self, draw: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Draw; whoever read the output may be gone, which must not stop a run."""
        with suppress(OSError):
            draw(*arguments, **options)
