"""Built-in sets of objectives: `--slo preset:NAME`, or `preset: NAME` among a scenario's rules."""

from surgeproof.errors import RuleError

PRESETS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "service-classes": (
        "payment-like, query-like and log-like traffic",
        {
            "P0": ("success >= 99.99%", "ttft p99 < 50ms"),
            "P1": ("success >= 99.9%", "ttft p99 < 200ms"),
            "P2": ("success >= 99%", "ttft p99 < 1000ms"),
        },
    ),
    "latency-bound": ("lowest time to first token; test with 200 connections or more", {"all": ("ttft p95 <= 350ms",)}),
    "throughput-bound": (
        "highest throughput, with GPUs busy but not full; needs --gpu-agent",
        {
            "all": (
                "requests_per_s >= 150",
                "success >= 99%",
                "gpu_time_active mean >= 65%",
                "gpu_time_active mean <= 85%",
            )
        },
    ),
    "cost-bound": ("lowest GPU memory; needs --gpu-agent", {"all": ("gpu_memory_per_request mean <= 1.2GB",)}),
    "contract": (
        "latency, throughput, error and memory limits for one instance; needs --gpu-agent",
        {"all": ("e2e p95 < 800ms", "requests_per_s >= 120", "errors < 0.3%", "gpu_memory max <= 18GB")},
    ),
    "mlperf-llama2-70b": ("MLPerf Inference, server", {"all": ("ttft p99 <= 2000ms", "tpot p99 <= 200ms")}),
    "mlperf-llama2-70b-interactive": (
        "MLPerf Inference, interactive",
        {"all": ("ttft p99 <= 450ms", "tpot p99 <= 40ms")},
    ),
    "mlperf-llama3.1-405b": ("MLPerf Inference, server", {"all": ("ttft p99 <= 6000ms", "tpot p99 <= 175ms")}),
    "mlperf-llama3.1-8b": ("MLPerf Inference, server", {"all": ("ttft p99 <= 2000ms", "tpot p99 <= 100ms")}),
}


def preset(name: str) -> dict[str, tuple[str, ...]]:
    """The rules of a preset, by class.

    Raises:
        RuleError: there is no such preset.
    """
    if name not in PRESETS:
        raise RuleError(f"no SLO preset {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[name][1]
