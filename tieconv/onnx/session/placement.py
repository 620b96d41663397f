"""Where the runtime put each node, and which heavy ones it left on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from tieconv.errors import NotRunError
from tieconv.install import install_command
from tieconv.onnx.session.provider import CUDA
from tieconv.text import count, shown

_PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "MatMulInteger", "QGemm", "Einsum", "Conv"}
_NORMS = {
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "GroupNormalization", "EmbedLayerNormalization", "ReduceMean",
}  # fmt: skip
_ATTENTION = {
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "PackedAttention",
    "QAttention", "RotaryEmbedding", "Softmax",
}  # fmt: skip
HEAVY = frozenset(_PRODUCTS | _NORMS | _ATTENTION)
"""Operators that must run on the device: products, norms (`ReduceMean` where they are spelt out) and attention."""


def check_placement(inner: Any, active: str, weight_gathers: Collection[str]) -> dict[str, int]:
    """How many nodes each provider runs, where the runtime says so.

    Shape arithmetic belongs on the CPU; a `Gather` counts as heavy where it reads a weight. Raises `NotRunError` for
    a heavy node on the CPU of a CUDA session, and where the runtime cannot say where its nodes are.
    """
    cuda = active == CUDA
    if not hasattr(inner, "get_provider_graph_assignment_info"):
        if cuda:
            raise NotRunError(
                "this onnxruntime does not say on which provider each node runs, so a fallback would go unseen",
                install_command("gpu", upgrade=True),
                "session.placement",
            )
        return {}
    placed: Counter[str] = Counter()
    heavy: list[str] = []
    for part in inner.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        placed[str(part.ep_name)] += len(nodes)
        if cuda and part.ep_name != CUDA:
            heavy += [f"{node.op_type} {node.name}" for node in nodes if _is_heavy(node, weight_gathers)]
    if cuda and not placed:
        raise NotRunError(
            "onnxruntime gave no placement of nodes, so a fallback to the CPU would go unseen",
            install_command("gpu", upgrade=True),
            "session.placement",
        )
    if heavy:
        raise NotRunError(
            f"CUDA is active and yet {count(len(heavy), 'heavy node')} run on the CPU: {shown(', '.join(heavy))}",
            "these operators have no CUDA kernel in this precision: export in another one, or with another opset",
            "session.fallback-nodes",
            active=active,
            fallback=tuple(heavy),
        )
    return dict(placed)


def _is_heavy(node: Any, weight_gathers: Collection[str]) -> bool:
    return node.op_type in HEAVY or (node.op_type == "Gather" and node.name in weight_gathers)
