"""GPU telemetry: the agent, its client, the diagnosis and the estimator."""
