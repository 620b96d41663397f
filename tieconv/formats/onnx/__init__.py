"""Read ONNX graphs without the onnx package."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from tieconv.checkpoint.graph_structure import OLDEST_IR, GraphRecord, Latent, MatrixRead, QuantisedRead
from tieconv.checkpoint.model_files import Caution, Checkpoint, Document, Files, Layout, Listing
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.directory import CONFIG, Format, checkpoint_of, read_config
from tieconv.formats.onnx.messages import Graph, Model, Tensor, Wire, read_model
from tieconv.formats.onnx.roles import Role, Roles, find_roles
from tieconv.formats.onnx.scopes import CALL, Origin, Scope, cautions, is_shaped, origin, scope_of, scopes, uses
from tieconv.formats.onnx.tensor import TYPES, External, byte_range, needed_bytes, read_tensor
from tieconv.text import Hint, call, count, shown

# Read an ONNX graph, or a directory of graphs, as a checkpoint, with initializers as tensors.

SUFFIX = ".onnx"
DEDUP, UNTIE = (Hint(f"tieconv {verb}", python=f"tieconv.plan_graph_{verb}") for verb in ("dedup", "untie"))
NEXT_STEP = Hint("only ", DEDUP, " and ", UNTIE, " change ONNX graphs")
_PASSING = ("Transpose", "Cast", "Identity")


def _read(listing: Listing, files: Files) -> Checkpoint:
    names = graph_names(listing)
    _check_one_model(listing, names)
    read = [_read_one(listing, files, name, alone=len(names) == 1) for name in names]
    records = [record for _, tensors, _ in read for record in tensors]
    weights = tuple(_weight_files(names, records, files))
    config, cautions = _config(listing, files)
    layout = Layout.SINGLE if listing.named is None else Layout.FILE
    used = sorted({*(file.name for file in weights), *((config.name,) if config else ())})
    cautions = (*cautions, *(caution for _, _, faults in read for caution in faults))
    graphs = tuple(graph for graph, _, _ in read)
    checkpoint = checkpoint_of(listing, files, layout, "onnx", weights, used)
    return replace(checkpoint, config=config, cautions=cautions, graphs=graphs, read_only=NEXT_STEP)


def graph_names(listing: Listing) -> tuple[str, ...]:
    """Return the graph files of MODEL, relative to its root."""
    if listing.named is not None:
        return (listing.named,) if listing.named.lower().endswith(SUFFIX) else ()
    return tuple(name for name in listing.entries if name.lower().endswith(SUFFIX))


_CONFIGS = ("config.json", "genai_config.json")


def _check_one_model(listing: Listing, names: tuple[str, ...]) -> None:
    """Refuse several models: directories with their own configs, or below others.

    A pipeline of diffusers or onnxruntime-genai is one, which a file at the top describes.
    """
    folders = sorted({os.path.dirname(name) for name in names})
    configured = [folder for folder in folders if any(f"{folder}/{name}" in listing.entries for name in _CONFIGS)]
    apart = len(configured) > 1 or any("/" in folder for folder in folders)
    if len(folders) > 1 and apart and not {"model_index.json", "genai_config.json"} & {*listing.top}:
        problem = f"{shown(listing.source)} holds {count(len(names), 'ONNX graph')} in {len(folders)} directories"
        if weights := sum(name.endswith(".safetensors") for name in listing.entries):
            problem += f", and {count(weights, 'safetensors file')}"
        first = folders[0] or next(name for name in names if "/" not in name)
        inspects = call("inspect", os.path.join(listing.source, first).removeprefix("./"))
        checks = Hint("; or check every model below: ", call("check", listing.source))
        finds_each = folders[0] and "://" not in listing.source  # `check` takes a graph at the top as one model
        hint = Hint("give one of them: ", inspects, checks if finds_each else "")
        raise UnreadableError(problem, hint, "onnx.several-models")


def data_files(root: str, files: Files, name: str) -> set[str]:
    """Return the files with external data of the graph ``name``. Raises what reading the graph raises."""
    wire, model = _open(files, name)
    return {span.file for span in _external(wire, model, root, files)}


def check_readable(root: str, files: Files, name: str) -> None:
    """Raise `UnreadableError` for a graph that `tieconv inspect` refuses."""
    _read_one(Listing(root, root, name, {}, ()), files, name, alone=True)


def _open(files: Files, name: str) -> tuple[Wire, Model]:
    sparse = bool(getattr(files, "costly", False))
    size = files.state(name).size
    wire = Wire(lambda count, offset: files.pread(name, count, offset), size, name, "ONNX graph", sparse=sparse)
    return wire, read_model(wire)


def _external(wire: Wire, model: Model, root: str, files: Files) -> list[ByteRange]:
    """Return the checked byte ranges of all external tensors, including those of attributes and functions."""
    outside = [tensor for tensor in model.tensors if tensor.external]
    needed = {id(tensor): needed_bytes(tensor.kind, tensor.dims) for tensor in outside}
    return [byte_range(External(wire.name, t.name, t.entries, needed[id(t)]), root, files) for t in outside]


def _read_one(
    listing: Listing, files: Files, name: str, *, alone: bool
) -> tuple[GraphRecord, tuple[TensorRecord, ...], tuple[Caution, ...]]:
    wire, model = _open(files, name)
    scope = scope_of(model.graph, model.functions)
    prefix = "" if alone else f"{name}:"
    for inside in scopes(scope):
        names = Counter(tensor.name for tensor in inside.graph.initializers)
        if len(names) != len(inside.graph.initializers):
            wire.refuse(f"holds two initializers named {shown(names.most_common(1)[0][0])}", "repeated-tensor")
    labels: dict[int, str] = {}
    used: Counter[str] = Counter()
    for tensor in _tensors(scope, model):
        used[tensor.name] += 1
        number = f"#{used[tensor.name]}" if used[tensor.name] > 1 else ""
        labels[id(tensor)] = f"{prefix}{tensor.name}{number}"
    _external(wire, model, listing.root, files)
    tensors = tuple(read_tensor(wire, t, labels[id(t)], listing.root, files) for t in _tensors(scope, model))
    roles = find_roles(scope)

    def read(role: Role | None) -> MatrixRead | None:
        return None if role is None or role.quantised else MatrixRead(labels[id(role.tensor)], role.turned)

    latent, held = _in_session(scope, model, labels)
    return (
        GraphRecord(
            file=name,
            ir_version=model.ir_version,
            opset=model.opsets.get("", model.opsets.get("ai.onnx", 0)),
            producer=model.producer,
            inputs=tuple(name for name in model.graph.inputs if name not in scope.held),
            outputs=tuple(model.graph.outputs),
            nodes=sum(map(_nodes, (model.graph, *model.functions))),
            sparse=sum(map(_sparse, (model.graph, *model.functions))),
            names=tuple(labels.values()),
            embedding=read(roles.embedding),
            head=read(roles.head),
            bias=labels[id(roles.bias)] if roles.bias is not None else None,
            latent=latent,
            session_bytes=held,
            quantised=tuple(_quantised(roles, labels)),
            uses=tuple(uses(scope, labels)),
            overridable=tuple(labels[id(scope.held[name])] for name in model.graph.inputs if name in scope.held),
        ),
        tensors,
        cautions(model, name, is_utf8=wire.is_utf8),
    )


def _nodes(graph: Graph) -> int:
    return len(graph.nodes) + sum(_nodes(inner) for node in graph.nodes for inner in node.graphs.values())


def _sparse(graph: Graph) -> int:
    inner = sum(node.sparse + sum(map(_sparse, node.graphs.values())) for node in graph.nodes)
    return graph.sparse + inner


def _quantised(roles: Roles, labels: dict[int, str]) -> Iterator[QuantisedRead]:
    for name, role in (("embedding", roles.embedding), ("head", roles.head)):
        if role is not None and role.quantised is not None:
            read = role.quantised
            parts = tuple(labels[id(part)] for part in read.parts)
            yield QuantisedRead(name, labels[id(role.tensor)], read.operator, parts, read.bits, read.block)


def _tensors(scope: Scope, model: Model) -> Iterator[Tensor]:
    """Yield every initializer and constant once, also those of functions that no node calls."""
    bodies = (inside for body in model.functions for inside in scopes(scope_of(body)))
    yield from {id(tensor): tensor for each in (*scopes(scope), *bodies) for tensor in each.held.values()}.values()


def _in_session(scope: Scope, model: Model, labels: dict[int, str]) -> tuple[tuple[Latent, ...], int]:
    """Return the forms of initializers that a session computes at its start, and its bytes of initializers."""
    inputs = set(scope.graph.inputs) if model.ir_version >= OLDEST_IR else set(scope.held)
    forms: dict[tuple[int, int], dict[tuple[object, int, tuple[str, ...]], Origin]] = {}
    for stored in _reads(scope):
        fixed = stored.tensor.name not in inputs or scope.held.get(stored.tensor.name) is not stored.tensor
        key = (stored.perm, stored.kind, stored.shaped) if fixed else (None, stored.tensor.kind, ())
        # Each call of a function makes its constants again.
        forms.setdefault((id(stored.tensor), stored.holder), {}).setdefault(key, stored)
    latent = []
    held = 0
    for (tensor, _), read in forms.items():
        for (perm, kind, shaped), stored in read.items():
            size = needed_bytes(kind, stored.tensor.dims) or 0 if kind in TYPES else prod(stored.tensor.dims)
            held += size
            if perm is not None or kind != stored.tensor.kind or shaped:
                latent.append(Latent(labels[tensor], stored.operators, size, len(read) > 1))
    return tuple(latent), held


def _reads(outer: Scope) -> Iterator[Origin]:
    """Yield each initializer in the form that a node or an output of a graph reads."""
    for scope in scopes(outer):
        names: Iterable[str] = (
            name
            for node in scope.graph.nodes
            if node.standard not in _PASSING
            # a session reshapes an initializer once
            and not (is_shaped(scope, node) and origin(scope, node.inputs[0], shaped=True) is not None)
            and CALL not in scope.inner.get(id(node), {})
            for name in node.inputs
            if name
        )
        for name in (*names, *scope.graph.outputs):
            stored = origin(scope, name, shaped=True)
            if stored is not None:
                yield stored


def _weight_files(graphs: tuple[str, ...], records: list[TensorRecord], files: Files) -> Iterator[WeightFile]:
    held: dict[str, list[TensorRecord]] = {name: [] for name in graphs}
    for record in records:
        held.setdefault(record.range.file, []).append(record)
    for name, tensors in held.items():
        tensors.sort(key=lambda tensor: (tensor.range.start, tensor.range.end))
        start = tensors[0].range.start if tensors else 0
        yield WeightFile(name, files.state(name).size, start, tuple(tensors), None)


def _config(listing: Listing, files: Files) -> tuple[Document | None, tuple[Caution, ...]]:
    if CONFIG in listing.special:
        files.state(CONFIG)  # raises the error of this file
    if CONFIG not in listing.top:
        return None, ()
    return read_config(files)


ONNX = Format("onnx", lambda listing: bool(graph_names(listing)), _read)
