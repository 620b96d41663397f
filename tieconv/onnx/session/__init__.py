"""Sessions of ONNX Runtime."""
