"""A fitted profile: numbers from which traffic like a trace's can be made, small enough to share.

It holds rates by coarse window, the modulator, the gaps' shape, and lengths as classes whose mix
follows the window: arrivals and lengths drift together in real traffic. It holds no prompt and no
user. `fit` makes it, `planning` draws from it.
"""

from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from surgeproof.errors import TraceError

SCHEMA = "surgeproof.profile/1"


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
    """When requests come. `gate_z` is the over-dispersion test's value whether or not it passed."""

    coarse_window_s: float
    rates_per_s: tuple[float, ...]
    shrink: float
    fine_window_s: float
    modulator: ModulatorFit | None
    gap_shape: float
    gate_z: float


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long requests are: cells (input, output, count) by class, and each window's mix of classes."""

    classes: tuple[tuple[tuple[int, int, int], ...], ...]
    mix: tuple[tuple[float, ...], ...]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted profile."""

    schema: str
    name: str
    kind: str
    source: Source
    arrivals: Arrivals
    marks: Marks

    def draw_lengths(self, at_s: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Input and output tokens for requests at given times of the profile; shape (n, 2)."""
        mix = np.array(self.marks.mix)
        windows = np.minimum((at_s / self.arrivals.coarse_window_s).astype(np.int64), len(mix) - 1)
        chosen = (rng.random(len(at_s))[:, None] > np.cumsum(mix, axis=1)[windows]).sum(axis=1)
        chosen = np.minimum(chosen, len(self.marks.classes) - 1)
        out = np.zeros((len(at_s), 2), dtype=np.int64)
        for number, cells in enumerate(self.marks.classes):
            mine = np.flatnonzero(chosen == number)
            if len(mine):
                table = np.array(cells, dtype=np.int64)
                shares = table[:, 2] / table[:, 2].sum()
                out[mine] = table[rng.choice(len(table), size=len(mine), p=shares), :2]
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
        raise TraceError(f"profile {name}: {exc}") from exc
    if profile.schema != SCHEMA:
        raise TraceError(f"profile {name}: schema {profile.schema!r}; this version reads {SCHEMA!r}")
    return profile


def bundled_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    folder = files("surgeproof.traces").joinpath("profiles")
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))
