"""Measures the load generator itself against an endpoint with known timing."""
