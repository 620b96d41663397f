"""Define the ways to quantise a graph."""

from __future__ import annotations

from enum import StrEnum

BLOCK = 32
"""Elements of a row that share a scale, as onnxruntime-genai's builder chooses."""


INT8_ACTIVATIONS = 4
"""The accuracy level of MatMulNBits that rounds activations to 8 bits while it multiplies.

ONNX Runtime's CPU has fast kernels for 8-bit weights at this level only. At the others, it dequantises the whole matrix
in each run. One token through a head of 32,000 × 1,024 took 162 ms then, and 1.9 ms at this level.
onnxruntime-genai's builder sets it too.
"""


class Scheme(StrEnum):
    """How the weights are quantised.

    ``int8`` and ``int4`` quantise weights in symmetric blocks of `BLOCK` elements, and activations when the graph runs.
    ``dynamic-int8`` quantises each weight as a whole, and each activation when the graph runs.
    """

    INT8 = "int8"
    INT4 = "int4"
    DYNAMIC = "dynamic-int8"

    @property
    def bits(self) -> int:
        """The width of a code."""
        return 4 if self is Scheme.INT4 else 8
