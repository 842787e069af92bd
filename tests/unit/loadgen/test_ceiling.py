"""The warning before a run that asks for more than this host was measured to do."""

from pathlib import Path

import numpy as np
import pytest

from surgeproof.errors import StoreError
from surgeproof.loadgen.ceiling import (
    Ceiling,
    StampError,
    ceiling_note,
    load_ceiling,
    save_ceiling,
)

HOST = Ceiling("2026-01-01T00:00:00+00:00", "h", 4, events_per_s=20_000.0, requests_per_s=2_000.0)


def plan(rate: float, tokens: int, seconds: int = 60) -> tuple[np.ndarray, np.ndarray]:
    count = int(rate * seconds)
    return np.linspace(0, seconds * 1e9, count, endpoint=False).astype(np.int64), np.full(count, tokens)


def test_a_plan_below_seventy_percent_is_let_be() -> None:
    """250/s x 50 = 12,500 events/s is 62.5 % of 20,000."""
    assert ceiling_note(HOST, *plan(250, 50), processes=1) is None


def test_a_plan_above_it_names_the_processes_it_needs() -> None:
    """400/s x 100 = 40,000 events/s is 200 % of one process; 200 / 70 makes three."""
    note = ceiling_note(HOST, *plan(400, 100), processes=1)
    assert note is not None
    assert "200%" in note
    assert "--processes 3" in note
    assert ceiling_note(HOST, *plan(400, 100), processes=3) is None


def test_more_than_the_host_can_do_needs_more_hosts() -> None:
    note = ceiling_note(HOST, *plan(1000, 100), processes=4)
    assert note is not None
    assert "more hosts" in note


def test_the_busiest_ten_seconds_decide() -> None:
    """60 requests/s on average, but all of a minute's within ten seconds: 36,000 events/s."""
    times, tokens = plan(360, 100, seconds=10)
    note = ceiling_note(HOST, np.append(times, 60_000_000_000), np.append(tokens, 1), processes=1)
    assert note is not None
    assert "36000 events/s" in note


def test_a_closed_loop_has_no_planned_rate() -> None:
    assert ceiling_note(HOST, np.full(10, -1), np.full(10, 10**6), processes=1) is None


def test_figures_hold_for_their_host_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert load_ceiling() is None
    monkeypatch.setattr("platform.node", lambda: "h")
    held = Ceiling("t", "h", 4, 1.0, 2.0, (StampError(50.0, 0.1, 0.5),))
    assert save_ceiling(held) == tmp_path / "surgeproof" / "calibration.json"
    assert load_ceiling() == held
    monkeypatch.setattr("platform.node", lambda: "other")
    assert load_ceiling() is None
    (tmp_path / "surgeproof" / "calibration.json").write_text("{")
    assert load_ceiling() is None


def test_without_a_home_folder_nothing_is_known_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without a name and without HOME, as containers run with."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", home)
    assert load_ceiling() is None
    with pytest.raises(StoreError, match="set XDG_STATE_HOME"):
        save_ceiling(Ceiling("now", "host", 1, 1.0, 1.0, ()))
