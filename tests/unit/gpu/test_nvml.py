"""What a GPU does not tell is null; GPUs are known by UUID."""

import pytest

from surgeproof.errors import UsageError
from surgeproof.gpu.nvml import Nvml
from tests.unit.gpu.fakes import StubNvml


def test_utilisation_that_mig_does_not_support_is_null_and_not_zero() -> None:
    """The situation GT-01."""
    part = {"uuid": "MIG-1", "memory_used": 4096, "memory_total": 8192}
    (found,) = Nvml(StubNvml([{"uuid": "GPU-A", "mig": [part]}])).sample(7)
    assert (found.gpu, found.at_ns, found.time_active_pct, found.memory_used_bytes) == ("MIG-1", 7, None, 4096)


def test_unified_memory_leaves_the_other_fields_alone() -> None:
    """GT-02: memory is not supported, the rest is."""
    (found,) = Nvml(StubNvml([{"uuid": "GPU-A", "utilization": 37, "power_w": 11.2}])).sample(0)
    assert (found.memory_used_bytes, found.time_active_pct, found.power_w) == (None, 37.0, 11.2)


@pytest.mark.parametrize("chosen", ["1", "GPU-B", "GPU-B-2"])
def test_the_chosen_gpu_is_watched_by_index_or_uuid(chosen: str) -> None:
    """GT-03: CUDA_VISIBLE_DEVICES=1 watches B; samples carry its UUID."""
    nvml = Nvml(StubNvml([{"uuid": "GPU-A-1", "utilization": 0}, {"uuid": "GPU-B-2", "utilization": 90}]), chosen)
    assert [s.gpu for s in nvml.sample(0)] == ["GPU-B-2"]
    assert [f.uuid for f in nvml.facts()] == ["GPU-B-2"]


def test_a_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no GPU '3'; NVML lists 0=GPU-A"):
        Nvml(StubNvml([{"uuid": "GPU-A"}]), "3")


def test_a_missing_library_is_one_line() -> None:
    """GT-04."""
    with pytest.raises(UsageError, match="GPU telemetry unavailable: NVML Shared Library Not Found"):
        Nvml(StubNvml([], missing="NVML Shared Library Not Found"))


def test_availability_is_decided_by_gpu_and_field() -> None:
    """GT-06: one of two kinds has no utilisation, the other no power."""
    found = Nvml(StubNvml([{"uuid": "A", "utilization": 5}, {"uuid": "B", "power_w": 70.0}])).sample(0)
    assert [(s.time_active_pct, s.power_w, s.sm_pct) for s in found] == [(5.0, None, None), (None, 70.0, None)]
