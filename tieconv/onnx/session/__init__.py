"""Open sessions of ONNX Runtime."""
