"""Define the ways to quantise a graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tieconv.checkpoint.graph_plan import ExportPlan, SessionProof
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.value_type import Choice, record
from tieconv.errors import RefusedError
from tieconv.install import install_command
from tieconv.onnx.graph_model import GraphBytes, has_onnxruntime, read_graph, shared_matrix, sides
from tieconv.onnx.share.find import MATRIX, Use, integer, is_standard, remove_unread, uses_of
from tieconv.onnx.share.node_patterns import MICROSOFT, Names, constant, replace_node
from tieconv.onnx.share.quantised import LOOKUP, heads
from tieconv.onnx.write.session_proof import prove
from tieconv.reference.packages import silenced
from tieconv.sources.local import open_files
from tieconv.text import Hint, option, shown

BLOCK = 32
"""Elements of a row that share a scale, as onnxruntime-genai's builder chooses."""

INT8_ACTIVATIONS = 4
"""The accuracy level of MatMulNBits that rounds activations to 8 bits while it multiplies.

ONNX Runtime's CPU has fast kernels for 8-bit weights at this level only. At the others, it dequantises the whole matrix
in each run. One token through a head of 32,000 × 1,024 took 162 ms then, and 1.9 ms at this level.
onnxruntime-genai's builder sets it too.
"""


class Scheme(Choice):
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


# Quantise an export so that each tied matrix stays one.

_OPERATORS = {Scheme.INT8: "MatMulNBits", Scheme.INT4: "MatMulNBits", Scheme.DYNAMIC: "MatMulInteger"}


def head_note(scheme: Scheme) -> str:
    """Return what the user should know about the form of the head."""
    return f"--quantise writes every head as {_OPERATORS[scheme]}, so --head-form has no effect"


def check_scheme(scheme: Scheme, precision: str, fuse: str | None, source: str) -> None:
    """Raise `RefusedError` if ONNX Runtime cannot run the scheme in the precision, or for a fused graph."""
    if fuse is not None:
        problem = f"{shown(source)}: ONNX Runtime's quantisers skip the head of a graph that is fused for {fuse}"
        raise RefusedError(problem, Hint("leave out ", option("fuse"), ", or ", option("quantise")), "export.quantise")
    if scheme is Scheme.DYNAMIC and precision != "fp32":
        problem = f"{shown(source)}: dynamic-int8 quantises activations of float32 only, not {precision}"
        hint = Hint("use ", option(precision="fp32"), ", or ", option(quantise="int8"))
        raise RefusedError(problem, hint, "export.quantise")


def quantise_tied(raw: Path, new: Path, scheme: Scheme, plan: ExportPlan, data: str) -> Quantisation:
    """Quantise the graph of ``raw`` to ``new``, with the data file ``data``.

    Raises `RefusedError` if a tied matrix would become two.
    """
    made = quantise(raw, new, scheme, data)
    if plan.tied and not made.tied:
        problem = f"{shown(plan.source)}: the embedding and the head of the graph cannot read one {scheme} matrix"
        raise RefusedError(problem, Hint("export without ", option("quantise")), "export.quantise")
    return made


# Quantise the graph of a directory with ONNX Runtime's quantisers, and list what stays float.

_FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16"})
_MATRIX = 2
_FOLDED = 8192
"""Elements up to which onnxscript folds what it can compute."""


@record
class Quantisation:
    """The matrices that embedding and head read, and what stays float, with why."""

    tied: tuple[str, ...]
    float_matrices: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{shown(name)} stays float: {why}" for name, why in self.float_matrices)


