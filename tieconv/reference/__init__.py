"""Load a checkpoint as a torch model on the CPU, and compute its logits.

The logits may be in a chosen precision, or with other input and output tables. Of all packages below `tieconv.onnx`,
only this one imports torch and transformers.
"""

from tieconv.reference.model import Batch, EncoderInput, Features, Reference, architecture, load, load_config
from tieconv.reference.windows import Apart, load_apart, position_limit

__all__ = [
    "Apart",
    "Batch",
    "EncoderInput",
    "Features",
    "Reference",
    "architecture",
    "load",
    "load_apart",
    "load_config",
    "position_limit",
]
