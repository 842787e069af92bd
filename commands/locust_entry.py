"""Registers Surgeproof with Locust: for a run prepared by `surgeproof run`, or for a plain `locust -f`."""

import os
from pathlib import Path

from surgeproof.loadgen.controller import PreparedRun, install
from surgeproof.loadgen.spec import RUN_DIR_VARIABLE
from surgeproof.loadgen.users import P0User, P1User, P2User

run_dir = os.environ.get(RUN_DIR_VARIABLE)
if run_dir:
    # Generate the load only: the parent process judges, so its imports are not needed here.
    install(PreparedRun(Path(run_dir)))
else:
    from surgeproof.commands.board import print_result_of_locust
    from surgeproof.runs.locust_run import LocustRuns

    install(LocustRuns(print_result_of_locust))

__all__ = ["P0User", "P1User", "P2User"]
