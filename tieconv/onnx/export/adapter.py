"""Call transformers' ONNX exporter. Only this module knows its interface, which is experimental and changes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tieconv.errors import RefusedError, TieconvError
from tieconv.execute import tree
from tieconv.install import install_command
from tieconv.reference.model import cache_in
from tieconv.reference.packages import need, quiet, silenced
from tieconv.text import shown

TRIED = {"transformers": "5.23.0", "torch": "2.13.0", "onnx": "1.23.2", "onnxscript": "0.7.2"}
"""The versions that this adapter is tested with. It also supports transformers 5.17.0 and 5.24.0."""
_NOISE = ("pkg.torch.onnx.", "pkg.onnxscript.")
"""Metadata of the tracer: stack traces with source lines of the modelling code, as large as a small graph."""


def export_graph(
    model: Any, inputs: Mapping[str, Any], opset: int | None, fuse: str | None = None, *, batch_only: bool = False
) -> Any:
    """Trace the model with ``inputs``, with every axis dynamic; with ``batch_only`` only the first axis of each.

    ``fuse`` is the provider of ONNX Runtime for whose operators the exporter fuses attention, norms and activations.

    Returns an `ExportedModel`, or torch's `ONNXProgram` from older exporters. Raises `RefusedError` with the installed
    versions if this adapter does not support the exporter, or if the exporter fails.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    torch = need("torch", "onnx,torch", "exporting")
    with quiet(transformers), silenced(), quick_rewrites(), torch.no_grad():
        shapes = {name: {0: torch.export.Dim.AUTO} for name in inputs} if batch_only else None
        exporter, config = _exporter(dict(inputs), opset, fuse, shapes)
        try:
            made = exporter.export(model, dict(inputs), config)
        except Exception as error:
            # The tracer, the translator and the optimizer raise any exception.
            raise _failed(model, error) from error
    program = program_of(made)
    # Remove the tracer's metadata from the graph. Names and the module hierarchy (``namespace``) remain.
    for graph in program.graphs():
        for node in graph:
            for owner in (node, *node.outputs):
                for key in [key for key in owner.metadata_props if key.startswith(_NOISE)]:
                    del owner.metadata_props[key]
    name_axes(program)
    constants = fold_windows(program, cache_in(inputs))
    for component in getattr(made, "components", {}).values():
        component.metadata.out_constants = sorted([*component.metadata.out_constants, *map(list, constants.items())])
    start_ranges(program)
    return made


def embedding_graph(model: Any, opset: int | None) -> Any:
    """Return the onnx-ir graph of the model's input embedding. Raises what `export_graph` raises."""
    torch = need("torch", "onnx,torch", "exporting")
    module = model.get_input_embeddings()
    (argument, *_) = inspect.signature(module.forward).parameters
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    return program_of(export_graph(module, {argument: ids}, opset))


def program_of(made: Any) -> Any:
    """Return the onnx-ir graph of torch's `ONNXProgram` (transformers 5.17) or of an `ExportedModel` (5.23)."""
    for attribute, saves in (("program", "save_pretrained"), ("model", "save")):
        program = getattr(made, attribute, None)
        if hasattr(made, saves) and hasattr(program, "graph"):
            return program
    raise _moved("it returned neither an ExportedModel nor an ONNXProgram")


