"""One planner a verb."""
