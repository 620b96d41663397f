"""Send every id of the vocabulary through the part of a graph that reads token ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tieconv.checkpoint.results.parity import Gate, Vocabulary
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError
from tieconv.inspection.view_reader import readable
from tieconv.onnx.child import session_call
from tieconv.onnx.ort_session import ELEMENTS, HEAVY, Session, open_session
from tieconv.onnx.parity.bindings import Role
from tieconv.onnx.parity.graph_file import DTYPES, parts
from tieconv.onnx.parity.graph_forward import GraphModel, as_tensor
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.weight_identity import STORED, Rows, TensorSearch, bits_of, folds
from tieconv.reference.model import Batch, Reference
from tieconv.sources.local import open_files
from tieconv.text import count

# Compare the row that a graph looks up for every id with the row of the checkpoint.

_VALUES = 1 << 22
"""Values of looked-up rows in memory at a time."""
_LEAST = 0.5
"""The share of equal rows from which a lookup counts as one of words."""

Run = Callable[[torch.Tensor, dict[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Runs a copy of the first nodes on ids (rows,) and more inputs, and returns its outputs by name."""


@record
class _Table:
    """The checkpoint's word table: its rows as a graph would hold them, by ONNX type and fold."""

    forms: Callable[[str], dict[str, Rows]]
    ids: int
    width: int


def every_lookup(subject: Subject) -> Vocabulary | None:
    """Return which ids get another row than the checkpoint's, and which later nodes treat differently.

    The result is ``None`` if the graph has no direct lookup of words. Raises `NotRunError` like `open_session`.
    """
    try:
        return _joined([_every_lookup(part) for part in subject.parts])
    except NotRunError:
        raise
    except Exception:  # noqa: BLE001 - the runtime makes its classes of errors in C++; the graph runs or fails later
        return None


def _joined(results: list[Vocabulary | None]) -> Vocabulary | None:
    """Return the ids of all graphs of a model; ``None`` if one graph has no direct lookup."""
    seen = [result for result in results if result is not None]
    if len(seen) < len(results):
        return None
    wrong = sorted({token for result in seen for token in result.wrong})
    special = sorted({token for result in seen for token in result.special})
    return replace(seen[0], wrong=tuple(wrong), special=tuple(special))


def _every_lookup(subject: Subject) -> Vocabulary | None:
    checkpoint, embedding = subject.evidence.checkpoint, subject.evidence.head.input_embedding
    stored = checkpoint.tensors.get(embedding.name) if embedding else None
    if stored is None or stored.dtype not in STORED or len(stored.shape) != 2:
        return None
    import onnx

    roles = (Role.IDS, Role.DECODER_IDS)
    ids = tuple(subject.bindings.inputs[role].name for role in roles if role in subject.bindings.inputs)
    shape = int(stored.shape[0]), int(stored.shape[1])
    first = first_nodes(onnx.load(parts(subject.graph)[0].path, load_external_data=False), ids, shape)
    if first is None:
        return None
    with open_files(checkpoint.root) as files:
        files.expect(checkpoint.files)
        reader, (entry,) = readable(files, [stored])
        tensor = TensorSearch(reader).whole(entry, subject.precision, tuple(folds(subject.config)))
        return _compared(subject, first, _Table(lambda dtype: dict(tensor.forms(dtype)), *shape))


