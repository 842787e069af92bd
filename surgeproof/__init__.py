"""Surgeproof: load tests and SLO verdicts for OpenAI-compatible LLM endpoints."""

__version__ = "0.1.0"
