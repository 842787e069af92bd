"""Prepares a run: checks the scenario, makes the plan and stores both. No request is sent yet."""

import os
from pathlib import Path

import msgspec
from msgspec import structs

from surgeproof.clock import MonotonicClock
from surgeproof.credentials import Secrets
from surgeproof.errors import ConfigError
from surgeproof.gpu.client import GpuCollector, open_agents
from surgeproof.loadgen.ceiling import ceiling_note, load_ceiling
from surgeproof.loadgen.endpoint import Endpoint, check_endpoint
from surgeproof.loadgen.plan import Plan
from surgeproof.loadgen.served_tokenizer import served_lengths
from surgeproof.loadgen.spec import PLAN_FILE, SPEC_FILE, RunSpec
from surgeproof.records import REQUEST_CLASSES
from surgeproof.redaction import without_userinfo
from surgeproof.runs.collect import RunInProgress
from surgeproof.runs.environment import describe_environment
from surgeproof.runs.plan_scenario import plan_scenario
from surgeproof.scenario import SERVED_TOKENIZER, Scenario
from surgeproof.slo.rules import STREAMED, Objectives, parse_goodput, parse_objectives
from surgeproof.storage.store import Store
from surgeproof.stored_runs import NewRun, PlanFacts

_AGENT_TOKEN_VARIABLE = "SURGEPROOF_AGENT_TOKEN"  # noqa: S105 - a variable's name


def begin_run(
    scenario: Scenario, secrets: Secrets, db_url: str, scenario_path: Path | None, run_dir: Path
) -> tuple[RunInProgress, tuple[str, ...]]:
    """Check everything, make the plan and store both.

    Args:
        scenario: checked scenario.
        secrets: headers for the endpoint.
        db_url: where to store.
        scenario_path: the file it came from, for its revision.
        run_dir: empty folder of `make_run_dir`, whose name is the run's uid.

    Returns:
        The run, and notes about the plan that a user should read.

    Raises:
        UsageError: scenario, trace, objectives or endpoint are wrong.
        StoreError: the database cannot be written.
    """
    objectives = parse_objectives(scenario.slo)
    _refuse_without_stream(objectives, scenario)
    parse_goodput([f"{name}:{bound}" for name, bound in scenario.goodput.items()])
    scenario, length_notes = _with_served_lengths(scenario, secrets)
    planned = plan_scenario(scenario)
    plan = planned.plan
    endpoint = check_endpoint(scenario.target, secrets)
    ceiling = load_ceiling()
    notes = [*length_notes, *planned.notes, *endpoint.notes, *_too_long(plan, endpoint)]
    if ceiling is not None:
        note = ceiling_note(ceiling, plan.rows["intended_ns"], plan.rows["output_tokens"], scenario.processes)
        notes += [note] if note else []
    load = structs.replace(planned.load, prompt_salt=scenario.load.prompt_salt or run_dir.name)
    scenario = structs.replace(scenario, load=load)
    clock = MonotonicClock()
    agents = open_agents(scenario.gpu_agents, os.environ.get(_AGENT_TOKEN_VARIABLE), clock.now_ns)
    store = Store(db_url)
    kept = _without_secrets(scenario)
    spec = RunSpec(run_dir.name, kept, endpoint.base_url, endpoint.model, clock.anchor_ns, str(run_dir))
    (run_dir / SPEC_FILE).write_bytes(msgspec.json.encode(spec))
    plan.save(run_dir / PLAN_FILE)
    run_id = store.create_run(
        NewRun(
            uid=spec.uid,
            name=scenario.name,
            started_at_ns=clock.now_ns(),
            base_url=without_userinfo(endpoint.base_url),
            model=" + ".join(scenario.target.models) or endpoint.model,
            endpoint=scenario.target.endpoint,
            scenario=kept,
            metadata=scenario.metadata,
            environment=describe_environment(scenario_path, ceiling),
            spool=str(run_dir),
        )
    )
    facts = PlanFacts(plan.digest, scenario.load.seed, len(plan), planned.left_out)
    store.save_plan(run_id, plan.without_contents().pack(), facts)
    run = RunInProgress(store, run_id, spec, plan, objectives)
    run.gpus = GpuCollector(agents)
    return run, tuple(notes)


def _refuse_without_stream(objectives: Objectives, scenario: Scenario) -> None:
    """Nothing of a stream can be judged where none is asked for.

    Raises:
        ConfigError: an objective or a goodput bound is about one.
    """
    whole = {name for name in REQUEST_CLASSES if not scenario.streams(name)}
    for name, rules in objectives.by_class.items():
        for rule in rules:
            asked = {condition.metric for condition in rule.conditions} & set(STREAMED)
            if asked and (name in whole or len(whole) == len(REQUEST_CLASSES)):
                raise ConfigError(f"slo {rule.text!r}: {min(asked)} needs a stream, and answers come whole; use e2e")
    if (asked := set(scenario.goodput) & set(STREAMED)) and len(whole) == len(REQUEST_CLASSES):
        raise ConfigError(f"goodput: {min(asked)} needs a stream, and answers come whole; use e2e")


def _too_long(plan: Plan, endpoint: Endpoint) -> list[str]:
    """A note where requests do not fit the model's context."""
    if endpoint.max_model_len is None:
        return []
    tokens = plan.rows["input_tokens"] + plan.rows["output_tokens"]
    over = int((tokens > endpoint.max_model_len).sum())
    return [f"{over} requests exceed the model's context of {endpoint.max_model_len} tokens"] if over else []


def _with_served_lengths(scenario: Scenario, secrets: Secrets) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with the server's own token counts in place of `tokenizer: server`, and what they are."""
    if scenario.load.tokenizer != SERVED_TOKENIZER:
        return scenario, ()
    endpoint = check_endpoint(scenario.target, secrets)
    lengths = served_lengths(scenario.target, endpoint.base_url, endpoint.model, secrets)
    # A server that counts texts does not tell its chat template.
    template = scenario.load.template_tokens or lengths.template_tokens
    load = structs.replace(
        scenario.load, tokenizer=None, words_per_token=lengths.words_per_token, template_tokens=template
    )
    note = (
        f"by the server's tokenizer, {lengths.words_per_token:.3g} words make a token; {template} tokens are added to "
        "each prompt"
    )
    return structs.replace(scenario, load=load), (note,)


def _without_secrets(scenario: Scenario) -> Scenario:
    """The scenario as it is stored: its URLs may name users and passwords."""
    base_url = scenario.target.base_url
    target = structs.replace(scenario.target, base_url=base_url and without_userinfo(base_url))
    return structs.replace(scenario, target=target, gpu_agents=[*map(without_userinfo, scenario.gpu_agents)])
