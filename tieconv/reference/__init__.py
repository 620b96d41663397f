"""The checkpoint as a torch model: logits in a precision of choice, on the CPU.

The only room below `tieconv.onnx` that imports torch and transformers.
"""

from tieconv.reference.model import Batch, Reference, architecture, load, load_config

__all__ = ["Batch", "Reference", "architecture", "load", "load_config"]
