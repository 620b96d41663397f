"""Read ONNX graphs without the onnx package."""
