"""What the hardware did: SM estimate, clock alignment, the agent beside the GPU and its client."""
