"""Make plans from evidence. These are pure functions: they read and write nothing."""
