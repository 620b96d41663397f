"""Graphs as they lie on disk, and the bytes of their initializers."""
