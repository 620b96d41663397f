"""Define the ways to quantise a graph."""

from __future__ import annotations

from enum import StrEnum

BLOCK = 32
"""Elements of a row that share a scale, as onnxruntime-genai's builder chooses."""


class Scheme(StrEnum):
    """How the weights are quantised.

    ``int8`` and ``int4`` quantise weights in symmetric blocks of `BLOCK` elements; activations stay float.
    ``dynamic-int8`` quantises each weight as a whole, and each activation when the graph runs.
    """

    INT8 = "int8"
    INT4 = "int4"
    DYNAMIC = "dynamic-int8"

    @property
    def bits(self) -> int:
        """The width of a code."""
        return 4 if self is Scheme.INT4 else 8
