"""Distributed checkpoints of torch."""
