"""Check many models into a directory of results, and report on it."""
