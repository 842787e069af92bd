"""What the hardware did; the agent and the estimator will live here."""
