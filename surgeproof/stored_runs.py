"""A stored run, frozen: its head in a list, its whole, what it was begun and ended with, and where it was made."""

from msgspec import UNSET, Struct, UnsetType

from surgeproof.audit_results import Audit
from surgeproof.records import GpuFacts, RunState, Verdict, WorkerFacts
from surgeproof.results import RuleVerdict, Summary, is_voided
from surgeproof.scenario import Scenario


class Host(Struct, frozen=True):
    """The machine that sent the load."""

    name: str = ""
    system: str = ""
    machine: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None


class AgentReport(Struct, frozen=True, kw_only=True):
    """Statistics of the collection from one GPU agent; `reason` is why it has no GPU."""

    url: str
    gpus: tuple[GpuFacts, ...] = ()
    reason: str | None = None
    clock_ahead_ns: int = 0
    clock_uncertainty_ns: int = 0
    samples_lost: int = 0
    restarts: int = 0
    failed_requests: int = 0


class Environment(Struct, frozen=True, kw_only=True):
    """The environment of a run. Nothing secret, no file paths.

    Attributes:
        scenario_revision: git commit of the scenario file's folder.
        calibration: the host's measured ceiling, as plain data.
        workers: what the master knows of its workers; unset without any.
        gpu_agents: unset without any.
    """

    python: str = ""
    packages: dict[str, str] = {}
    host: Host = Host()
    scenario_revision: str | None = None
    calibration: dict[str, object] | None = None
    workers: tuple[WorkerFacts, ...] | UnsetType = UNSET
    gpu_agents: tuple[AgentReport, ...] | UnsetType = UNSET


class PlanFacts(Struct, frozen=True):
    """What identifies a stored plan.

    Attributes:
        left_out: share of a profile's requests that are due in busier minutes than any that is played.
    """

    digest: str
    seed: int
    requests: int
    left_out: float = 0.0


class RunHead(Struct, frozen=True, kw_only=True):
    """One line of the list of runs.

    Attributes:
        id: number in this database.
        uid: the run's global name, which export and import keep.
        verdict: None without objectives, and until the run has ended.
        metadata: the user's tags.
    """

    id: int
    uid: str
    name: str
    state: RunState
    started_at_ns: int
    ended_at_ns: int | None = None
    base_url: str
    model: str
    endpoint: str
    verdict: Verdict | None = None
    exit_code: int | None = None
    metadata: dict[str, str] = {}

    @property
    def comparable(self) -> bool:
        """Whether its figures are about the endpoint: it ended by itself, and its client was trustworthy."""
        return self.state is RunState.FINISHED and self.verdict is not Verdict.INVALID


class Run(RunHead, frozen=True, kw_only=True):
    """A stored run; audit and summary are None until it has ended."""

    scenario: Scenario
    environment: Environment = Environment()
    audit: Audit | None = None
    summary: Summary | None = None
    plan: PlanFacts | None = None
    verdicts: tuple[RuleVerdict, ...] = ()

    @property
    def voided(self) -> bool:
        """Whether a breach of the client's audit changed a verdict, or there is no verdict that it could leave."""
        return is_voided(self.verdicts, self.audit or Audit())

    @property
    def comparable(self) -> bool:
        """Whether its figures are about the endpoint; a breach may leave verdicts, but not figures to compare."""
        return self.state is RunState.FINISHED and not (self.audit and self.audit.breaches)


class NewRun(Struct, frozen=True, kw_only=True):
    """What is stored of a run when it begins.

    Attributes:
        spool: folder of the workers' spools.
    """

    uid: str
    name: str
    started_at_ns: int
    base_url: str
    model: str
    endpoint: str
    scenario: Scenario
    metadata: dict[str, str]
    environment: Environment
    spool: str


class RunEnd(Struct, frozen=True, kw_only=True):
    """What is stored of a run when it has ended."""

    state: RunState
    ended_at_ns: int
    verdict: Verdict | None
    exit_code: int
    audit: Audit
    summary: Summary
    environment: Environment
