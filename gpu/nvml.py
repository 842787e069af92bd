"""Access to NVIDIA's management library (NVML): what each GPU reports, null where it reports nothing.

Every field may be unsupported on a GPU, a MIG device or a driver: then it is None, never zero. GPUs are
known by UUID, since the order of indexes differs between programs. GPM counters (SM busy, tensor, DRAM)
exist from Hopper on and are shares between two samples. Energy is not asked for: the call takes 4 ms of
a core on an H200, ten times all others together, and power says as much.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from surgeproof.errors import UsageError
from surgeproof.records import GpuFacts, GpuSample

_GPM = {"sm": 2, "occupancy": 3, "tensor": 5, "dram": 10}
UNAVAILABLE = "GPU telemetry unavailable"


class Gpus(Protocol):
    """A source of GPU samples: NVML, or recorded samples."""

    def facts(self) -> Sequence[GpuFacts]:
        """What does not change; empty without a GPU."""
        ...

    def sample(self, at_ns: int) -> Sequence[GpuSample]:
        """One sample of each GPU."""
        ...


class Nvml:
    """The GPUs that NVML lists, MIG devices in place of those they divide.

    Args:
        library: pynvml, or a stand-in with its functions.
        chosen: UUIDs or NVML indexes to watch, as in CUDA_VISIBLE_DEVICES; None for all.

    Raises:
        UsageError: the library or driver is missing, or a chosen GPU is not there.
    """

    def __init__(self, library: Any, chosen: str | None = None) -> None:
        self._nvml = library
        try:
            library.nvmlInit()
        except library.NVMLError as exc:
            raise UsageError(f"{UNAVAILABLE}: {exc}") from exc
        every = list(self._handles())
        self._handles_by_uuid = self._select(every, chosen)
        self._gpm = {uuid: _Gpm(library, handle) for uuid, handle in self._handles_by_uuid.items()}

    def facts(self) -> list[GpuFacts]:
        """What does not change."""
        return [self._facts(uuid, handle) for uuid, handle in self._handles_by_uuid.items()]

    def sample(self, at_ns: int) -> list[GpuSample]:
        """One sample of each GPU."""
        return [self._sample(uuid, handle, at_ns) for uuid, handle in self._handles_by_uuid.items()]

    def _handles(self) -> Iterator[tuple[int, str, Any]]:
        """NVML index, UUID and handle of every GPU or MIG device."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            parts = list(self._mig_devices(handle))
            for part in parts or [handle]:
                uuid = _text(self._ask("nvmlDeviceGetUUID", part)) or f"index-{index}"
                yield index, uuid, part

    def _mig_devices(self, handle: Any) -> Iterator[Any]:
        for place in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if part is not None:
                yield part

    def _select(self, every: list[tuple[int, str, Any]], chosen: str | None) -> dict[str, object]:
        if chosen is None:
            return {uuid: handle for _, uuid, handle in every}
        selected: dict[str, object] = {}
        for name in (part.strip() for part in chosen.split(",") if part.strip()):
            same = {u: h for i, u, h in every if u.startswith(name) or (name.isdigit() and i == int(name))}
            if not same:
                known = ", ".join(f"{i}={u}" for i, u, _ in every) or "none"
                raise UsageError(f"no GPU {name!r}; NVML lists {known}")
            selected |= same
        return selected

    def _ask(self, function: str, *arguments: Any) -> Any:
        """A value, or None where this GPU, driver or library has none."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _facts(self, uuid: str, handle: Any) -> GpuFacts:
        ask = self._ask
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        limit = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        return GpuFacts(
            uuid=uuid,
            name=_text(ask("nvmlDeviceGetName", handle)),
            driver=_text(ask("nvmlSystemGetDriverVersion")),
            memory_bytes=None if memory is None else int(memory.total),
            power_limit_w=None if limit is None else limit / 1e3,
            sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", handle, 1),
            pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            numa_node=ask("nvmlDeviceGetNumaNodeId", handle),
            cpu_numa_node=_cpu_numa_node(),
            counters=self._gpm[uuid].supported,
        )

    def _sample(self, uuid: str, handle: Any, at_ns: int) -> GpuSample:
        ask = self._ask
        memory, use = ask("nvmlDeviceGetMemoryInfo", handle), ask("nvmlDeviceGetUtilizationRates", handle)
        power = ask("nvmlDeviceGetPowerUsage", handle)
        return GpuSample(
            gpu=uuid,
            at_ns=at_ns,
            time_active_pct=None if use is None else float(use.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            power_w=None if power is None else power / 1e3,
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", handle, 1),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", handle, 2),
            temperature_c=ask("nvmlDeviceGetTemperature", handle, 0),
            throttle_bits=ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            **self._gpm[uuid].shares(),
        )


class _Gpm:
    """Counters of one GPU: shares since the call before."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml, self._handle = library, handle
        self._before: Any = None
        self.supported = False
        with contextlib.suppress(library.NVMLError, AttributeError):
            self.supported = bool(library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        if self.supported:
            with contextlib.suppress(library.NVMLError, AttributeError):
                self._before, self._now = library.nvmlGpmSampleAlloc(), library.nvmlGpmSampleAlloc()
                library.nvmlGpmSampleGet(handle, self._before)

    def shares(self) -> dict[str, float | None]:
        """SM busy, occupancy, tensor and DRAM share in per cent; empty where there are no counters."""
        if self._before is None:
            return {}
        nvml = self._nvml
        try:
            nvml.nvmlGpmSampleGet(self._handle, self._now)
            wanted = nvml.c_nvmlGpmMetricsGet_t()
            wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
            wanted.numMetrics = len(_GPM)
            wanted.sample1, wanted.sample2 = self._before, self._now
            for place, metric in enumerate(_GPM.values()):
                wanted.metrics[place].metricId = metric
            nvml.nvmlGpmMetricsGet(wanted)
        except (nvml.NVMLError, AttributeError):
            return {}
        self._before, self._now = self._now, self._before
        return {
            f"{name}_pct": float(wanted.metrics[place].value) if wanted.metrics[place].nvmlReturn == 0 else None
            for place, name in enumerate(_GPM)
        }


def open_nvml(chosen: str | None = None) -> Nvml:
    """NVML of this host.

    Raises:
        UsageError: there is no GPU telemetry here; the sentence says why.
    """
    try:
        import pynvml
    except ModuleNotFoundError as exc:
        raise UsageError(f"{UNAVAILABLE}: pip install 'surgeproof[gpu]'") from exc
    return Nvml(pynvml, chosen)


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _cpu_numa_node() -> int | None:
    """The one NUMA node that this process may run on; None where it may run on several, or none is known."""
    nodes = set()
    for node in Path("/sys/devices/system/node").glob("node[0-9]*"):
        cpus = {int(cpu.name[3:]) for cpu in node.glob("cpu[0-9]*")}
        if cpus & os.sched_getaffinity(0):
            nodes.add(int(node.name[4:]))
    return nodes.pop() if len(nodes) == 1 else None
