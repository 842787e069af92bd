"""Example scenarios, and how to run a GPU agent as a service; data only."""