def save(made: Any, directory: Path) -> dict[str, Any]:
    """Write `model.onnx` and `model.onnx.data` to ``directory``, and return the exporter's document.

    The document is what transformers needs to load the graph. It is empty for an `ONNXProgram`, whose exporter has no
    loader.
    """
    # Each large weight is written in order and in slices; torch copies one that is a transposed view. onnx-ir 1.1.0
    # writes such a view element by element: that takes six times as long, and Ctrl-C waits for it.
    torch = need("torch", "onnx,torch", "exporting")

    def sliced(tensor: ir.Tensor[Any]) -> ir.Tensor[Any]:
        raw, dtype = tensor.raw, tensor.dtype.numpy()
        if isinstance(raw, np.ndarray):  # as integers, since torch has not every dtype of onnx
            raw = torch.from_numpy(raw.view(f"i{raw.itemsize}"))
        array = raw.detach().contiguous().view(torch.uint8).numpy().view(dtype)
        return _Sliced(array, tensor.dtype, shape=tensor.shape)

    for value in program_of(made).graph.initializers.values():
        tensor = value.const_value
        raw = getattr(tensor, "raw", None)
        if isinstance(raw, np.ndarray):
            is_changed = not raw.flags.c_contiguous and min(raw.strides) >= 0
        else:
            is_changed = isinstance(raw, torch.Tensor) and raw.ndim > 0 and tensor.dtype.bitwidth >= 8
        if is_changed:
            value.const_value = ir.LazyTensor(partial(sliced, tensor), tensor.dtype, tensor.shape, name=tensor.name)
    with silenced():
        if not hasattr(made, "save_pretrained"):
            made.save(str(directory / "model.onnx"), external_data=True)
            return {}
        made.save_pretrained(directory)
    for name in ("model.onnx", "export.json"):
        if not (directory / name).is_file():
            raise _moved(f"it did not write {name}")
    document: dict[str, Any] = json.loads((directory / "export.json").read_text(encoding="utf-8"))
    for path in directory.iterdir():
        if not path.name.startswith("model.onnx"):
            tree.remove(path)
    return document


_SLICE = 1 << 24


class _Sliced(ir.Tensor[Any]):
    """A tensor that is written in slices: Ctrl-C waits for one of them, and not for a gigabyte."""

    def tofile(self, file: Any) -> None:
        data = self.raw.reshape(-1).view(np.uint8)
        for start in range(0, len(data), _SLICE):
            file.write(data[start : start + _SLICE])


def _exporter(
    inputs: dict[str, Any], opset: int | None, fuse: str | None, shapes: Mapping[str, Any] | None
) -> tuple[Any, Any]:
    try:
        module = importlib.import_module("transformers.exporters")
        exporter, make = module.OnnxExporter, module.OnnxConfig
    except (ImportError, AttributeError) as error:
        raise _moved(f"it has no exporters.OnnxExporter ({shown(error, 200)})") from error
    try:
        more = ({"ort_fusions": fuse} if fuse else {}) | ({"dynamic_shapes": shapes} if shapes else {})
        config = make(dynamic=True, opset_version=opset, **more)
        inspect.signature(exporter.export).bind(None, None, inputs, config)
    except TypeError as error:
        raise _moved(f"its arguments differ ({shown(error, 200)})") from error
    try:
        return exporter(), config
    except ImportError as error:
        message = f"transformers' exporter fails to start: {shown(error, 300)}"
        raise RefusedError(message, install_command("onnx", "torch"), "export.packages") from error


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that make a graph."""
    releases = {}
    for name in (*TRIED, "onnx-ir"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases[name] = importlib.metadata.version(name)
    return releases


def _joined(releases: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in releases.items())


def _moved(why: str) -> TieconvError:
    here = versions().get("transformers", "an unknown version")
    hint = f"use a tested version ({_joined(TRIED)}): pip install 'transformers=={TRIED['transformers']}'"
    return RefusedError(f"tieconv does not support the exporter of transformers {here}: {why}", hint, "export.moved")


def _failed(model: Any, error: Exception) -> TieconvError:
    lines = str(error).strip().splitlines() or [""]
    problem = f"transformers' exporter cannot export {type(model).__name__}"
    hint = f"{tried()}; --traceback shows where it failed"
    return RefusedError(f"{problem}: {type(error).__name__}: {shown(lines[0], 400)}", hint, "export.failed")


def tried() -> str:
    """Return the installed versions and the tested ones, for a hint."""
    return f"installed: {_joined(versions())}; tested with: {_joined(TRIED)}"


_NAMES = {
    "input_ids": ("batch", "sequence"),
    "position_ids": ("batch", "sequence"),
    "token_type_ids": ("batch", "sequence"),
    "decoder_input_ids": ("batch", "decoder_sequence"),
    "inputs_embeds": ("batch", "sequence", ""),
    "encoder_attention_mask": ("batch", "encoder_sequence"),
    "encoder_hidden_states": ("batch", "encoder_sequence"),
}
_CACHE = re.compile(r"(?:input\.)?(?:past_key_values|cache)\.")
_PAST = ("batch", "", "past_sequence", "")
_CROSS = ("batch", "", "encoder_sequence", "")
_SYMBOL = re.compile(r"\b[su]\d+\b")


def name_axes(model: ir.Model) -> None:
    """Replace the tracer's symbols by names of axes, everywhere in the graph."""
    names = dict(_symbols(model))
    for value in _values(model):
        if value.shape is not None and any(isinstance(side, ir.SymbolicDim) for side in value.shape):
            value.shape = ir.Shape([_named(side, names) for side in value.shape])


