"""ONNX: graphs changed through their messages, external data that lies, and damaged wire bytes."""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.case import Case
from tests.fuzz.models import config
from tests.fuzz.mutate.edits import NAMES, NUMBERS, edited

NAME, DATA = "model.onnx", "model.onnx.data"
OPERATORS = ("Identity", "Add", "MatMul", "Transpose", "Cast", "Gather", "Constant", "If", "Loop", "Nothing", "")
LOCATIONS = (*NAMES, DATA, NAME, "missing", "/dev/zero")


@lru_cache
def _base(external: bool, branches: bool) -> bytes:
    table = np.arange(32, dtype="<f4").reshape(8, 4) / 7
    tensors = [numpy_helper.from_array(table, "embed"), numpy_helper.from_array(table[::-1].copy(), "head")]
    tensors.append(helper.make_tensor("bias", TensorProto.FLOAT, [8], [0.0] * 8))
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["embedded"]),
        helper.make_node("Tanh", ["embedded"], ["hidden"]),
        helper.make_node("Transpose", ["head"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "turned"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    if branches:
        sides = {"then_branch": _branch("a"), "else_branch": _branch("b")}
        nodes.insert(2, helper.make_node("If", ["flag"], ["chosen"], **sides))
        tensors.append(helper.make_tensor("flag", TensorProto.BOOL, [], [True]))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", 8])
    graph = helper.make_graph(nodes, "main", [ids], [logits], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if external:
        for place, tensor in enumerate(model.graph.initializer[:2]):
            tensor.data_location = TensorProto.EXTERNAL
            tensor.ClearField("raw_data")
            for key, value in (("location", DATA), ("offset", str(128 * place)), ("length", "128")):
                tensor.external_data.add(key=key, value=value)
    return model.SerializeToString()


def _branch(name: str) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    node = helper.make_node("Neg", ["hidden"], [name])
    tensors = [numpy_helper.from_array(np.ones((4, 4), "<f4"), f"{name}.weight")]
    return helper.make_graph([node], f"branch {name}", [], [output], tensors)


def make(rng: random.Random) -> Case:
    """Return a damaged graph, with its data beside it or inside."""
    external = rng.random() < 0.3
    model = onnx.ModelProto.FromString(_base(external, rng.random() < 0.3))
    if rng.random() < 0.85:
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice(_CHANGES)(rng, model)
    data = model.SerializeToString()
    if rng.random() < 0.25:
        data = edited(rng, data, most=2)
    files = {NAME: data}
    if external:
        raw = (np.arange(32, dtype="<f4") / 7).tobytes()
        files[DATA] = rng.choice((raw * 2, raw * 2, raw * 2, raw, b"", raw * 2 + b"x"))
    if rng.random() < 0.3:
        files["config.json"] = config()
    return Case("onnx", files, rng.choice((".", NAME)), "onnx", (NAME,))


def _names(rng: random.Random, model: onnx.ModelProto) -> str:
    graph = model.graph
    known = [name for node in graph.node for name in (*node.input, *node.output)]
    return rng.choice((*known, *(one.name for one in graph.initializer), rng.choice(NAMES).replace("\0", "0")))


def _rewire(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let a node read or make something else: cycles, own outputs, unknown and repeated names."""
    node = rng.choice(model.graph.node) if model.graph.node else model.graph.node.add()
    side = rng.choice((node.input, node.input, node.output))
    if side and rng.random() < 0.8:
        side[rng.randrange(len(side))] = _names(rng, model)
    else:
        side.append(_names(rng, model))


def _reorder(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes[: rng.choice((99, 99, 4))])


def _own(rng: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.node:
        node = rng.choice(model.graph.node)
        node.input[:] = [*node.input[1:], node.output[0] if node.output else ""]


def _kind(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.data_type = rng.choice((*range(28), 99, 1 << 30, -1))


def _shape(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.dims[:] = [
        rng.choice((0, 1, 2, 4, 8, -1, 1 << 40, (1 << 63) - 1)) for _ in range(rng.choice((0, 1, 2, 2, 70)))
    ]


def _raw(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    draw = rng.randrange(4)
    if draw == 0:
        tensor.raw_data = tensor.raw_data[: rng.randrange(130)]
    elif draw == 1:
        tensor.float_data.extend([0.5] * rng.choice((1, 8, 32)))
    elif draw == 2:
        tensor.ClearField("raw_data")
        tensor.int32_data.extend([1] * 32)
    else:
        tensor.raw_data = rng.randbytes(128)


def _tensor(rng: random.Random, model: onnx.ModelProto) -> TensorProto:
    return rng.choice(model.graph.initializer) if model.graph.initializer else model.graph.initializer.add()


def _label(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = model.graph
    boxes = [*graph.initializer, *graph.input, *graph.output, *graph.node, graph]
    rng.choice(boxes).name = rng.choice(
        (*(one.name for one in graph.initializer), rng.choice(NAMES), rng.choice(NAMES))
    )


def _external(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.data_location = rng.choice((0, 1, 1, 1))
    key = rng.choice(("location", "location", "offset", "length", "checksum", "x"))
    value = rng.choice(LOCATIONS) if key == "location" else str(rng.choice((*NUMBERS, -1, "", "x", "1e3", "0x10")))
    tensor.external_data.add(key=key, value=value)


def _header(rng: random.Random, model: onnx.ModelProto) -> None:
    draw = rng.randrange(5)
    if draw == 0:
        model.ir_version = rng.choice((-1, 0, 1, 2, 3, 4, 12, 13, 14, 99, (1 << 63) - 1))
    elif draw == 1:
        del model.opset_import[:]
    elif draw == 2:
        model.opset_import.add(domain=rng.choice(NAMES), version=rng.choice((0, 1, 17, 99, -1)))
    elif draw == 3:
        del model.opset_import[:]
        model.opset_import.add(version=rng.choice((0, 1, 6, 11, 13, 24, 27, 99)))
    else:
        model.producer_name = rng.choice(NAMES)


def _operator(rng: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.node:
        node = rng.choice(model.graph.node)
        node.op_type = rng.choice(OPERATORS)
        node.domain = rng.choice(("", "", "ai.onnx", "com.microsoft", "x"))


def _again(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = model.graph
    for box in rng.sample((graph.initializer, graph.node, graph.input, graph.output), 1):
        if box:
            box.add().CopyFrom(rng.choice(box))


def _less(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = model.graph
    box = rng.choice((graph.initializer, graph.node, graph.input, graph.output))
    if box:
        del box[rng.randrange(len(box))]


def _typed(rng: random.Random, model: onnx.ModelProto) -> None:
    values = [*model.graph.input, *model.graph.output]
    if values:
        value = rng.choice(values)
        if rng.random() < 0.3:
            value.ClearField("type")
        else:
            value.type.tensor_type.elem_type = rng.choice((0, 1, 7, 10, 16, 27, 99))


def _function(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", [rng.choice("xyz")], [rng.choice("yz")])]
    function = helper.make_function("local", "Twice", ["x"], ["z"], nodes, [helper.make_opsetid("", 17)])
    model.functions.append(function)
    if rng.random() < 0.5:
        model.opset_import.append(helper.make_opsetid("local", 1))
    if model.graph.node and rng.random() < 0.5:
        node = model.graph.node[min(1, len(model.graph.node) - 1)]
        node.op_type, node.domain = "Twice", "local"


_CHANGES = (
    _rewire, _rewire, _rewire, _reorder, _own, _kind, _kind, _shape, _raw, _label, _external, _header,
    _operator, _again,
    _less, _typed, _function,
)  # fmt: skip
