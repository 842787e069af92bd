"""A fitted profile: numbers from which traffic like a trace's can be made, small enough to share.

It holds rates by coarse window, the modulator, the gaps' shape, and lengths as classes whose mix
follows the window: arrivals and lengths drift together in real traffic. It holds no prompt and no
user. `fit` makes it, `draw` generates traffic from it.
"""

from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import TraceError

SCHEMA = "surgeproof.profile/2"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the numbers come from."""

    file: str
    sha256: str
    rows: int
    span_s: float
    dropped: dict[str, int] = {}
    clock_grid_s: float | None = None
    dequantised: bool = False
    licence: str | None = None
    citation: str | None = None


class ModulatorFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gamma autoregression: variance 1/a, correlation rho a fine window, z of the test that asked for it."""

    a: float
    rho: float
    z: float


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When requests come.

    Attributes:
        coarse_window_s: length of a window of `rates_per_s`.
        rates_per_s: one rate a coarse window.
        shrink: factor by which the rates were pulled towards their mean.
        fine_window_s: step of the modulator.
        modulator: bursts beyond the rates; None where a test found none.
        gap_shape: k of the Gamma gaps in operational time.
        gate_z: the over-dispersion test's value whether or not it passed.
        gap_quantiles: evenly spaced quantiles of the trace's own unit-mean gaps, used in place of
            Gamma(k) where they were asked for.
    """

    coarse_window_s: float
    rates_per_s: tuple[float, ...]
    shrink: float
    fine_window_s: float
    modulator: ModulatorFit | None
    gap_shape: float
    gate_z: float
    gap_quantiles: tuple[float, ...] | None = None

    @property
    def span_s(self) -> float:
        """Length of the rate series, seconds."""
        return len(self.rates_per_s) * self.coarse_window_s

    @property
    def mean_rate_per_s(self) -> float:
        """Requests a second over the whole series."""
        return float(np.mean(self.rates_per_s))


Cell = tuple[int, int, int, int, int]
"""Smallest and largest input, smallest and largest output, number of requests."""


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long requests are: a two-dimensional histogram for each class, and each window's mix of classes.

    `rows` names the row of `mix` that holds in each window, where it is not the window's own.
    """

    classes: tuple[tuple[Cell, ...], ...]
    mix: tuple[tuple[float, ...], ...]
    rows: tuple[int, ...] | None = None


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests themselves, for kind `exact`: steps of time in microseconds, lengths in tokens."""

    steps_us: tuple[int, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


KINDS = ("pgar", "poisson", "gamma", "exact")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted profile.

    Attributes:
        kind: `pgar`; `poisson` and `gamma` are its special cases of one rate and no modulator;
            `exact` is the recording itself, with rates for reference.
    """

    schema: str
    name: str
    kind: Literal["pgar", "poisson", "gamma", "exact"]
    source: Source
    arrivals: Arrivals
    marks: Marks
    recording: Recording | None = None

    def recorded(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Times in seconds and (input, output) tokens of an exact profile."""
        assert self.recording is not None, "only a profile of kind exact holds a recording"
        at_s = np.cumsum(np.array(self.recording.steps_us, dtype=np.int64)) / 1e6
        return at_s, np.column_stack((self.recording.input_tokens, self.recording.output_tokens)).astype(np.int64)

    def draw_lengths(self, at_s: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Input and output tokens for requests at given times of the profile; shape (n, 2)."""
        mix = np.array(self.marks.mix)
        rows = np.array(self.marks.rows if self.marks.rows is not None else range(len(mix)))
        windows = rows[np.minimum((at_s / self.arrivals.coarse_window_s).astype(np.int64), len(rows) - 1)]
        chosen = (rng.random(len(at_s))[:, None] > np.cumsum(mix, axis=1)[windows]).sum(axis=1)
        chosen = np.minimum(chosen, len(self.marks.classes) - 1)
        out = np.zeros((len(at_s), 2), dtype=np.int64)
        for number, cells in enumerate(self.marks.classes):
            mine = np.flatnonzero(chosen == number)
            if len(mine):
                table = np.array(cells, dtype=np.int64)
                cell = table[rng.choice(len(table), size=len(mine), p=table[:, 4] / table[:, 4].sum())]
                out[mine, 0] = rng.integers(cell[:, 0], cell[:, 1], endpoint=True)
                out[mine, 1] = rng.integers(cell[:, 2], cell[:, 3], endpoint=True)
        return out


def load_profile(name: str) -> Profile:
    """Read a bundled profile by name, or a file.

    Raises:
        TraceError: it is neither, or is no profile of this version.
    """
    bundled = files("surgeproof.traces").joinpath("profiles", f"{name}.json")
    path = Path(name)
    try:
        data = bundled.read_bytes() if bundled.is_file() else path.read_bytes()
    except OSError as exc:
        known = ", ".join(bundled_profiles())
        raise TraceError(f"no profile {name!r}: {exc.strerror}; bundled are {known}") from exc
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.MsgspecError as exc:
        if SCHEMA.encode() not in data[:4096]:
            raise TraceError(f"profile {name} does not have schema {SCHEMA!r}: fit it again with this version") from exc
        raise TraceError(f"profile {name}: {exc}") from exc
    if profile.schema != SCHEMA:
        raise TraceError(f"profile {name}: schema {profile.schema!r}; this version reads {SCHEMA!r}")
    for problem in _problems(profile):
        raise TraceError(f"profile {name} cannot be used: {problem}")
    return profile


_MAX_VALUE = 2**53


def _problems(profile: Profile) -> list[str]:
    """Every reason why a profile cannot be used."""
    model, marks, recording = profile.arrivals, profile.marks, profile.recording
    rates = np.array(model.rates_per_s, dtype=np.float64)
    windows = (model.coarse_window_s, model.fine_window_s, model.gap_shape)
    modulator = model.modulator
    cells = [cell for cells in marks.classes for cell in cells]
    rows = marks.rows if marks.rows is not None else range(len(marks.mix))
    checks = {
        "rates_per_s must be finite, not negative, and not all 0": bool(
            len(rates) and np.isfinite(rates).all() and (rates >= 0).all() and rates.sum() > 0
        ),
        "coarse_window_s, fine_window_s and gap_shape must be above 0": all(0 < value < np.inf for value in windows),
        "the modulator needs a > 0 and 0 <= rho < 1": modulator is None
        or (0 < modulator.a < np.inf and 0 <= modulator.rho < 1),
        "an exact profile needs its recording": profile.kind != "exact"
        or (recording is not None and len(recording.steps_us) > 0),
        "the recording needs steps of 0 or more, and as many lengths of 1 or more": recording is None
        or (
            len(recording.steps_us) == len(recording.input_tokens) == len(recording.output_tokens)
            and all(0 <= step < _MAX_VALUE for step in recording.steps_us)
            and all(1 <= tokens < _MAX_VALUE for tokens in (*recording.input_tokens, *recording.output_tokens))
        ),
        "gap_quantiles must be two or more, finite, not negative, and not all 0": model.gap_quantiles is None
        or (
            len(model.gap_quantiles) > 1
            and all(0 <= gap < np.inf for gap in model.gap_quantiles)
            and any(model.gap_quantiles)
        ),
        "every class of lengths needs cells of requests": bool(marks.classes)
        and all(marks.classes)
        and all(
            1 <= low <= high < _MAX_VALUE and 1 <= least <= most < _MAX_VALUE and 0 < n < _MAX_VALUE
            for low, high, least, most, n in cells
        ),
        "every row of mix must name a weight for each class": bool(marks.mix)
        and all(len(row) == len(marks.classes) and min(row, default=-1) >= 0 and sum(row) > 0 for row in marks.mix)
        and len(rows) > 0
        and all(0 <= row < len(marks.mix) for row in rows),
    }
    return [problem for problem, good in checks.items() if not good]


def bundled_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    folder = files("surgeproof.traces").joinpath("profiles")
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))
