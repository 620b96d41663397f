"""Read, share, write and verify ONNX graphs. A command imports this package only when it reads a graph."""
