"""What is good enough, all pure: rules, intervals, summary, verdicts, the board."""
