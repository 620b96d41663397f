"""Measure a quantised graph: against its own dequantised weights, and its loss against the float checkpoint."""
