"""Where load comes from: trace formats, clock repair, statistics of a trace."""
