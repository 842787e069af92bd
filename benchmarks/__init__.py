"""Measures the load generator itself, against an endpoint whose timing is known.

`measure` carries one case through `surgeproof run` and compares with the endpoint's own log,
`calibrate` finds this host's error bar and ceiling, `python -m surgeproof.benchmarks` is `make bench`.
"""
