"""Which part of a profile a short run plays, and that it is played as it stands in the whole."""

import msgspec
import numpy as np
import pytest

from surgeproof.errors import ConfigError
from surgeproof.scenario import LoadConfig
from surgeproof.traces.draw import from_profile
from surgeproof.traces.profile import Profile, Recording, load_profile
from surgeproof.traces.profile_part import Part, choose_part, left_out_share, part_notes, starting_at

AZURE = load_profile("azure-conv")
SPAN_S = AZURE.arrivals.span_s


def starts_of(length_s: float, seeds: int) -> np.ndarray:
    parts = [choose_part(LoadConfig(seed=seed), AZURE, length_s) for seed in range(seeds)]
    return np.array([part.start_s for part in parts if part is not None])


def test_seeds_play_parts_from_all_over_the_profile() -> None:
    """Starts of ten minutes of 58 are uniform over 0 to 48: each third holds a third of them."""
    starts = starts_of(600.0, 600)
    assert len(starts) == 600
    assert (starts % 60 == 0).all()
    assert (starts.min(), starts.max()) == (0.0, SPAN_S - 600.0)
    assert np.histogram(starts, bins=3, range=(0, SPAN_S - 540))[0] / 600 == pytest.approx([1 / 3] * 3, abs=0.07)


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_repetitions_lie_evenly_over_the_profile(seed: int) -> None:
    """Five of ten minutes have starts 49 / 5 windows apart: no minute between the first and the last is left out."""
    loads = [LoadConfig(seed=seed + number, repetition=(number, 5)) for number in range(5)]
    parts = [choose_part(load, AZURE, 600.0) for load in loads]
    starts = sorted(part.start_s for part in parts if part is not None)
    assert set(np.diff(starts)) <= {9 * 60.0, 10 * 60.0}


@pytest.mark.parametrize("length_s", [SPAN_S, SPAN_S - 30.0, 2 * SPAN_S])
def test_the_whole_profile_is_played_from_its_beginning(length_s: float) -> None:
    assert len(starts_of(length_s, 5)) == 0


def test_a_part_has_the_rates_and_the_lengths_of_its_minutes() -> None:
    part = starting_at(AZURE, 1200.0)
    assert part.arrivals.rates_per_s[:38] == AZURE.arrivals.rates_per_s[20:]
    assert part.arrivals.rates_per_s[38:] == AZURE.arrivals.rates_per_s[:20]
    at_s = np.linspace(0.0, 2000.0, 500)
    there = AZURE.draw_lengths(at_s + 1200.0, np.random.default_rng(1))
    assert (part.draw_lengths(at_s, np.random.default_rng(1)) == there).all()


def test_a_run_sends_the_traffic_of_its_window() -> None:
    """Minutes 20 to 30: as many requests as their rates give; Poisson's error of about 3,000 is 2 %."""
    traffic = from_profile(LoadConfig(profile="azure-conv", window_s=(1200.0, 1800.0)), AZURE)
    expected = sum(AZURE.arrivals.rates_per_s[20:30]) * 60
    assert len(traffic.lengths) == pytest.approx(expected, rel=0.08)
    assert traffic.intended_ns is not None
    assert traffic.intended_ns[-1] < 600e9
    assert "the window asked for plays minutes 20 to 30 of 58" in traffic.notes[0]


def test_a_window_beyond_the_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="the profile lasts 3480 s"):
        from_profile(LoadConfig(profile="azure-conv", window_s=(3480.0, 4000.0)), AZURE)


def test_equal_seeds_play_equal_traffic_and_others_do_not() -> None:
    load = LoadConfig(profile="azure-conv", duration_s=120.0, seed=4)
    one, two = from_profile(load, AZURE), from_profile(load, AZURE)
    assert one.intended_ns is not None
    assert two.intended_ns is not None
    assert one.intended_ns.tolist() == two.intended_ns.tolist()
    assert one.notes == two.notes
    assert one.notes != from_profile(msgspec.structs.replace(load, seed=5), AZURE).notes


def test_a_recording_is_played_from_its_part_on() -> None:
    """One request every 10 s with its number as its length: from 120 s on come numbers 12, 13, .."""
    steps = (0, *(10_000_000 for _ in range(29)))
    numbers = tuple(range(1, 31))
    recording = Recording(steps, numbers, numbers)
    model = msgspec.structs.replace(AZURE.arrivals, rates_per_s=(0.1,) * 5)
    held = Profile(AZURE.schema, "r", "exact", AZURE.source, model, AZURE.marks, recording)
    at_s, lengths = starting_at(held, 120.0).recorded()
    assert at_s[:2].tolist() == [0.0, 10.0]
    assert lengths[:2, 0].tolist() == [13, 14]
    assert len(lengths) == 18


def test_a_run_shorter_than_the_profiles_levels_is_told_so() -> None:
    """A rate that changes every 20 windows stays alike for longer than 5 of them; an alternating one does not."""
    slow = msgspec.structs.replace(AZURE.arrivals, rates_per_s=(*(2.0,) * 20, *(8.0,) * 20) * 2)
    fast = msgspec.structs.replace(AZURE.arrivals, rates_per_s=(2.0, 8.0) * 40)
    notes = {}
    for name, model in (("slow", slow), ("fast", fast)):
        held = msgspec.structs.replace(AZURE, arrivals=model)
        part = choose_part(LoadConfig(), held, 300.0)
        assert part is not None
        notes[name] = part_notes(LoadConfig(), held, part)
    assert any("longer than this run" in note for note in notes["slow"])
    assert len(notes["fast"]) == 1


def in_windows(rates: tuple[float, ...]) -> Profile:
    return msgspec.structs.replace(AZURE, arrivals=msgspec.structs.replace(AZURE.arrivals, rates_per_s=rates))


def test_what_is_left_out_is_what_is_due_in_busier_windows() -> None:
    """Rates of 1, 2, 1 and 4: windows 0 and 1 leave out the 4 of 8, windows 2 and 3 nothing."""
    held = in_windows((1.0, 2.0, 1.0, 4.0))
    assert left_out_share(LoadConfig(), held, Part(0.0, 120.0)) == 0.5
    assert left_out_share(LoadConfig(), held, Part(0.0, 60.0)) == 0.75
    assert left_out_share(LoadConfig(), held, Part(120.0, 120.0)) == 0.0
    assert left_out_share(LoadConfig(window_s=(0.0, 60.0)), held, Part(0.0, 60.0)) == 0.0


def test_at_a_rate_of_its_own_a_part_is_as_busy_as_its_peaks() -> None:
    """Rates of 1, 2, 3 and 6, mean 3: the first two, at the run's own mean, peak at 4/3 of it; the 6 is twice."""
    held = in_windows((1.0, 2.0, 3.0, 6.0))
    assert left_out_share(LoadConfig(request_rate=9.0), held, Part(0.0, 120.0)) == 0.5


def test_a_run_without_the_busiest_minutes_is_told_where_they_are() -> None:
    notes = part_notes(LoadConfig(), in_windows((1.0,) * 20 + (5.0,) + (1.0,) * 9), Part(0.0, 120.0))
    assert "15% of its requests are due in busier minutes" in notes[1]
    assert "--window 1140,1260" in notes[1]
