"""`run --repeat`: several runs of one scenario, judged together, and what may not be."""

import json
from pathlib import Path

import pytest

from tests.e2e.test_run import rows, surgeproof
from tests.e2e.test_slow_servers import server

LOAD = ("--request-rate", "20", "--duration", "4s", "--input-len", "20", "--output-len", "5")


@pytest.mark.faults
def test_repetitions_are_stored_one_by_one_and_judged_together(tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text("['success >= 97%']")
    with server(lambda: 0.01) as url:
        flags = ("--base-url", url, *LOAD, "--slo", "slo.yaml", "--json")
        result = surgeproof("run", *flags, "--repeat", "3", cwd=tmp_path)
        other = surgeproof("run", *flags, "--seed", "9", "--request-rate", "5", cwd=tmp_path)
    found = json.loads(result.stdout)
    assert found["repetitions"] == [1, 2, 3]
    sent = [row[0] for row in rows(tmp_path / "surgeproof.db", "SELECT count(*) FROM records GROUP BY run_id")]
    assert found["verdicts"][0]["n"] == sum(sent[:3])
    assert [row[0] for row in rows(tmp_path / "surgeproof.db", "SELECT seed FROM plans ORDER BY run_id")][:3] == [
        1,
        2,
        3,
    ]
    again = surgeproof("gate", "1", "2", "3", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["verdicts"] == found["verdicts"]
    assert again.returncode == result.returncode
    assert other.returncode in (0, 4, 5)
    refused = surgeproof("gate", "1", "4", cwd=tmp_path)
    assert refused.returncode == 2
    assert "runs 1 and 4 are no repetitions of one scenario" in refused.stderr


def test_repetitions_of_one_seed_are_refused(tmp_path: Path) -> None:
    with server(lambda: 0.01) as url:
        for _ in range(2):
            surgeproof("run", "--base-url", url, *LOAD, cwd=tmp_path)
    refused = surgeproof("gate", "1", "2", cwd=tmp_path)
    assert refused.returncode == 2
    assert "sent the same plan" in refused.stderr
