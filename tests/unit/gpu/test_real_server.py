"""The estimator beside counters of a real server: `transformers serve`, 2.9 billion parameters in bf16, on an H200.

Its runs are kept as exports, with the agent's raw samples: 1, 8, 32 and 16 users in a closed loop.
"""

import gzip
from pathlib import Path

import pytest

from surgeproof.runs.gpu_estimate import estimate_run, estimate_target, fit_estimator
from surgeproof.storage.archive import import_lines
from surgeproof.storage.store import Store

DATA = Path(__file__).parent / "data"
OF = estimate_target("H200", DATA / "h200_transformers_serve_config.json", None, None, 1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path}/h200.db"
    store = Store(found)
    for users in (1, 8, 32, 16):
        text = gzip.decompress((DATA / f"h200_transformers_serve_{users}_users.jsonl.gz").read_bytes()).decode()
        import_lines(store, text.splitlines())
    return found


def test_an_engine_that_wastes_work_is_above_the_estimate(url: str) -> None:
    for run_id in (1, 2, 3, 4):
        whole = estimate_run(url, run_id, OF)[-1]
        assert whole.sm_pct < whole.sm_counted
        assert whole.dram_pct < whole.dram_counted
        assert whole.limit in ("host", "load")


def test_a_calibration_serves_a_run_that_it_has_not_seen(url: str) -> None:
    """Fitted to 1, 8 and 32 users, judged on 16: nearer than before, and the counters lie in its intervals."""
    before = estimate_run(url, 4, OF)[-1]
    fit_estimator(url, (1, 2, 3), OF)
    after = estimate_run(url, 4, OF)[-1]
    assert (before.calibrated, after.calibrated) == (False, True)
    for name in ("sm", "dram"):
        counted = getattr(after, f"{name}_counted")
        assert getattr(after, f"{name}_low") <= counted <= getattr(after, f"{name}_high")
        assert abs(getattr(after, f"{name}_pct") - counted) < abs(getattr(before, f"{name}_pct") - counted)