def _symbols(model: ir.Model) -> Iterator[tuple[str, str]]:
    inputs = {str(value.name): value for value in model.graph.inputs}
    cached = any(map(_CACHE.match, inputs))
    whole = "past_sequence + sequence" if cached else "sequence"
    for name, value in inputs.items():
        cache = _CROSS if ".encoder." in name else _PAST
        axes = cache if _CACHE.match(name) else _NAMES.get(name, ("batch", whole))
        if name == "position_ids" and len(value.shape or ()) > len(axes):
            axes = ("", *axes)  # M-RoPE
        if name == "token_type_ids" and cached:
            axes = ("batch", whole)
        for side, axis in zip(value.shape or (), axes or (), strict=False):
            if axis and isinstance(side, ir.SymbolicDim) and side.value and _SYMBOL.fullmatch(side.value):
                yield side.value, axis


def _named(side: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | ir.SymbolicDim:
    if isinstance(side, int) or not side.value:
        return side
    expression = _SYMBOL.sub(lambda match: names.get(match[0], match[0]), side.value)
    # If a dynamic axis turns out to be always 2, the exporter writes it as the symbol "2".
    return int(expression) if expression.isdecimal() else ir.SymbolicDim(expression)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs


# Let a range of positions start at the length of the cache. No pass then copies that length to a device.
#
# transformers computes ``arange(sequence) + past_length``. ONNX Runtime computes the length on the CPU and the sum on
# the device. So each pass waits for a copy, and no CUDA graph can be captured.
# ``arange(past_length, past_length + sequence)`` has the same values. Its operator reads its bounds on the CPU.


def start_ranges(model: ir.Model) -> int:
    """Replace each sum of a range and a scalar by a range that starts at the scalar. Return how many were replaced."""
    graph = model.graph
    replaced = 0
    for node in list(graph):
        summands = _summands(node)
        if summands is None:
            continue
        counted, start = summands
        bound = ir.node("Add", [start, counted.inputs[1]], name=f"{node.name}.end")
        ranged = ir.node("Range", [start, bound.outputs[0], counted.inputs[2]], name=f"{node.name}.range")
        output, made = node.outputs[0], ranged.outputs[0]
        bound.outputs[0].type, bound.outputs[0].shape = output.type, ir.Shape([])
        made.type, made.shape = output.type, output.shape
        graph.insert_before(node, [bound, ranged])
        output.replace_all_uses_with(made)
        made.name, bound.outputs[0].name = f"{output.name}.range", f"{output.name}.end"
        graph.remove(node, safe=True)
        replaced += 1
    if replaced:
        RemoveUnusedNodesPass()(model)
    return replaced


def _summands(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return the node of the range and the scalar of a sum of these two, or ``None``."""
    if (node.op_type, node.domain) != ("Add", "") or node.outputs[0].is_graph_output():
        return None
    for counted, start in (node.inputs, tuple(reversed(node.inputs))):
        range_node = counted.producer() if counted is not None else None
        if counted is None or start is None or range_node is None:
            continue
        if (range_node.op_type, range_node.domain) != ("Range", ""):
            continue
        first, _, step = range_node.inputs
        integers = start.type == counted.type == ir.TensorType(ir.DataType.INT64)  # floats would round differently
        scalar = start.shape is not None and len(start.shape) == 0
        if integers and scalar and start.const_value is None and _holds(first, 0) and _holds(step, 1):
            return range_node, start
    return None


def _holds(value: ir.Value | None, number: int) -> bool:
    constant = ir.convenience.get_const_tensor(value) if value is not None else None
    return constant is not None and constant.size == 1 and int(constant.numpy().item()) == number


# Keep the rewriter of onnxscript from work that cannot succeed, which grows with the square of a model's layers.
#
# For a pattern with several outputs its matcher lists all nodes for each node. It then tries all their combinations.
# The first node of a combination is always the same. If that one does not match, none of them can. onnxscript has no
# public way to ask for a match (https://github.com/microsoft/onnxscript/issues/1909), so this uses the matcher's own
# parts. They came with https://github.com/microsoft/onnxscript/pull/1734.

_MATCHER = "onnxscript.rewriter._matcher"


@contextlib.contextmanager
def quick_rewrites() -> Iterator[None]:
    """Ask of each node first whether it can be the first output of the pattern. The rewrites are the same.

    Does nothing if this version of onnxscript has no such matcher.
    """
    try:
        matcher = importlib.import_module(_MATCHER).SimplePatternMatcher
        original = matcher.match
        inspect.signature(matcher._init_match).bind(None, 0)
        inspect.signature(matcher._match_node).bind(None, None, None)
    except (ImportError, AttributeError, TypeError):
        yield
        return

    def match(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        if not self.pattern.has_single_output_node:
            self._tracer = options.get("tracer")
            self._graph = getattr(graph, "graph", graph)  # a function has a graph
            self._init_match(0)
            if not self._match_node(self.pattern.output_nodes[0], node) and not self._match:
                return self._match
        return original(self, model, graph, node, **options)

    matcher.match = match
    try:
        yield
    finally:
        matcher.match = original


_WINDOW = re.compile(r"(?:input\.|output\.)?(?:past_key_values|cache)\.(?:layers\.)?(\d+)\._sliding_window_tensor")


def fold_windows(model: ir.Model, cache: Any) -> dict[int, int]:
    """Replace the inputs with a window's length by constants, and remove the outputs that repeat them.

    transformers' caches hold the length as a tensor (``_sliding_window_tensor``). The exporter makes every tensor of a
    cache an input and an output. ``cache`` is the one that the model was traced with. Returns the length for the
    index of each removed output.
    """
    graph = model.graph
    lengths = _lengths(cache)
    constants: dict[int, ir.Value] = {}
    for value in [value for value in graph.inputs if _layer(value) in lengths]:
        length = lengths[_layer(value)]
        if length not in constants:
            # Add a scalar INT64 initializer.
            name = f"sliding_window_{length}"
            scalar = ir.tensor(length, ir.DataType.INT64, name=name)
            constant = ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(scalar.dtype), const_value=scalar)
            graph.register_initializer(constant)
            constants[length] = constant
        value.replace_all_uses_with(constants[length], replace_graph_outputs=True)
        graph.inputs.remove(value)
    removed = {index: lengths[_layer(value)] for index, value in enumerate(graph.outputs) if _layer(value) in lengths}
    for index in sorted(removed, reverse=True):
        del graph.outputs[index]
    if constants or removed:
        RemoveUnusedNodesPass()(model)
    return removed


def _lengths(cache: Any) -> Mapping[int, int]:
    lengths = {}
    for index, layer in enumerate(getattr(cache, "layers", None) or ()):
        length = getattr(layer, "_sliding_window_tensor", None)
        if length is not None:
            lengths[index] = int(length)
    return lengths


def _layer(value: ir.Value) -> int:
    """Return the layer whose window the value holds; -1 for any other value."""
    match = _WINDOW.fullmatch(value.name or "")
    return int(match[1]) if match else -1
