"""Checkpoints of torch.distributed.checkpoint: their values, names, conversion and damage."""
