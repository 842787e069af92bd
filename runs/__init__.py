"""The life of one run, and questions about stored ones: prepare, execute, collect, judge; recover, review."""
