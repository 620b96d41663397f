"""What an ONNX file must satisfy besides being readable."""
