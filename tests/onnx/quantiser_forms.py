"""What each form of a tied head costs under each quantiser of ONNX Runtime: V = 20000, H = 256.

python -m tests.onnx.quantiser_forms

prints the table of docs/onnx.md.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

import tieconv as api
from tests.lazy import matmul_nbits_quantizer, ort_quantization, quantise
from tests.onnx.graphs import tensors, write_optimised
from tests.onnx.nodes import model, op, save, token_ids, value

V, H = 20_000, 256
FORMS = ("gemm", "fused", "transpose")


def build(path: Path) -> Path:
    """`Gather(W)`, `MatMul(x, Transpose(W))`, as the exporter of transformers writes a tied model."""
    matrix = np.random.default_rng(0).standard_normal((V, H)).astype("f4")
    nodes = [
        op("Gather", "embed ids", "x", name="embedding"),
        op("Transpose", "embed", "turned", perm=[1, 0]),
        op("MatMul", "x turned", "logits", name="head"),
    ]
    return save(model(nodes, [token_ids("ids")], [value("logits", ["b", "s", V])], {"embed": matrix}), path)


def int4(source: Path, to: Path) -> None:
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(str(source), bits=4, block_size=32, is_symmetric=True)
    quantizer.process()
    onnx.save(quantizer.model.model, to)


def dynamic(source: Path, to: Path) -> None:
    ort_quantization.quantize_dynamic(source, to, weight_type=ort_quantization.QuantType.QUInt8)


QUANTISERS: dict[str, Callable[[Path, Path], None]] = {"MatMulNBitsQuantizer, int4": int4, "quantize_dynamic": dynamic}


def held(path: Path) -> int:
    """Bytes of the large initializers in a session's optimised model."""
    with tempfile.TemporaryDirectory() as folder:
        made = write_optimised(path, Path(folder) / "optimised.onnx")
        return sum(array.nbytes for _, array in tensors(made) if array.size >= V)


def head(path: Path) -> str:
    """The operator that computes the logits, and whether it reads codes."""
    nodes = onnx.load(path).graph.node
    known = ("MatMulNBits", "MatMulInteger")
    found = next((node.op_type for node in nodes if node.op_type in known), None)
    dequantised = any(node.op_type == "DequantizeLinear" and "gather" not in node.name.lower() for node in nodes)
    return found or ("float, dequantised in each run" if dequantised else "float: skipped")


def row(name: str, quantiser: str, path: Path) -> str:
    return f"| {quantiser} | {name} | {path.stat().st_size / 1e6:.1f} | {held(path) / 1e6:.1f} | {head(path)} |"


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        source = build(folder / "in" / "model.onnx")
        rows = []
        for quantiser, quantised in QUANTISERS.items():
            for form in FORMS:
                graph, to = folder / f"{form}.onnx", folder / f"{form}-{quantiser.split()[0]}.onnx"
                if not graph.exists():
                    api.plan_graph_dedup(source, head_form=form).execute(graph)
                quantised(graph, to)
                rows.append(row(form, quantiser, to))
                after = to.with_name(f"deduped-{to.name}")
                api.plan_graph_dedup(to).execute(after)
                rows.append(row(f"{form}, then dedup", quantiser, after))
        for scheme in quantise.Scheme:
            quantise.quantise(source.parent, folder / f"{scheme}", scheme)
            to = folder / f"exported-{scheme}.onnx"
            api.plan_graph_dedup(folder / f"{scheme}" / "model.onnx").execute(to)
            model = onnx.load(to)
            onnx.save(model, folder / f"whole-{scheme}.onnx")
            rows.append(row("any", f"export --quantise {scheme}", folder / f"whole-{scheme}.onnx"))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
