"""The checkpoint as a torch model on the CPU: its logits in a precision of choice, or with its two tables exchanged.

The only room below `tieconv.onnx` that imports torch and transformers.
"""

from tieconv.reference.model import Batch, Reference, architecture, load, load_config
from tieconv.reference.two_tables import Apart, load_apart

__all__ = ["Apart", "Batch", "Reference", "architecture", "load", "load_apart", "load_config"]
