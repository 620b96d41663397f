"""The gate: which findings count, which are waived and why, and the safe remedies applied."""
