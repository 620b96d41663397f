"""Torch files: the ZIP archive or the legacy file, and the state dict in it, without running its pickle."""
