"""What GPUs can do at most, from their makers' data sheets: dense figures, without sparsity."""

import msgspec

from surgeproof.errors import UsageError


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU.

    Attributes:
        dram_bytes_per_s: peak memory bandwidth.
        flops_16: peak dense floating-point operations a second in bf16 or fp16, on tensor cores.
        flops_8: the same in fp8 or int8; that of 16 bits where there is no faster unit.
        source: where the figures stand.
    """

    name: str
    sms: int
    dram_bytes_per_s: float
    flops_16: float
    flops_8: float
    source: str


_DATASHEETS = (
    Gpu("A100-40GB", 108, 1.555e12, 312e12, 624e12, "NVIDIA A100 datasheet, June 2021"),
    Gpu("A100-80GB", 108, 2.039e12, 312e12, 624e12, "NVIDIA A100 datasheet, June 2021 (SXM)"),
    Gpu("H100", 132, 3.35e12, 989.4e12, 1978.9e12, "NVIDIA H100 datasheet, 2023 (SXM)"),
    Gpu("H100-PCIe", 114, 2.0e12, 756e12, 1513e12, "NVIDIA H100 datasheet, 2022 (PCIe)"),
    Gpu("H200", 132, 4.8e12, 989.4e12, 1978.9e12, "NVIDIA H200 datasheet, 2024 (SXM)"),
    Gpu("L40S", 142, 0.864e12, 362e12, 733e12, "NVIDIA L40S datasheet, 2023"),
    Gpu("A10", 72, 0.6e12, 125e12, 250e12, "NVIDIA A10 datasheet, 2021"),
    Gpu("L4", 58, 0.3e12, 121e12, 242e12, "NVIDIA L4 datasheet, 2023"),
    Gpu("B200", 148, 8.0e12, 2250e12, 4500e12, "NVIDIA DGX B200 datasheet, 2024 (per GPU)"),
)
GPUS = {gpu.name: gpu for gpu in _DATASHEETS}


def gpu_named(name: str) -> Gpu:
    """A data sheet by NVML's name (`NVIDIA H200`) or ours (`H200`).

    Raises:
        UsageError: it is not among those known.
    """
    wanted = name.upper().replace("NVIDIA", "").replace(" ", "-").strip("-")
    if "H100" in wanted and "PCIE" in wanted:
        return GPUS["H100-PCIe"]
    if wanted.startswith("A100"):
        return GPUS["A100-40GB" if "40GB" in wanted else "A100-80GB"]
    for key in sorted(GPUS, key=len, reverse=True):
        if wanted == key.upper() or wanted.startswith(f"{key.upper()}-"):
            return GPUS[key]
    raise UsageError(f"no data sheet of GPU {name!r}; known are {', '.join(GPUS)}")
