"""Reports for a terminal."""
