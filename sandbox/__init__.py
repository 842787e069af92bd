"""Endpoints for demos and tests: a simulated engine, a scripted wire server."""