def quantise(raw: Path, new: Path, scheme: Scheme, data: str = "model.onnx.data") -> Quantisation:
    """Read `model.onnx` of ``raw`` and write its quantised form to ``new``. No product is skipped silently.

    ``data`` is the name of the new data file.

    Raises `RefusedError` without onnxruntime, or if no product of the graph can be quantised.
    """
    if not has_onnxruntime():
        raise RefusedError("--quantise needs onnxruntime's quantiser", install_command("onnx"), "onnx.not-installed")
    os.mkdir(new)
    made = ir.load(raw / "model.onnx")
    # Rewrite Gemm nodes, and products with a transposed matrix, as MatMul with a matrix [in, out]. Return
    # the names of the new matrices, by the name of the matrix whose transpose each is.
    names = Names(made)
    turned: dict[str, ir.Value] = {}
    for graph in made.graphs():
        for value in [value for value in graph.initializers.values() if is_matrix(value)]:
            for use in list(uses_of(value)):
                if _is_product(use):
                    _rewrite(use, value, turned, names)
            remove_unread(value)
    turned_names = {name: str(value.name) for name, value in turned.items()} | dict(_folded(made))
    if scheme is Scheme.DYNAMIC:
        made = _dynamic(made, raw)
    else:
        quantise_blocks(made, scheme.bits)
    read = read_columns if scheme is Scheme.DYNAMIC else read_blocks
    tied = tuple(codes for name, head in turned_names.items() if (codes := read(made, name, head)))
    RemoveUnusedNodesPass()(made)
    if not any(node.op_type == _OPERATORS[scheme] for node in made.graph.all_nodes()):
        problem = f"ONNX Runtime's quantiser finds no product to quantise in {shown(raw.name)}"
        raise RefusedError(problem, Hint("export without ", option("quantise")), "export.quantise")
    ir.save(made, new / "model.onnx", external_data=data)
    return Quantisation(tied, tuple(_float_matrices(made)))


def _folded(model: ir.Model) -> Iterator[tuple[str, str]]:
    """Yield small tables that are looked up, each with the matrix that is its transpose.

    onnxscript folds the Transpose of a head into such a second matrix.
    """
    small = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and is_matrix(value) and prod(sides(tensor.shape)) <= _FOLDED:
            small[name] = tensor.numpy()
    for name, table in small.items():
        if any(lookups(model, name)):
            yield from ((name, head) for head in small if head != name and np.array_equal(small[head].T, table))


def _dynamic(model: ir.Model, directory: Path) -> ir.Model:
    """Return the graph with MatMulInteger nodes. ``directory`` gets temporary files."""
    plain, to = directory / "plain.onnx", directory / "dynamic.onnx"
    try:
        ir.save(model, plain, external_data=f"{plain.name}.data")
        with silenced():
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(
                plain,
                to,
                op_types_to_quantize=["MatMul"],
                weight_type=QuantType.QUInt8,
                use_external_data_format=True,
                extra_options={"MatMulConstBOnly": True},
            )
        # The quantiser adds an initializer again for each node that reads it; one of each name stays.
        proto = onnx.load(str(to))
        once = {tensor.name: tensor for tensor in proto.graph.initializer}
        if len(once) < len(proto.graph.initializer):
            stored = list(once.values())
            del proto.graph.initializer[:]
            proto.graph.initializer.extend(stored)
        return ir.from_proto(proto)
    finally:
        for path in (plain, to):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)


def _float_matrices(model: ir.Model) -> Iterator[tuple[str, str]]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            shape = () if tensor is None else sides(tensor.shape)
            if tensor is None or tensor.dtype.name not in _FLOATS or len(shape) < _MATRIX or prod(shape) < MIN_ELEMENTS:
                continue
            node = next((node for node, _ in value.uses()), None)
            if node is not None and node.op_type not in ("MatMulNBits", "GatherBlockQuantized", "DequantizeLinear"):
                yield name, _why(node, shape)


def _why(node: ir.Node, shape: tuple[int, ...]) -> str:
    if is_standard(node, "Gather"):
        return "it is a lookup table that no head reads"
    if len(shape) > _MATRIX:
        return f"ONNX Runtime's quantiser supports matrices, and this tensor has {len(shape)} axes"
    return f"ONNX Runtime's quantiser has no form for {node.op_type}"


