"""Check where the runtime placed each node, and which heavy nodes it left on the CPU."""

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
_ACTIVATIONS = {"Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Erf", "Sigmoid"}
_EXPERTS = {"MoE", "QMoE", "TopK", "ScatterND"}
HEAVY = frozenset(_PRODUCTS | _NORMS | _ATTENTION | _ACTIVATIONS | _EXPERTS)
"""Operators that must run on the device: products, norms, attention, activations and the choice of experts.

`ReduceMean` is part of some norms. `TopK` and `ScatterND` choose experts, and write their results.
"""


def check_placement(
    inner: Any, active: str, weight_gathers: Collection[str], shape_nodes: Collection[str] = ()
) -> dict[str, int]:
    """Return how many nodes each provider runs, if the runtime reports it.

    Shape arithmetic may run on the CPU, and so may the ``shape_nodes`` of any operator. A `Gather` is heavy if it reads
    a weight. Raises `NotRunError` if the CPU runs
    a heavy node of a CUDA session, or if placements are unknown.
    """
    cuda = active == CUDA
    if not hasattr(inner, "get_provider_graph_assignment_info"):
        if cuda:
            raise NotRunError(
                "this onnxruntime does not report where each node runs, so tieconv could not see a fallback to the CPU",
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
            heavy += [
                f"{node.op_type} {node.name}"
                for node in nodes
                if node.name not in shape_nodes and _is_heavy(node, weight_gathers)
            ]
    if cuda and not placed:
        raise NotRunError(
            "onnxruntime reported no placement of nodes, so tieconv could not see a fallback to the CPU",
            install_command("gpu", upgrade=True),
            "session.placement",
        )
    if heavy:
        raise NotRunError(
            f"CUDA is active, but the CPU runs {count(len(heavy), 'heavy node')}: {shown(', '.join(heavy))}",
            "these operators have no CUDA kernel in this precision: export in another precision or opset",
            "session.fallback-nodes",
            active=active,
            fallback=tuple(heavy),
        )
    return dict(placed)


def _is_heavy(node: Any, weight_gathers: Collection[str]) -> bool:
    return node.op_type in HEAVY or (node.op_type == "Gather" and node.name in weight_gathers)
