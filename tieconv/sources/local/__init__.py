"""Read local files."""
