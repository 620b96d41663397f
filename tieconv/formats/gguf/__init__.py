"""Read GGUF files."""
