"""docs/errors.md holds every sentence that the code can raise for a mistake, and no other one."""

import ast
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from surgeproof.commands.main import cli
from surgeproof.errors import SurgeproofError
from surgeproof.slo.failures import WAYS_OUT

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks", "ci", "commands", "gpu", "loadgen", "runs", "sandbox", "slo", "storage", "surgeproof", "traces",
    "webui",
)  # fmt: skip
ERRORS = {
    "BadValueError", "ConfigError", "DatabaseUnusableError", "EndpointError", "RuleError", "RunBrokenError",
    "StoreError", "TraceError", "UsageError",
}  # fmt: skip
ROW = re.compile(
    r"^\| (?P<fence>`+) ?(?P<sentence>.+?) ?(?P=fence) \| (?P<cause>.+) \| (?P<remedy>.+) \|$", re.MULTILINE
)
PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
ROWS = {row["sentence"].replace("\\|", "|"): (row["cause"], row["remedy"]) for row in ROW.finditer(PAGE)}


def template(node: ast.expr) -> str:
    """A text as it is written, with a dot for every value that is put in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "…"


def sentences(path: Path) -> Iterator[str]:
    """What a module raises, rejects a flag with, or finds wrong with a scenario."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        said: ast.expr | None = None
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            if node.exc.func.id in ERRORS and node.exc.args:
                said = node.exc.args[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fail":
            said = node.args[0]
        elif isinstance(node, ast.Yield) and path.stem == "scenario_checks":
            said = node.value
        if said is not None:
            text = " ".join(template(said).split())
            if any(char.isalpha() for char in text):
                yield text


RAISED = {text for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") for text in sentences(path)}


def test_every_sentence_is_on_the_page_with_cause_and_way_out() -> None:
    assert sorted(RAISED - set(ROWS)) == []


def test_the_page_holds_no_sentence_that_nobody_says() -> None:
    assert sorted(set(ROWS) - RAISED) == []
    with_cause = [line for line in PAGE.splitlines() if line.count(" | ") == 2 and line.startswith("| `")]
    assert len(ROWS) == len(with_cause), "a row of the page cannot be read"


def test_the_ways_out_of_failed_requests_are_on_the_page() -> None:
    for _, _, remedy in WAYS_OUT:
        assert remedy in PAGE.replace("`", ""), remedy


NO_LOAD = ("run", "--base-url", "http://127.0.0.1:9/v1")
LOAD = (*NO_LOAD, "--request-rate", "1", "--duration", "1s")
MISTAKES: tuple[tuple[str, ...], ...] = (
    ("examples", "nothing"),
    ("slo", "plan", "slo.yaml", "--rate", "1", "--run", "1", "--profile", "azure-conv"),
    (*LOAD, "--classes", "P0"),
    (*LOAD, "--header", "secret"),
    (*LOAD, "--header", "a b=c"),
    (*LOAD, "--header", "Content-Length=1"),
    (*LOAD, "--junit", "/no/such/folder/x.xml"),
    (*LOAD, "--extra-body", "[]"),
    ("compare", "1"),
    ("compare", "1", "2", "--p99-rise", "fast"),
    (*NO_LOAD, "--request-rate", "fast", "--duration", "1s"),
    (*NO_LOAD, "--concurrency", "2,x", "--num-prompts", "1"),
    (*NO_LOAD, "--concurrency", "2,2", "--num-prompts", "1"),
    (*NO_LOAD, "--concurrency", "2"),
    NO_LOAD,
    (*NO_LOAD, "--request-rate", "1"),
    (*NO_LOAD, "--request-rate", "1", "--duration", "soon"),
    (*NO_LOAD, "--request-rate", "1", "--duration", "7d"),
    (*NO_LOAD, "--arrivals", "exact", "--duration", "1s"),
    (*LOAD, "--window", "5,1"),
    (*LOAD, "--seed", "-1"),
    (*LOAD, "--processes", "0"),
    (*LOAD, "--slo", "bad.yaml"),
    (*LOAD, "--goodput", "ttft:fast"),
    (*LOAD, "--tokenizer", "nowhere.json"),
    (*LOAD, "--db", "nonsense"),
    (*LOAD, "--db", "sqlite:////no/such/folder/x.db"),
    (*LOAD, "--db", "mysql://h/x"),
    (*LOAD, "nowhere.yaml"),
    (*LOAD, "one.yaml", "two.yaml"),
    (*LOAD, "twice.yaml"),
    (*LOAD, "typo.yaml"),
    LOAD,
    ("run", "--base-url", "ftp://h/v1", "--request-rate", "1", "--duration", "1s"),
    ("run", "--base-url", "http://h/v1?x=1", "--request-rate", "1", "--duration", "1s"),
    ("run", "--base-url", "http://no-such-host.invalid/v1", "--model", "m", "--request-rate", "1", "--duration", "1s"),
    ("runs", "list"),
    ("runs", "list", "--db", "sqlite:///foreign.db"),
    ("runs", "list", "--db", "sqlite:///bad.yaml"),
    ("runs", "prune"),
    ("runs", "tag", "1", "nothing"),
    ("traces", "inspect", "nowhere.csv"),
    ("traces", "inspect", "empty"),
    ("traces", "inspect", "bad.yaml"),
    ("traces", "inspect", "bad.jsonl"),
    ("traces", "inspect", "seconds.jsonl"),
    ("traces", "fit", "short.jsonl", "-o", "x.json"),
    ("sim", "--inject", "flood=0.5"),
)


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_answered_by_a_sentence_of_the_page(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with some files that are wrong; nothing listens at the endpoint."""
    monkeypatch.chdir(tmp_path)
    row = '{"timestamp": %s, "input_length": 1, "output_length": 1}\n'
    for name, text in {
        "empty": "", "bad.yaml": "['tftt p99 < 1s']", "slo.yaml": "['ttft p99 < 1s']",
        "twice.yaml": "load: {seed: 1}\nload: {seed: 2}", "typo.yaml": "lod: {}",
        "bad.jsonl": row % 0 + '{"timestamp": 1}', "seconds.jsonl": "".join(row % (i / 8) for i in range(9)),
        "short.jsonl": row % 0 + row % 1000,
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    with sqlite3.connect("foreign.db") as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises((SurgeproofError, click.ClickException)) as caught:
        cli.main(args=list(arguments), standalone_mode=False)
    exc = caught.value
    assert getattr(exc, "exit_code", 2) == 2
    said = " ".join((exc.message if isinstance(exc, click.ClickException) else str(exc)).split())
    forms = (".*".join(re.escape(part.strip()) for part in sentence.split("…")) for sentence in ROWS)
    assert any(re.search(form, said) for form in forms if len(form) > 12), said
