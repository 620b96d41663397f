"""Fuzz every reader: structure-aware mutators, the readers of the formats themselves as references, fixed seeds."""
