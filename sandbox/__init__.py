"""Endpoints that are not production: a simulated engine, a scripted wire server."""
