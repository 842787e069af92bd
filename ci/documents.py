"""Runs and results as plain JSON data, the forms that `--json` prints."""

from typing import Any

from surgeproof.results import Run, RunHead, RunResult
from surgeproof.strict_json import plain


def runs_document(heads: list[RunHead]) -> list[dict[str, Any]]:
    """The list of runs."""
    return [plain(head) for head in heads]


def run_document(run: Run) -> dict[str, Any]:
    """One stored run; bounds of verdicts are `interval_low` and `interval_high`."""
    document: dict[str, Any] = plain(run)
    for verdict in document["verdicts"]:
        interval = verdict.pop("interval")
        verdict |= {"interval_low": interval["low"], "interval_high": interval["high"]}
    return document


def result_document(result: RunResult) -> dict[str, Any]:
    """Verdict, exit code, objectives and audit; the run's figures are those of `run_document`."""
    return {
        "run": result.run_id,
        "verdict": plain(result.verdict),
        "exit_code": int(result.exit_code),
        "verdicts": plain(result.verdicts),
        "audit": plain(result.audit),
    }
