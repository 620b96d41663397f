"""Collect evidence about ONNX graphs."""
