"""The documents say what the program does: commands, flags, metrics, keys, examples."""

from pathlib import Path

import click
import msgspec
import numpy as np
import pytest

from surgeproof.columns import RecordColumns
from surgeproof.commands.main import cli
from surgeproof.loadgen.audit import audit_run
from surgeproof.records import WorkerFacts
from surgeproof.scenario import LoadConfig, Scenario, TargetConfig
from surgeproof.scenario_file import load_scenario
from surgeproof.slo.rules import METRICS, parse_objectives
from surgeproof.traces.formats import FORMATS
from tests.unit.loadgen.test_audit import columns, sample

ROOT = Path(__file__).parents[2]
DOCS = {path.name: path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
ALL = "\n".join([*DOCS.values(), (ROOT / "README.md").read_text("utf-8")])


def commands(group: click.Group, prefix: str = "surgeproof") -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        found += (
            commands(command, f"{prefix} {name}")
            if isinstance(command, click.Group)
            else [(f"{prefix} {name}", command)]
        )
    return found


@pytest.mark.parametrize(("name", "command"), commands(cli), ids=[name for name, _ in commands(cli)])
def test_every_command_and_flag_is_documented(name: str, command: click.Command) -> None:
    assert f"{name}" in DOCS["commands.md"]
    for parameter in command.params:
        for flag in parameter.opts:
            if flag.startswith("--"):
                assert flag in DOCS["commands.md"], f"{name} {flag}"


def test_every_metric_is_documented() -> None:
    for metric in METRICS:
        assert f"`{metric}`" in DOCS["metrics.md"]


@pytest.mark.parametrize("kind", [Scenario, TargetConfig, LoadConfig])
def test_every_scenario_key_is_documented(kind: type) -> None:
    for field in msgspec.structs.fields(kind):
        assert f"`{field.name}`" in DOCS["scenarios.md"], field.name


def test_every_trace_format_is_documented() -> None:
    for known in FORMATS:
        assert f"`{known.name}`" in DOCS["traces.md"]


def test_every_audit_check_is_documented() -> None:
    held = RecordColumns.of(columns(4000, cached_tokens=[0] * 4000))
    facts = (WorkerFacts(0, "host"),)
    audit = audit_run(
        held, {0: [sample()]}, facts, open_loop=True, interrupted=False, tightest_ms=None, cap=1000, fixed_lengths=True,
        shared_tokens=np.zeros(4000, dtype=np.int64),
    )  # fmt: skip
    assert len(audit.checks) == 17
    for check in audit.checks:
        assert f"`{check.name}`" in DOCS["metrics.md"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_valid_scenario(path: Path) -> None:
    scenario = load_scenario(path, {})
    assert parse_objectives(scenario.slo)


def test_the_changelog_has_the_version() -> None:
    from surgeproof import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(DOCS))
def test_links_between_documents_lead_somewhere(name: str) -> None:
    import re

    folder = next((ROOT / "docs").rglob(name)).parent
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", DOCS[name]):
        assert (folder / target).exists(), target


def test_generated_parts_are_up_to_date() -> None:
    """Help texts and benchmark figures; `make docs` rewrites them."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, page in generate.PAGES.items():
        text = (ROOT / "docs" / name).read_text("utf-8")
        assert page(text) == text, f"docs/{name} is out of date: run 'make docs'"
