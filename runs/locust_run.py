"""Makes, stores and judges the runs of a bare `locust -f`, in Locust's own process."""

import os
import sys
from pathlib import Path
from typing import Any, Protocol

import msgspec

from surgeproof.credentials import Secrets
from surgeproof.loadgen.api_key import with_key
from surgeproof.loadgen.endpoint import base_url_of, check_endpoint
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.spec import RunSpec
from surgeproof.records import RunState
from surgeproof.results import RunResult
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.judge import complete_run
from surgeproof.runs.locust_process import make_run_dir
from surgeproof.runs.prepare import begin_run
from surgeproof.scenario import ENDPOINTS, Scenario
from surgeproof.scenario_file import load_scenario, load_slo
from surgeproof.slo.rules import parse_objectives
from surgeproof.storage.database_url import DEFAULT_DATABASE_URL
from surgeproof.strict_json import JsonObject


class ReportResult(Protocol):
    """Shows a result to the user."""

    def __call__(self, result: RunResult, *, has_json: bool) -> None:
        """Show it."""
        ...


class LocustRuns:
    """The `RunOwner` of a bare `locust -f`: makes a run for each test, stores and judges it.

    Args:
        report: shows the result, on standard error where `has_json`.
    """

    def __init__(self, report: ReportResult) -> None:
        self._report = report
        self._has_json = False
        self._scenario: Scenario | None = None
        self._path: Path | None = None
        self._db = DEFAULT_DATABASE_URL
        self._run: RunInProgress | None = None
        self._held: Secrets | None = None

    def add_arguments(self, parser: Any) -> None:
        """Add Surgeproof's flags as a separate group."""
        group = parser.add_argument_group(
            "Surgeproof", "The API key is read from OPENAI_API_KEY, or printed by SURGEPROOF_API_KEY_COMMAND."
        )
        group.add_argument("--scenario", default="", help="Scenario YAML; its load replaces -u, -r and -t")
        group.add_argument("--slo", default="", help="YAML file of objectives to judge the run by")
        database = os.environ.get("SURGEPROOF_DB", DEFAULT_DATABASE_URL)
        group.add_argument("--db", default=database, help="Database URL to store the run in")
        group.add_argument("--model", default="", help="Model name. Default: the first of /v1/models")
        group.add_argument("--endpoint", default="", choices=["", *ENDPOINTS])
        group.add_argument("--input-len", type=int, default=0, help="Prompt tokens of each request")
        group.add_argument("--output-len", type=int, default=0, help="Output tokens of each request")

    def configure(self, options: Any) -> Scenario:
        """The scenario, from its file and Locust's flags."""
        given = {
            "target.model": options.model,
            "target.endpoint": options.endpoint,
            "load.input_len": options.input_len,
            "load.output_len": options.output_len,
        }
        overrides: JsonObject = {key: value for key, value in given.items() if value}
        if options.host:
            overrides["target.base_url"] = _v1(options.host)
        # Locust's page can change every option: where the API key goes and where runs are stored is decided here.
        self._db, self._has_json = options.db, bool(options.json)
        if options.slo:
            overrides["slo"] = load_slo(Path(options.slo))
        self._path = Path(options.scenario) if options.scenario else None
        if self._path is None:
            # Users, rate of spawning and duration are Locust's own; the mix is that of P0:P1:P2.
            overrides |= {"name": "locust", "load.classes": {"P0": 5, "P1": 3, "P2": 1}}
            overrides |= {
                "load.concurrency": [options.num_users or 1],
                "load.duration_s": options.run_time or 1.0,
                "load.allow_long": True,
            }
        scenario = load_scenario(self._path, overrides)
        if self._path is None:
            load = msgspec.structs.replace(scenario.load, concurrency=(), duration_s=None)
            scenario = msgspec.structs.replace(scenario, load=load)
        parse_objectives(scenario.slo)
        if options.headless and not options.worker:
            check_endpoint(scenario.target, self._secrets())
        elif not options.worker:
            base_url_of(scenario.target)
        self._scenario = scenario
        return scenario

    def begin(self, options: Any, users: int) -> tuple[RunSpec, Plan]:
        """Begin a run; a closed loop of Locust's own users gets their number."""
        scenario = self._scenario
        assert scenario is not None, "configure comes first"
        if self._path is None:
            load = msgspec.structs.replace(scenario.load, concurrency=(users,), duration_s=options.run_time)
            scenario = msgspec.structs.replace(scenario, load=load)
        self._run, notes = begin_run(scenario, self._secrets(), self._db, self._path, make_run_dir(self._db))
        for note in notes:
            sys.stderr.write(f"Note: {note}\n")
        return self._run.spec, self._run.plan

    def complete(self, signal_number: int | None) -> int | None:
        """Store and judge the run; with objectives, Locust exits with the verdict's exit code."""
        if self._run is None:
            return None
        state = RunState.FINISHED if signal_number is None else RunState.INTERRUPTED
        result = complete_run(self._run, state, None if signal_number is None else 128 + signal_number)
        self._run = None
        self._report(result, has_json=self._has_json)
        return result.exit_code if result.verdicts or signal_number is not None else None

    def _secrets(self) -> Secrets:
        if self._held is None:
            self._held = with_key(Secrets.from_environment(dict(os.environ)))
        return self._held


def _v1(host: str) -> str:
    """Locust's --host names a server; OpenAI's paths lie under /v1."""
    host = host.rstrip("/")
    return host if host.endswith("/v1") else f"{host}/v1"
