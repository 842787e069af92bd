"""`slo plan` from a profile, and from a run that is stored."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from surgeproof.commands.main import cli
from surgeproof.errors import ConfigError
from surgeproof.runs.run_length import needs_after_run, needs_of_profile
from surgeproof.slo.rules import parse_objectives
from surgeproof.storage.store import Store
from tests.integration.storage.examples import RUN, record, run_end

RULES = parse_objectives({"all": ("ttft p95 < 500ms",), "P0": ("ttft p95 < 500ms",)})
START_NS = 1_800_000_000_000_000_000


def stored(db_url: str, slow_in_a_row: int) -> int:
    """3,000 requests at 10/s of which one in ten is slow, as many in a row as asked for."""
    store = Store(db_url)
    run_id = store.create_run(RUN)
    batch = []
    for index in range(3000):
        due_ns = START_NS + index * 100_000_000
        ttft_ms = 400 if index % (10 * slow_in_a_row) < slow_in_a_row else 200
        times = {"intended_at_ns": due_ns, "sent_at_ns": due_ns, "first_token_at_ns": due_ns + ttft_ms * 1_000_000}
        batch.append(record(index, request_class="P0" if index % 2 else "P1", **times))
    store.add_records(run_id, batch)
    store.finish_run(run_id, run_end(), [])
    store.close()
    return run_id


def test_a_run_tells_how_alike_its_requests_were(tmp_path: Path) -> None:
    """Slow ones that come 20 in a row say as much as a few; the rate and the shares are the run's own."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    spread, clustered = stored(url, 1), stored(f"sqlite:///{tmp_path / 'b.db'}", 20)
    whole, p0 = needs_after_run(RULES, url, spread, None)
    assert (whole.intervals, whole.at_best) == (59, 59)
    assert p0.minutes == pytest.approx(2 * (whole.minutes or 0), abs=0.1), "half of the requests are P0"
    whole, _ = needs_after_run(RULES, f"sqlite:///{tmp_path / 'b.db'}", clustered, None)
    assert whole.at_best > 5 * 59
    faster, _ = needs_after_run(RULES, f"sqlite:///{tmp_path / 'b.db'}", clustered, 20.0)
    assert faster.at_best == pytest.approx(2 * whole.at_best, rel=0.2), "twice as many in the same time"


def test_a_profile_needs_more_requests_than_independent_ones_do() -> None:
    """azure-conv's waits are alike over tens of seconds; half of the rate has half as many requests in that time."""
    whole, half = needs_of_profile(RULES, "azure-conv", None, {"P0": 1.0, "P1": 1.0})
    assert (whole.intervals, half.intervals) == (59, 59)
    assert whole.at_best > 20 * 59
    assert half.at_best == pytest.approx(whole.at_best / 2, rel=0.05)
    assert whole.correlation_s == half.correlation_s
    assert whole.minutes == pytest.approx(half.minutes, rel=0.05)


def test_the_command_prints_them_and_takes_one_source(tmp_path: Path) -> None:
    rules = tmp_path / "slo.yaml"
    rules.write_text("all: ['ttft p95 < 500ms']")
    result = CliRunner().invoke(cli, ["slo", "plan", str(rules), "--profile", "azure-conv", "--json"])
    (need,) = json.loads(result.stdout)
    assert need["intervals"] == 59
    assert need["correlation_s"] > 5
    refused = CliRunner().invoke(cli, ["slo", "plan", str(rules), "--profile", "azure-conv", "--run", "1"])
    assert isinstance(refused.exception, ConfigError)
    missing = CliRunner().invoke(
        cli, ["slo", "plan", str(rules), "--run", "1", "--db", f"sqlite:///{tmp_path / 'no.db'}"]
    )
    assert missing.exception is not None
    assert "no.db" in str(missing.exception)
