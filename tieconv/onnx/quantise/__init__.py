"""Quantise an exported graph with ONNX Runtime's quantisers, so that embedding and head read one matrix."""
