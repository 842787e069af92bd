"""Counter values that cannot be: exactly 100 % between ordinary ones. Pure.

GPM counters of an H200 answer 100 % for a tenth of a second now and then while the samples on either side are
ordinary (2 of 3,327 samples of the DRAM share). A load that fills a GPU does so for longer than one sample.
"""

from collections.abc import Sequence

import msgspec

from surgeproof.records import GpuSample

_COUNTERS = ("sm_pct", "occupancy_pct", "tensor_pct", "dram_pct")
_FULL_PCT = 100.0
_ORDINARY_PCT = 90.0


def without_glitches(samples: Sequence[GpuSample]) -> list[GpuSample]:
    """The samples, in their order, with impossible counter values taken out.

    Args:
        samples: of any number of GPUs, those of each in order of time.
    """
    results = list(samples)
    places: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        places.setdefault(sample.gpu, []).append(place)
    for own in places.values():
        for before, place, after in zip(own, own[1:], own[2:], strict=False):
            found = {
                name: None
                for name in _COUNTERS
                if getattr(samples[place], name) == _FULL_PCT
                and _is_ordinary(getattr(samples[before], name))
                and _is_ordinary(getattr(samples[after], name))
            }
            if found:
                results[place] = msgspec.structs.replace(samples[place], **found)
    return results


def _is_ordinary(value: float | None) -> bool:
    return value is not None and value < _ORDINARY_PCT
