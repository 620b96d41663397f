"""Real programs write small checkpoints, and tieconv is judged on each."""
