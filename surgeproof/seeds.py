"""One seed for a run, and from it independent random numbers for each dimension of its load.

Changing one dimension (the class mix, say) must not move another (the arrivals), so each draws from
a generator of its own. Pure.
"""

from enum import IntEnum

import numpy as np


class Dimension(IntEnum):
    """What is drawn. The numbers are part of a plan's reproducibility: never renumber them."""

    CLASSES = 0
    PROMPTS = 1
    LENGTHS = 2
    ARRIVALS = 3
    THINNING = 4
    MODELS = 5
    PART = 6
    THINKING = 7


def generator(seed: int, dimension: Dimension) -> np.random.Generator:
    """The random numbers of one dimension of a run.

    Args:
        seed: of the run, not negative.
        dimension: what is drawn from them.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(dimension),)))
