"""Find the checkpoint's tensors in a graph, bit for bit."""
