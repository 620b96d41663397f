"""Parity: weight identity, structure, logits and cached steps of a graph against the torch reference."""

from tieconv.onnx.parity.run import run_parity

__all__ = ["run_parity"]
