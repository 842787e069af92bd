"""NVML's bits for lower clocks that mean a GPU is slower than it could be; idle and application clocks are none."""

THROTTLE_REASONS = {
    0x4: "the power cap", 0x8: "a hardware slowdown", 0x10: "sync boost", 0x20: "heat (software)",
    0x40: "heat (hardware)", 0x80: "the power brake", 0x100: "display clocks",
}  # fmt: skip
