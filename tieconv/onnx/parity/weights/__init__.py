"""Weight identity: the checkpoint's tensors looked for in a graph."""
