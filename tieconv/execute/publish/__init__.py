"""Make a write visible in one step, and check what must hold before it."""
