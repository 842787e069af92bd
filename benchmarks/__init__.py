"""Measures the load generator itself, against an endpoint whose timing is known.

`measure` runs one case through `surgeproof run` and compares it with the endpoint's own log,
`ceiling` measures this host's timing error and maximum load, `python -m surgeproof.benchmarks` is `make bench`.
"""
