"""Runs and results as plain JSON data, the forms that `--json` prints."""

from surgeproof.results import RunResult
from surgeproof.stored_runs import Run, RunHead
from surgeproof.strict_json import JsonObject, plain


def runs_document(heads: list[RunHead]) -> list[JsonObject]:
    """The list of runs."""
    return [plain(head) for head in heads]


def run_document(run: Run) -> JsonObject:
    """One stored run; bounds of verdicts are `interval_low` and `interval_high`."""
    document: JsonObject = plain(run)
    for verdict in document["verdicts"]:
        interval = verdict.pop("interval")
        verdict |= {"interval_low": interval["low"], "interval_high": interval["high"]}
    return document


def result_document(result: RunResult) -> JsonObject:
    """Verdict, exit code, objectives and audit; the run's figures are those of `run_document`."""
    return {
        "run": result.run_id,
        **({"repetitions": list(result.repetitions)} if result.repetitions else {}),
        "verdict": plain(result.verdict),
        "exit_code": int(result.exit_code),
        "verdicts": plain(result.verdicts),
        "audit": plain(result.audit),
    }
