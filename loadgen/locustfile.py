"""What `locust -f` is given: by a user, or by `surgeproof run`, which leaves the run in a folder."""

import os
from pathlib import Path

from surgeproof.config import RUN_DIR_VARIABLE
from surgeproof.loadgen.session import SpoolingConductor, install
from surgeproof.loadgen.users import P0User, P1User, P2User

run_dir = os.environ.get(RUN_DIR_VARIABLE)
if run_dir:
    # Only the load: judging, with all it imports, is the parent's.
    install(SpoolingConductor(Path(run_dir)))
else:
    from surgeproof.ci.board import print_result
    from surgeproof.locust_conductor import LocustConductor

    install(LocustConductor(print_result))

__all__ = ["P0User", "P1User", "P2User"]
