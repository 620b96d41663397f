"""Recognise the block types of ggml. A tensor holds codes and scales together. Source: gguf 0.19."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    GLOBAL_SCALE,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
)

TYPES = {
    "Q4_0": (4, 32), "Q4_1": (4, 32), "Q5_0": (5, 32), "Q5_1": (5, 32), "Q8_0": (8, 32), "Q8_1": (8, 32),
    "Q2_K": (2, 16), "Q3_K": (3, 16), "Q4_K": (4, 32), "Q5_K": (5, 32), "Q6_K": (6, 16), "Q8_K": (8, 256),
    "IQ1_S": (1, 32), "IQ1_M": (1, 16), "IQ2_XXS": (2, 32), "IQ2_XS": (2, 16), "IQ2_S": (2, 16),
    "IQ3_XXS": (3, 32), "IQ3_S": (3, 32), "IQ4_NL": (4, 32), "IQ4_XS": (4, 32),
    "TQ1_0": (1, 256), "TQ2_0": (2, 256), "MXFP4": (4, 32), "NVFP4": (4, 16), "Q1_0": (1, 128),
}  # fmt: skip
"""The bits of a code and the weights of the smallest group, by ggml type."""

COMPUTED = frozenset({
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
})  # fmt: skip
"""The types whose values tieconv computes."""

_ROLES = {"weight": CODES, "scale": GLOBAL_SCALE}


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a tensor of a quantised ggml type."""
    kind = module.dtype("weight")
    if kind not in TYPES:
        return None
    bits, group = TYPES[kind]
    shape = matrix_sides(module.shape("weight"))
    uncomputed = "" if kind in COMPUTED else f"tieconv does not compute the values of {kind}"
    uncomputed = "" if not uncomputed and shape else uncomputed or "the tensor is not a matrix"
    symmetric = kind not in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
    return described(
        module,
        f"ggml {kind}",
        _ROLES,
        faults_of(module),
        bits=bits,
        block=(1, group),
        shape=shape,
        symmetric=symmetric,
        uncomputed=uncomputed,
    )
