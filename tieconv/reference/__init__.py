"""Load a checkpoint as a torch model on the CPU, and compute its logits.

The logits may be in a chosen precision, or with other input and output tables. Of all packages below `tieconv.onnx`,
only this one imports torch and transformers.
"""