def _compared(subject: Subject, first: FirstNodes, table: _Table) -> Vocabulary | None:
    run = _runner(subject, first.model)
    wrong: set[int] = set()
    special: set[int] = set()
    later: Run | None = None
    words: dict[str, Rows] = {}
    for ids in _chunks(table):
        made = run(ids, {})
        if not words:
            words = {name: rows for name in first.rows if (rows := _form(made[name], table, len(ids)))}
        for name, rows in words.items():
            same = _bits(made[name]) == rows(int(ids[0]), int(ids[-1]) + 1)
            wrong.update(ids[torch.from_numpy(~same.all(1))].tolist())
        if not set(first.results) - set(first.rows):
            continue
        looked_up = {name: made[name] for name in first.rows}
        if later is None:
            later = _runner(subject, after_lookup(first, ELEMENTS[_onnx_type(looked_up[first.rows[0]])]))
        # For a special id the later nodes give other values if they see another id beside the same rows.
        # Two other ids are tried, because one of them may be special itself.
        tried: list[list[int]] = []
        for second_id in (table.ids // 2, table.ids // 3 + 1):
            again = later(torch.full_like(ids, second_id % table.ids), looked_up)
            changed = torch.zeros(len(ids), dtype=torch.bool)
            for name, value in again.items():
                changed |= _differing_ids(made[name], value, len(ids))
            tried.append(ids[changed].tolist())
        fewest = min(tried, key=len)
        special.update(fewest)
    return Vocabulary(table.ids, tuple(sorted(wrong)), tuple(sorted(special))) if words else None


def _chunks(table: _Table) -> Iterator[torch.Tensor]:
    step = max(_VALUES // table.width, 1)
    for start in range(0, table.ids, step):
        yield torch.arange(start, min(start + step, table.ids))


def _runner(subject: Subject, model: Any) -> Run:
    """Return a function that runs a copy of the first nodes. Its data stays where the graph has it."""
    folder = os.path.dirname(os.path.abspath(subject.graph.path))
    session = open_session(model.SerializeToString(), subject.provider, precision=subject.precision, folder=folder)
    return lambda ids, more: _outputs(session, GraphModel(session, subject.bindings, subject.window), ids, more)


def _outputs(
    session: Session, graph: GraphModel, ids: torch.Tensor, more: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    column = ids[:, None]
    decoder = column if Role.DECODER_IDS in graph.bindings.inputs else None
    batch = Batch(
        column, torch.ones_like(column), decoder, torch.zeros_like(column), decoder_mask=torch.ones_like(column)
    )
    rows = {name: session.floats(value, _onnx_type(value)) for name, value in more.items()}
    feeds = graph.feeds(batch, 0) | graph.no_past(batch) | rows
    wanted = {value.name for value in session.inner.get_inputs()}
    names = [value.name for value in session.inner.get_outputs()]
    with session_call("a run"):
        values = session.inner.run_with_ort_values(names, {name: feeds[name] for name in wanted})
    return {name: as_tensor(value) for name, value in zip(names, values, strict=True)}


def _onnx_type(rows: torch.Tensor) -> str:
    return next(name for name, dtype in DTYPES.items() if getattr(torch, dtype) is rows.dtype)


def _bits(rows: torch.Tensor) -> Any:
    return bits_of(rows.reshape(len(rows), -1), _onnx_type(rows))


def _form(made: torch.Tensor, table: _Table, count: int) -> Rows | None:
    """Return the table in the form that most looked-up rows have, or ``None`` if few are equal."""
    forms = table.forms(_onnx_type(made))
    equal = {name: float((_bits(made) == rows(0, count)).all(1).mean()) for name, rows in forms.items()}
    best = max(equal, key=lambda name: equal[name])
    return forms[best] if equal[best] >= _LEAST else None


def _differing_ids(before: torch.Tensor, after: torch.Tensor, rows: int) -> torch.Tensor:
    """Return for each row whether its bytes differ. Values without rows or of another form count for all rows."""
    if before.ndim and len(before) == rows and (before.shape, before.dtype) == (after.shape, after.dtype):
        ours, theirs = (value.reshape(rows, -1).contiguous().view(torch.uint8).numpy() for value in (before, after))
        return torch.from_numpy((ours != theirs).any(1))
    return torch.full((rows,), not torch.equal(before, after))


# Find the first nodes of a graph: those that read token ids, up to the first product, norm or attention.

_INTERNAL = frozenset({"If", "Loop", "Scan", "EmbedLayerNormalization", "GatherBlockQuantized"})


@record
class FirstNodes:
    """The first nodes of an onnx model: a copy of it that ends with them, without its data.

    ``rows`` are the values looked up in the word table. ``results`` are the values that later nodes read and that
    depend on token ids.
    """

    model: Any
    rows: tuple[str, ...]
    results: tuple[str, ...]


def first_nodes(model: Any, ids: tuple[str, ...], table: tuple[int, int]) -> FirstNodes | None:
    """Return the first nodes of ``model``, an onnx model without data, or ``None`` without a direct word lookup.

    ``ids`` are the inputs with token ids, and ``table`` is the shape of the word table.
    """
    graph = model.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    cheap = {value.name for value in graph.input} | set(shapes) | {""}
    of_ids, rows, nodes = set(ids), [], []
    for node in graph.node:
        if node.op_type in HEAVY | _INTERNAL or not cheap.issuperset(node.input):
            continue
        nodes.append(node)
        cheap.update(node.output)
        if of_ids.intersection(node.input):
            of_ids.update(node.output)
            if _is_lookup(node, _shapes_with(shapes, nodes), table, of_ids):
                rows.append(str(node.output[0]))
    results = tuple(dict.fromkeys(_results(graph, nodes, of_ids - set(ids))))
    return FirstNodes(_cut(model, nodes, tuple(rows), results), tuple(rows), results) if rows else None


def _is_lookup(node: Any, shapes: dict[str, tuple[int, ...]], table: tuple[int, int], of_ids: set[str]) -> bool:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return node.op_type == "Gather" and axis == 0 and shapes.get(node.input[0]) == table and node.input[1] in of_ids


def _shapes_with(shapes: dict[str, tuple[int, ...]], nodes: list[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tables, of transposed and cast ones too."""
    node = nodes[-1]
    for earlier in nodes[:-1]:
        if earlier.output and earlier.output[0] == node.input[0] and earlier.input and earlier.input[0] in shapes:
            shape = shapes[earlier.input[0]]
            if earlier.op_type == "Transpose" and len(shape) == 2:
                return {**shapes, node.input[0]: shape[::-1]}
            if earlier.op_type in ("Cast", "Identity"):
                return {**shapes, node.input[0]: shape}
    return shapes


def _results(graph: Any, nodes: list[Any], of_ids: set[str]) -> Iterator[str]:
    """Yield the values that depend on ids and that a later node reads, or that the graph returns."""
    ours = {id(node) for node in nodes}
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        later = id(node) not in ours
        yield from (name for name in node.input if later and name in of_ids)
        yield from (name for name in node.output if not later and name in of_ids & outputs)


def _cut(model: Any, nodes: list[Any], rows: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """Return a copy of the model with these nodes and with these values as outputs."""
    from onnx import GraphProto, ModelProto, ValueInfoProto

    made = ModelProto()
    made.CopyFrom(model)
    made.graph.CopyFrom(GraphProto(name="first nodes"))
    needed = {name for node in nodes for name in node.input}
    made.graph.input.extend(value for value in model.graph.input if value.name in needed)
    made.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    made.graph.node.extend(nodes)
    made.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys((*rows, *results)))
    return made


def after_lookup(first: FirstNodes, dtype: int) -> Any:
    """Return a copy of the first nodes that takes the looked-up rows as inputs. ``dtype`` is their ONNX type."""
    from onnx import ModelProto, helper

    made = ModelProto()
    made.CopyFrom(first.model)
    del made.graph.node[:]
    made.graph.node.extend(node for node in first.model.graph.node if not set(first.rows).intersection(node.output))
    made.graph.input.extend(helper.make_tensor_value_info(name, dtype, None) for name in first.rows)
    del made.graph.output[:]
    made.graph.output.extend(
        value for value in first.model.graph.output if value.name in first.results and value.name not in first.rows
    )
    return made


def embedding_gates(subject: Subject, model: Reference) -> Iterator[Gate]:
    """Yield the gate that the embedding's graph gives each id the model's row, bit for bit.

    ``model`` is the checkpoint in the graph's precision. Yields nothing for a graph of token ids.
    """
    before = subject.graph.embedding
    if before is None:
        return
    rows, wrong = int(subject.config.vocab_size), []
    session = open_session(before.path, subject.provider, precision=subject.precision)
    module, step = model.model.get_input_embeddings(), max(_VALUES // subject.bindings.width, 1)
    for start in range(0, rows, step):
        ids = torch.arange(start, min(start + step, rows))[None]
        with torch.no_grad():
            expected = module(ids)[0]
        dtype = subject.bindings.inputs[Role.IDS].dtype
        made = session.run({Role.IDS: session.value(ids.to(_WHOLE[dtype]).numpy())}, [Role.EMBEDS], Role.EMBEDS)
        wrong += ids[0][_differing_ids(expected, as_tensor(made[Role.EMBEDS])[0], len(expected))].tolist()
    explanation = f"the graph of the embedding gives the model's row bit for bit for each of {count(rows, 'id')}"
    if wrong:
        first = ", ".join(map(str, wrong[:3]))
        explanation = (
            f"the graph of the embedding gives another row than the model for {count(len(wrong), 'id')}: {first}"
        )
    yield Gate("embedding_rows", float(len(wrong)), 0.0, not wrong, explanation)


_WHOLE = {"INT64": torch.int64, "INT32": torch.int32}
