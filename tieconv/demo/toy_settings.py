"""Settings of the toy, and the figures of a reference run on natural text."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.value_type import record
from tieconv.demo.gradient_ratio import GradientRatio

WORDS = 1984
VOCABULARY = 2048
"""Rows of the tables: the words, and padding rows that no text uses."""

WIDTH = 64
LAYERS = 2
HEADS = 4
BATCH = 16
CONTEXT = 64
HELD_OUT = 256
"""Passages of `CONTEXT` words that no training step reads."""

STEPS = 1000
RATE = 3e-3
DECAY = 0.1


@record
class Toy:
    """A model to train: its directory, whether it is tied, and its number, which decides its initial weights.

    ``ratio`` scales the two gradients of a tied table.
    """

    name: str
    tied: bool
    number: int
    ratio: GradientRatio | None = None

    def seed(self, run: int) -> int:
        """Return the seed of the weights and of the order of the text in the run of seed ``run``."""
        return len(TOYS) * run + self.number


TOYS = (Toy("tied", True, 0), Toy("untied", False, 1), Toy("untied-second", False, 2))
TIED, UNTIED, SECOND = TOYS


def scaled(ratio: GradientRatio) -> Toy:
    """Return the tied toy with scaled gradients. It starts from the weights of the ordinary tied toy."""
    return Toy(ratio.directory, TIED.tied, TIED.number, ratio)


REFERENCE: Mapping[str, tuple[float, ...]] = {
    "procrustes": (0.219, 0.279, 0.611, 0.304, 0.659),
    "least squares": (0.324, 0.392, 0.698, 0.384, 0.732),
    "knn": (0.052, 0.089, 0.288, 0.179, 0.418),
    "rsa": (0.044, 0.073, 0.946, 0.218, 0.967),
    "norms": (-0.448, -0.390, 0.971, 0.897, 0.979),
    "cka": (0.029, 0.042, 0.958, 0.283, 0.958),
}
"""Figures for E→U, E→T, U→T, E→E' and U→U' of a larger toy on natural text.

The toy is a Llama of 2 layers and width 96 with a BPE of 4096 tokens. It read 11.6 million tokens in 1500 steps of
2048.
"""

REFERENCE_FLOORS: Mapping[str, tuple[float, float, float]] = {
    "procrustes": (0.106, 0.104, 0.090),
    "least squares": (0.136, 0.132, 0.128),
}
"""Figures for E→U, E→T and U→T after a permutation of the reference run's tokens."""
