"""How load is sent: arrivals, the plan, prompts, the stamped streaming client, Locust users, the audit."""
