"""ONNX graphs: read, shared, written and proved. Nothing here is imported before a command meets a graph."""
