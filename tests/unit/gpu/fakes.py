"""A stand-in for pynvml, recorded GPUs, and an agent that serves them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from surgeproof.gpu.agent import Sampler, make_app
from surgeproof.records import GpuFacts, GpuSample
from tests.served_app import ServedApp

FACTS = GpuFacts(uuid="GPU-A", name="NVIDIA H200", memory_bytes=150_000_000_000, pcie_generation_max=5, counters=True)


class FakeNvml:
    """Recorded samples in place of GPUs, one after the other and from the start again.

    Args:
        facts: of the recorded GPUs.
        samples: samples of one moment each.
    """

    def __init__(self, facts: Sequence[GpuFacts], samples: Sequence[Sequence[GpuSample]]) -> None:
        self._facts, self._samples = list(facts), [list(moment) for moment in samples]
        self._next = 0

    def facts(self) -> list[GpuFacts]:
        """As they were recorded."""
        return self._facts

    def sample(self, at_ns: int) -> list[GpuSample]:
        """The next moment, stamped now."""
        moment = self._samples[self._next % len(self._samples)] if self._samples else []
        self._next += 1
        return [msgspec.structs.replace(sample, at_ns=at_ns) for sample in moment]


def sample(gpu: str = "GPU-A", at_ns: int = 0, **changes: Any) -> GpuSample:
    values: dict[str, Any] = {
        "time_active_pct": 100.0, "sm_pct": 40.0, "dram_pct": 30.0, "tensor_pct": 5.0,
        "memory_used_bytes": 17_000_000_000, "power_w": 400.0, "sm_clock_mhz": 1980, "throttle_bits": 0,
    }  # fmt: skip
    return GpuSample(gpu=gpu, at_ns=at_ns, **values | changes)


def recorded(count: int = 3) -> FakeNvml:
    return FakeNvml([FACTS], [[sample(power_w=400.0 + i)] for i in range(count)])


class NVMLError(Exception):
    pass


class StubNvml:
    """Functions that the real module has, for GPUs described as plain data; what is not described is unsupported."""

    NVMLError = NVMLError
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, gpus: list[dict[str, Any]], missing: str | None = None) -> None:
        self.gpus, self.missing = gpus, missing

    def nvmlInit(self) -> None:  # noqa: N802
        if self.missing:
            raise NVMLError(self.missing)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], place: int) -> Any:  # noqa: N802
        return handle["mig"][place]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: dict[str, Any]) -> int:  # noqa: N802
        return len(handle.get("mig", ()))

    def __getattr__(self, name: str) -> Any:
        fields = {
            "nvmlDeviceGetUUID": lambda h: h["uuid"],
            "nvmlDeviceGetName": lambda h: h["name"],
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=h["utilization"]),
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=h["memory_used"], total=h["memory_total"]),
            "nvmlDeviceGetPowerUsage": lambda h: h["power_w"] * 1000,
        }
        if name not in fields:
            raise AttributeError(name)

        def ask(handle: dict[str, Any]) -> Any:
            try:
                return fields[name](handle)
            except KeyError as exc:
                raise NVMLError("NOT_SUPPORTED") from exc

        return ask


class ServedAgent(ServedApp):
    """An agent on a port of its own, in a thread."""

    def __init__(self, sampler: Sampler, token: str | None = None, port: int = 0) -> None:
        super().__init__(make_app(sampler, token), port)
        self.sampler = sampler
