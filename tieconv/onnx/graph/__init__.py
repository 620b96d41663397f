"""Read graph files, and the bytes of their initializers."""
