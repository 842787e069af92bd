"""What the requests of a plan ask, class by class: lengths, datasets and models of a class's own, and of all others."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import ConfigError
from surgeproof.loadgen.plan import Plan, with_contents
from surgeproof.loadgen.request_form import items_of, misfit
from surgeproof.records import REQUEST_CLASSES
from surgeproof.runs.token_count import counter_of
from surgeproof.scenario import ClassWork, Scenario, is_text_file
from surgeproof.traces.dataset import Prompts, choose_prompts, cut_text

Ints = npt.NDArray[np.int64]


class _Content(NamedTuple):
    """Rows of datasets, and which of them each request asks; -1 for none."""

    rows: list[bytes]
    of_request: Ints


def with_class_work(plan: Plan, scenario: Scenario) -> tuple[Plan, list[str]]:
    """The plan with what each class asks, and notes for the user.

    Raises:
        ConfigError: a dataset's rows are of another form than the endpoint takes.
        TraceError: a dataset cannot be read.
    """
    load = scenario.load
    content, notes = _Content([], np.full(len(plan), -1, dtype=np.int64)), list[str]()
    models = [*(scenario.target.models or {"": 1.0}), *load.models_of_classes()]
    for name, work in load.by_class.items():
        if work.model is not None:
            plan.rows["model"][plan.rows["request_class"] == REQUEST_CLASSES.index(name)] = models.index(work.model)
    if plan.steps is not None and load.plays_tasks:
        # What conversations and tasks ask is planned with them.
        _set_lengths(plan, load.by_class, "output_len", "output_tokens")
        return plan, notes
    _set_lengths(plan, load.by_class, "input_len", "input_tokens")
    # Which requests ask the rows of the dataset that all classes share.
    shares = np.ones(len(plan), dtype=np.bool_)
    for name, work in load.by_class.items():
        places = np.flatnonzero(plan.rows["request_class"] == REQUEST_CLASSES.index(name))
        if work.dataset is not None or work.input_len is not None:
            shares[places] = False
        if work.dataset is not None and len(places):
            prompts = _prompts(
                scenario, work.dataset, work.dataset_column, plan.rows["input_tokens"][places],
                scenario.endpoint_of(name),
            )  # fmt: skip
            notes += _notes(prompts, len(places), f"dataset of {name}")
            _ask(plan, places, prompts, content)
    others = np.flatnonzero(shares)
    if load.dataset is not None and len(others):
        lengths = plan.rows["input_tokens"][others]
        prompts = _prompts(scenario, load.dataset, load.dataset_column, lengths, scenario.target.endpoint)
        notes += _notes(prompts, len(others), "dataset")
        _ask(plan, others, prompts, content)
    # The rows' own limits of the answer give way to those of their class.
    _set_lengths(plan, load.by_class, "output_len", "output_tokens")
    if content.rows:
        plan.rows["cached_tokens"][content.of_request >= 0] = 0
        plan = with_contents(plan, content.rows, content.of_request)
    return plan, notes


def _set_lengths(plan: Plan, by_class: Mapping[str, ClassWork], key: str, column: str) -> None:
    """Write the lengths that classes name for themselves into a column of the plan."""
    for name, work in by_class.items():
        if (length := getattr(work, key)) is not None:
            plan.rows[column][plan.rows["request_class"] == REQUEST_CLASSES.index(name)] = length


def _ask(plan: Plan, places: Ints, prompts: Prompts, content: _Content) -> None:
    """Let the requests at some places ask the rows, in order and from the first again."""
    chosen = np.arange(len(places)) % len(prompts.rows)
    content.of_request[places] = len(content.rows) + chosen
    content.rows.extend(msgspec.json.encode(row.content) for row in prompts.rows)
    plan.rows["items"][places] = np.array([items_of(row.content) for row in prompts.rows])[chosen]
    plan.rows["input_tokens"][places] = np.array([row.input_tokens for row in prompts.rows])[chosen]
    outputs = np.array([row.output_tokens or 0 for row in prompts.rows])[chosen]
    plan.rows["output_tokens"][places] = np.where(outputs > 0, outputs, plan.rows["output_tokens"][places])


def _prompts(scenario: Scenario, dataset: str, column: str | None, lengths: Ints, endpoint: str) -> Prompts:
    """Rows for as many requests to an API as there are planned lengths; a text is cut to these."""
    load = scenario.load
    count_tokens = counter_of(load)
    if is_text_file(dataset):
        return cut_text(Path(dataset), lengths.tolist(), count_tokens, load.seed)
    prompts = choose_prompts(
        Path(dataset),
        len(lengths),
        column=column,
        shuffle_seed=load.seed if load.dataset_order == "shuffle" else None,
        count_tokens=count_tokens,
        skip_invalid=load.skip_invalid,
    )
    for row in prompts.rows:
        if (problem := misfit(endpoint, row.content)) is not None:
            raise ConfigError(f"{row.place} {problem}")
    return prompts


def _notes(prompts: Prompts, count: int, of: str) -> list[str]:
    notes = [f"{of}: {number} rows left out as {reason}" for reason, number in prompts.dropped.items()]
    if len(prompts.rows) < count:
        notes.append(
            f"{of}: {len(prompts.rows)} rows for {count} requests: prompts repeat, and a prefix cache may serve them"
        )
    return notes
