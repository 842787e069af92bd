"""Arguments in, text and exit code out: one module a command group, and the tables that they print."""
