"""Read distributed checkpoints of torch (DCP)."""
