"""Files on disk."""
