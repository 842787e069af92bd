"""What a pipeline reads: the gate, JUnit and Markdown reports, plain data."""
