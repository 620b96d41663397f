"""Read tensors that several files store in chunks."""
