"""Graphs traced before."""

from tests.onnx.recorded import recorded_traces as recorded_traces
