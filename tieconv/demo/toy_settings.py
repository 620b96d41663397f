"""How large the toy is, and what it is told beside: the reference run on natural text."""

from __future__ import annotations

from collections.abc import Mapping

WORDS = 1984
VOCABULARY = 2048
"""Rows of the tables: the words, and padding that no text ever uses."""

WIDTH = 64
LAYERS = 2
HEADS = 4
BATCH = 16
CONTEXT = 64
HELD_OUT = 256
"""Passages of `CONTEXT` words that no step sees."""

STEPS = 1000
RATE = 3e-3
DECAY = 0.1

MODELS: Mapping[str, tuple[bool, int]] = {"tied": (True, 0), "untied": (False, 1), "untied-second": (False, 2)}
"""Directory → (tied, seed of the weights and of the order of the text)."""


REFERENCE: Mapping[str, tuple[float, ...]] = {
    "procrustes": (0.219, 0.279, 0.611, 0.304, 0.659),
    "least squares": (0.324, 0.392, 0.698, 0.384, 0.732),
    "knn": (0.052, 0.089, 0.288, 0.179, 0.418),
    "rsa": (0.044, 0.073, 0.946, 0.218, 0.967),
    "norms": (-0.448, -0.390, 0.971, 0.897, 0.979),
    "cka": (0.029, 0.042, 0.958, 0.283, 0.958),
}
"""E→U, E→T, U→T, E→E' and U→U' of a larger toy on natural text.

A Llama of 2 layers and width 96, BPE of 4096, 11.6 million tokens, 1500 steps of 2048.
"""

REFERENCE_FLOORS: Mapping[str, tuple[float, float, float]] = {
    "procrustes": (0.106, 0.104, 0.090),
    "least squares": (0.136, 0.132, 0.128),
}
"""What a permutation of its tokens gave, for E→U, E→T and U→T."""