def quantise_blocks(model: ir.Model, bits: int) -> None:
    """Replace each MatMul with a stored matrix by MatMulNBits. A matrix that several read is quantised once."""
    names = Names(model)
    for graph in list(model.graphs()):
        for value in [value for value in graph.initializers.values() if is_matrix(value)]:
            nodes = [node for node, index in value.uses() if index == 1 and is_standard(node, "MatMul")]
            if not nodes:
                continue
            attributes, parts = _quantised(value, bits)
            for part in parts:
                graph.register_initializer(part)
            for node in nodes:
                replace_node(
                    node, [ir.node("MatMulNBits", [node.inputs[0], *parts], attributes, domain=MICROSOFT)], names
                )
            model.opset_imports.setdefault(MICROSOFT, 1)


def _quantised(value: ir.Value, bits: int) -> tuple[dict[str, Any], list[ir.Value]]:
    """Return the attributes of the product with the matrix ``value``, and its codes and scales."""
    with silenced():
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            _product(value), bits=bits, block_size=BLOCK, is_symmetric=True, accuracy_level=INT8_ACTIVATIONS
        )
        quantizer.process()
    graph = quantizer.model.model.graph
    (node,) = graph.node
    stored = {tensor.name: tensor for tensor in graph.initializer}
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return attributes, [_initializer(name, stored[name]) for name in node.input[1:]]


def _product(value: ir.Value) -> onnx.ModelProto:
    tensor = value.const_value
    assert tensor is not None
    array, dtype, name = tensor.numpy(), tensor.dtype.value, str(value.name)
    make = onnx.helper.make_tensor_value_info
    ends = [make(end, dtype, ["rows", size]) for end, size in zip("xy", array.shape, strict=True)]
    node = onnx.helper.make_node("MatMul", ["x", name], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "product", ends[:1], ends[1:]))
    # In place: a graph or model that is made from a tensor copies it.
    model.graph.initializer.add(name=name, dims=array.shape, data_type=dtype, raw_data=array.tobytes())
    return model


def _initializer(name: str, proto: onnx.TensorProto) -> ir.Value:
    """Return a copy. The message itself would keep its whole model in memory, with the float matrix."""
    read = ir.serde.deserialize_tensor(proto)
    tensor = ir.Tensor(read.numpy().copy(), dtype=read.dtype, name=name)
    return ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)


# Let an embedding read the quantised matrix of its head.


def read_blocks(model: ir.Model, embedding: str, head: str) -> str:
    """Make the lookups of ``embedding`` read the codes of MatMulNBits that were made from its transpose ``head``.

    The codes are reshaped for GatherBlockQuantized; `dedup` removes the Reshape. Return the name of the codes; empty
    without a lookup.
    """
    names = Names(model)
    table = next((table for table in heads(model) if str(table.codes.name).startswith(f"{head}_Q")), None)
    nodes = list(lookups(model, embedding)) if table is not None else []
    for node in nodes:
        assert table is not None
        width = sides(model.graph.initializers[embedding].const_value.shape)[1]  # type: ignore[union-attr]
        flat = ir.node("Reshape", [table.codes, constant(node, [table.rows, -1], names, "flat")])
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK, "bits": table.bits}
        inputs = [flat.outputs[0], node.inputs[1], table.scales, *([] if table.zeros is None else [table.zeros])]
        made = [flat, ir.node(LOOKUP, inputs, attributes, domain=MICROSOFT)]
        if width != table.blocks * table.block:
            ends = [constant(node, [end], names, "end") for end in (0, width, -1)]
            made.append(ir.node("Slice", [made[-1].outputs[0], *ends]))
        replace_node(node, made, names)
    return str(table.codes.name) if table is not None and nodes else ""


