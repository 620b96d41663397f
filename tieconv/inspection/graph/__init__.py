"""Evidence about ONNX graphs."""
