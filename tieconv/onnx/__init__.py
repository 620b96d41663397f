"""ONNX graphs of a checkpoint: sessions, and the parity of a graph with the torch reference."""
