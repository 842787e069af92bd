"""What stops a release: the board, reports, gate."""
