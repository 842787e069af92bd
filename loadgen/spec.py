"""The specification of a run for its workers, and the files and the variable that pass it on."""

import msgspec

from surgeproof.scenario import Scenario

PLAN_FILE = "plan.npz"
SPEC_FILE = "run.json"
RUN_DIR_VARIABLE = "SURGEPROOF_RUN_DIR"
"""Environment variable by which a Locust that `surgeproof run` started learns the run's folder."""


TOKEN_VARIABLE = "SURGEPROOF_CLUSTER_TOKEN"  # noqa: S105 - a variable's name
"""Environment variable with the token that a Locust master and its workers share."""
PARENT_VARIABLE = "SURGEPROOF_PARENT_PID"
"""Environment variable with the process id of the `surgeproof run` that started a Locust."""


class RunSpec(msgspec.Struct, frozen=True):
    """One run, but for secrets and the plan itself.

    Attributes:
        uid: the run's global name.
        base_url: resolved endpoint.
        model: resolved model.
        anchor_ns: the master's realtime minus monotonic time; shared by the processes it forked.
        run_dir: where the master's host keeps plan and spools.
        include_usage: the endpoint takes `stream_options`.
    """

    uid: str
    scenario: Scenario
    base_url: str
    model: str
    anchor_ns: int
    run_dir: str
    include_usage: bool = True
