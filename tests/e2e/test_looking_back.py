"""Commands on stored runs, as a user types them."""

import csv
import json
import sqlite3
from pathlib import Path

import pytest

from surgeproof.sandbox.sim_process import SimProcess
from tests.e2e.test_run import rows, surgeproof


@pytest.fixture(scope="module")
def folder(sim: SimProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of one name and load; the last one's endpoint gives longer answers."""
    path = tmp_path_factory.mktemp("runs")
    # A closed loop has no schedule to be late for, so that a busy machine voids nothing.
    (path / "v1.yaml").write_text("name: nightly\nslo: ['ttft p50 < 60s']")
    (path / "v2.yaml").write_text("name: nightly\nslo: ['ttft p50 < 60s']\ntarget: {extra_body: {max_tokens: 40}}")
    for number in range(4):
        version = "v2" if number == 3 else "v1"
        result = surgeproof(
            "run", f"{version}.yaml", "--base-url", sim.base_url, "--concurrency", "16", "--num-prompts", "320",
            "--input-len", "20", "--output-len", "5", "--metadata", f"image={version}", cwd=path,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
    return path


def test_compare_finds_what_changed_and_its_exit_says_so(folder: Path) -> None:
    """Forty milliseconds more; on a busy machine, whose requests wait together, they may be too few to tell."""
    result = surgeproof("compare", "1", "4", cwd=folder)
    told = {3: "worse than accepted: all e2e", 4: "not shown to be within the accepted margin: all "}
    assert told[result.returncode] in result.stdout, result.stdout + result.stderr
    found = json.loads(surgeproof("compare", "1", "2", "4", "--json", cwd=folder).stdout)
    assert [pair["after"] for pair in found] == [2, 4]
    deciding = {d["metric"]: d["verdict"] for d in found[1]["differences"] if d["verdict"]}
    assert {verdict for metric, verdict in deciding.items() if metric.startswith("e2e")} & {"FAIL", "INCONCLUSIVE"}
    assert surgeproof("compare", "1", "2", "--p99-rise", "fast", cwd=folder).returncode == 2
    assert surgeproof("compare", "1", cwd=folder).returncode == 2


def test_a_gate_writes_what_pipelines_read(folder: Path) -> None:
    result = surgeproof("gate", "1", "--json", "--junit", "slo.xml", "--markdown", "slo.md", cwd=folder)
    found = json.loads(result.stdout)
    assert (found["run"], found["exit_code"]) == (1, result.returncode)
    assert 'name="ttft p50 &lt; 60s"' in (folder / "slo.xml").read_text()
    assert (folder / "slo.md").read_text().startswith(f"## Run 1: {found['verdict']} (exit {result.returncode})")


def test_a_gate_refuses_objectives_that_are_none(folder: Path) -> None:
    (folder / "none.yaml").write_text("P0: []")
    (folder / "typo.yaml").write_text("PO: ['ttft p99 < 2s']")
    for name, told in (("none.yaml", "slo of P0 has no rule"), ("typo.yaml", "unknown class 'PO'")):
        refused = surgeproof("gate", "1", "--slo", name, cwd=folder)
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
    mistyped = surgeproof("gate", "1", "--db", "sqlite:///typo.db", cwd=folder)
    assert (mistyped.returncode, "no database at typo.db" in mistyped.stderr) == (2, True)


def test_baseline_alarms_and_names_the_changed_tag(folder: Path) -> None:
    with_changes = surgeproof("baseline", "4", "--json", cwd=folder)
    report = json.loads(with_changes.stdout)
    assert report["runs"] == [3, 2, 1]
    alarms = {d["metric"] for d in report["deviations"] if d["alarm"]}
    assert "e2e mean, ms" in alarms
    assert with_changes.returncode == 3
    assert "tag image is v2, it was v1" in report["explanations"]
    few = surgeproof("baseline", "2", cwd=folder)
    assert few.returncode == 2
    assert "three are needed" in few.stderr


def test_decide_and_breaker_answer(folder: Path) -> None:
    result = surgeproof("decide", "1", "--baseline", "2", cwd=folder)
    assert result.returncode in (0, 4)
    assert result.stdout.startswith(("promote: ", "hold: "))
    assert "suggested threshold" in surgeproof("breaker", "1", cwd=folder).stdout


def test_runs_are_exported_in_every_form_and_imported(folder: Path) -> None:
    for name in ("r.jsonl", "r.csv", "r.parquet", "r.json"):
        result = surgeproof("runs", "export", "1", "-o", name, cwd=folder)
        assert result.returncode == 0, result.stderr
    with (folder / "r.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 320
    assert {row["outcome"] for row in table} == {"ok"}
    import pandas as pd

    assert len(pd.read_parquet(folder / "r.parquet")) == 320
    result = surgeproof("runs", "import", "r.jsonl", "--db", "sqlite:///copy.db", cwd=folder)
    assert "Imported as run 1." in result.stdout, result.stderr
    shown = [json.loads(surgeproof("runs", "show", "1", "--json", "--db", db, cwd=folder).stdout)
             for db in ("sqlite:///surgeproof.db", "sqlite:///copy.db")]  # fmt: skip
    assert shown[0] == shown[1]
    assert surgeproof("runs", "export", "1", "-o", "r.xml", cwd=folder).returncode == 2


def test_the_vllm_file_has_its_names_and_figures(folder: Path) -> None:
    """As `bench serve --save-result` writes them; figures recomputed from the lists in it."""
    surgeproof("runs", "export", "1", "-o", "v.json", cwd=folder)
    found = json.loads((folder / "v.json").read_text())
    assert found["completed"] == len(found["ttfts"]) == len(found["itls"]) == 320
    assert found["mean_ttft_ms"] == pytest.approx(1000 * sum(found["ttfts"]) / 320)
    assert found["request_throughput"] == pytest.approx(320 / found["duration"])
    assert found["total_token_throughput"] == pytest.approx(
        (found["total_input_tokens"] + found["total_output_tokens"]) / found["duration"]
    )
    gaps = sorted(gap for of in found["itls"] for gap in of)
    assert found["median_itl_ms"] == pytest.approx(1000 * gaps[-(-len(gaps) // 2) - 1])
    names = {
        f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")
    }
    assert names <= found.keys()


def test_tags_deletion_and_pruning(folder: Path) -> None:
    import shutil

    shutil.copy(folder / "surgeproof.db", folder / "own.db")
    db = ("--db", "sqlite:///own.db")
    assert "image=v9" in surgeproof("runs", "tag", "1", "image=v9", *db, cwd=folder).stdout
    assert surgeproof("runs", "delete", "2", "77", *db, cwd=folder).returncode == 2
    assert "would be deleted" in surgeproof("runs", "prune", "--max-size", "1KB", "--dry-run", *db, cwd=folder).stdout
    assert surgeproof("runs", "prune", *db, cwd=folder).returncode == 2
    assert "3 runs deleted: 1, 3, 4" in surgeproof("runs", "prune", "--max-size", "1KB", *db, cwd=folder).stdout
    assert rows(folder / "own.db", "SELECT count(*) FROM records") == [(0,)]


def test_a_run_that_has_not_ended_is_neither_deleted_nor_let_through(folder: Path) -> None:
    import shutil

    shutil.copy(folder / "surgeproof.db", folder / "odd.db")
    with sqlite3.connect(folder / "odd.db") as connection:
        connection.execute("UPDATE runs SET state = 'running', ended_at_ns = NULL WHERE id = 1")
        connection.execute("UPDATE runs SET state = 'interrupted', exit_code = 130 WHERE id = 2")
        ((uid,),) = connection.execute("SELECT uid FROM runs WHERE id = 1")
    (folder / "odd.db.spool" / uid).mkdir(parents=True)
    (folder / "odd.db.spool" / uid / "run.json").touch()
    db = ("--db", "sqlite:///odd.db")
    refused = surgeproof("runs", "delete", "1", *db, cwd=folder)
    assert (refused.returncode, "run 1 has not ended" in refused.stderr) == (2, True)
    stopped = surgeproof("gate", "2", *db, cwd=folder)
    assert stopped.returncode not in (0, 3, 4), stopped.stdout
    held = surgeproof("decide", "2", *db, cwd=folder)
    assert (held.returncode, "hold: the run is interrupted" in held.stdout) == (4, True)
    assert surgeproof("decide", "3", "--baseline", "2", *db, cwd=folder).returncode == 2


def test_slo_plan_and_presets(tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text("['ttft p99 < 1s', 'success >= 99.99%']")
    found = json.loads(surgeproof("slo", "plan", "slo.yaml", "--rate", "10", "--json", cwd=tmp_path).stdout)
    assert [need["at_best"] for need in found] == [299, 29_956]
    assert "mlperf-llama2-70b" in surgeproof("slo", "presets", cwd=tmp_path).stdout
    assert surgeproof("slo", "plan", "preset:nonsense", cwd=tmp_path).returncode == 2