def read_columns(model: ir.Model, embedding: str, head: str) -> str:
    """Make the lookups of ``embedding`` read columns of the int8 matrix [H, V] that MatMulInteger reads.

    Return the name of the matrix; empty without a lookup with ids of known rank.
    """
    names = Names(model)
    stored = model.graph.initializers
    parts = [stored.get(f"{head}_{part}") for part in ("quantized", "scale", "zero_point")]
    nodes = list(lookups(model, embedding)) if None not in parts else []
    codes, scale, zero = parts
    for node in nodes:
        ids = node.inputs[1]
        if ids is None or ids.shape is None:
            return ""
        rank = len(ids.shape)
        made = [ir.node("Gather", [codes, ids], {"axis": 1})]
        made.append(ir.node("Transpose", [made[-1].outputs[0]], {"perm": [*range(1, rank + 1), 0]}))
        made.append(ir.node("DequantizeLinear", [made[-1].outputs[0], scale, zero]))
        replace_node(node, made, names)
    return str(codes.name) if codes is not None and nodes else ""


# Write every product with a stored matrix as MatMul, because ONNX Runtime's quantisers skip the other forms.


def lookups(model: ir.Model, name: str) -> Iterator[ir.Node]:
    """Yield the Gather nodes that look up rows of the initializer ``name``."""
    value = model.graph.initializers.get(name)
    for node, index in () if value is None else tuple(value.uses()):
        if is_standard(node, "Gather") and index == 0 and integer(node, "axis", 0) in (0, -MATRIX):
            yield node


def is_matrix(value: ir.Value) -> bool:
    """Return whether the value is a stored float matrix."""
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) == MATRIX and tensor.dtype.is_floating_point()


def _is_product(use: Use) -> bool:
    if use.node is None or use.index != 1:
        return False
    return is_standard(use.node, "MatMul") or (is_standard(use.node, "Gemm") and _is_plain(use.node))


def _is_plain(node: ir.Node) -> bool:
    factors = [node.attributes.get(name) for name in ("alpha", "beta")]
    return not integer(node, "transA", 0) and all(factor is None or factor.as_float() == 1.0 for factor in factors)


def _rewrite(use: Use, value: ir.Value, turned: dict[str, ir.Value], names: Names) -> None:
    node = use.node
    assert node is not None
    flipped = use.flipped != bool(integer(node, "transB", 0))
    matrix = _turned(value, turned, names) if flipped else value
    if is_standard(node, "MatMul"):
        node.replace_input_with(1, matrix)
        return
    nodes = [ir.node("MatMul", [node.inputs[0], matrix])]
    if len(node.inputs) > MATRIX and node.inputs[MATRIX] is not None:
        nodes.append(ir.node("Add", [nodes[0].outputs[0], node.inputs[MATRIX]]))
    nodes[0].outputs[0].type = value.type
    replace_node(node, nodes, names)
    if len(nodes) == 1:
        nodes[0].name = node.name


def _turned(value: ir.Value, turned: dict[str, ir.Value], names: Names) -> ir.Value:
    name = str(value.name)
    if name not in turned:
        tensor = value.const_value
        assert tensor is not None and isinstance(value.graph, ir.Graph)
        own = names.free(f"{name}_head")
        rows, columns = sides(tensor.shape)

        def transposed() -> ir.TensorProtocol:
            return ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype, name=own)

        # Transposed when it is read, so that only one is in memory.
        matrix = ir.LazyTensor(transposed, dtype=tensor.dtype, shape=ir.Shape([columns, rows]), name=own)
        made = ir.Value(name=own, shape=matrix.shape, type=ir.TensorType(tensor.dtype), const_value=matrix)
        value.graph.register_initializer(made)
        turned[name] = made
    return turned[name]


def prove_once(directory: Path, graph: str, tied: Sequence[str]) -> SessionProof:
    """Return how often a session of ``graph`` holds each matrix of ``tied``, which are names of initializers.

    Raises `VerificationError` if it holds one more than once.
    """
    with open_files(directory) as files:
        file = read_graph(str(directory), graph, files)
        stored = [entry for entry in GraphBytes(file, files).stored(1) if str(entry.value.name) in tied]
    sizes = [(entry, (entry.record.nbytes, entry.record.nbytes)) for entry in stored]
    matrices = [shared_matrix(file, entry.value, ("quantised",), size, size) for entry, size in sizes]
    return prove(directory, directory / graph, graph, matrices)
