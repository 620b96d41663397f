"""Collect evidence about ONNX graphs: the nodes give the roles, the bytes give equality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.architectures import find
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.graph_structure import GraphRecord, MatrixRead, QuantisedRead
from tieconv.checkpoint.inspection import ConfigView, Depth, Inspection, NotCompared, State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.quantised_matrix import PairState
from tieconv.checkpoint.relation import Aliased, Canonical
from tieconv.checkpoint.relation.proved import Cast, Identical, Relation, Transposed, Unread
from tieconv.checkpoint.tie_group import Duplicate, Head, Member, OutputHead, TensorView, Tie
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.declared import view_config
from tieconv.inspection.equality import HINT, equal, has_nan, relate, relate_sampled
from tieconv.inspection.ties import read_bias
from tieconv.inspection.view_reader import is_sampled, one_way

Tensors = Mapping[str, TensorRecord]

EQUAL = frozenset({State.IDENTICAL, State.ALIASED, State.TRANSPOSED, State.CAST})
"""States in which a head holds the values of the embedding; for a cast, up to its rounding."""


def inspect_graphs(checkpoint: Checkpoint, reader: ByteReader, depth: Depth) -> Inspection:
    """Return evidence about the graphs of ``checkpoint``; the checks add the findings."""
    tensors = checkpoint.tensors
    family = find(checkpoint.config_values, {})
    config = view_config(checkpoint.config_values, family) if checkpoint.config else None
    if config and not (config.architectures or config.model_type or any(entry.present for entry in config.declared)):
        config = None  # the config of another program
    ties = tuple(_ties(checkpoint.graphs, tensors, reader, depth, config))
    if depth is Depth.HEADER or (depth is Depth.CANDIDATES and is_sampled(reader)):
        candidates: tuple[TensorRecord, ...] = ()
    elif depth is Depth.FULL:
        candidates = tuple(tensors.values())
    else:
        parts = [part for graph in checkpoint.graphs for part in (graph.embedding, graph.head) if part]
        shapes = {tensors[part.name].shape for part in parts}
        shapes |= {shape[::-1] for shape in shapes}
        candidates = tuple(tensor for tensor in tensors.values() if tensor.shape in shapes)
    duplicates = tuple(_duplicates(checkpoint, candidates, ties, reader))
    compared = {record.name for record in candidates} | {member.name for tie in ties for member in tie.members}
    left = [record for name, record in tensors.items() if name not in compared]
    stored = sum({tensor.range: tensor.range.size for tensor in tensors.values()}.values())
    wasted = sum(tie.bytes_wasted for tie in ties) + sum(duplicate.bytes_wasted for duplicate in duplicates)
    inspection = Inspection(
        checkpoint=checkpoint,
        family=family,
        depth=depth,
        config=config or ConfigView("", (), (), False, "", known=False),
        head=_view(checkpoint.graphs, tensors, reader, depth),
        ties=ties,
        duplicates=duplicates,
        bytes_stored=stored,
        bytes_unique=max(stored - wasted, 0),
        bytes_read=getattr(reader, "bytes_read", 0),
        not_compared=None if depth is Depth.FULL else NotCompared.among(left),
    )
    inspection = _with_quantised(inspection, reader)
    return replace(inspection, config=_answered(config, inspection))


def _with_quantised(inspection: Inspection, reader: ByteReader) -> Inspection:
    if not any(graph.quantised for graph in inspection.checkpoint.graphs):
        return inspection
    from tieconv.inspection.quantised.survey_quantised import survey_graphs  # most graphs are not quantised

    return replace(inspection, quantised=survey_graphs(inspection, reader))


def _answered(config: ConfigView | None, inspection: Inspection) -> ConfigView:
    """Return what the nodes say where no config declares it: nothing without a head, or without a comparison."""
    ties = inspection.ties
    compared = bool(ties) and all(tie.consistent is not None for tie in ties)
    if config is not None:
        return config if compared else replace(config, effect=_unknown(inspection))
    if not compared:
        return replace(inspection.config, why=_unknown(inspection))
    tied = any(tie.declared for tie in ties)
    return ConfigView("", (), (), tied, f"{'Tied' if tied else 'Untied'}: the nodes of the graph say so.")


_QUANTISED = {
    PairState.EQUAL: "the head and the input embedding are equal, and at least one of them is quantised",
    PairState.EQUAL_VALUES: "the head and the input embedding are equal, and at least one of them is quantised",
    PairState.COPY: "one of the head and the input embedding is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one of the head and the input embedding is a calibrated copy of the other",
    PairState.DIFFERENT: "the head and the input embedding differ, and at least one of them is quantised",
}


def _unknown(inspection: Inspection) -> str:
    """Return why the nodes do not say whether the graphs are tied."""
    graphs, tables = inspection.checkpoint.graphs, inspection.quantised
    relation = tables.relation if tables else None
    unread = [member.relation for tie in inspection.ties for member in tie.members]
    reason = next((each.reason for each in unread if isinstance(each, Unread) and each.reason), "")
    if relation is not None and (relation.state in _QUANTISED or relation.reason):
        return f"Not known: {_QUANTISED.get(relation.state, relation.reason)}."
    if reason:
        return f"Not known: {reason}."
    quantised = {read.role for graph in graphs for read in graph.quantised}
    if "head" not in quantised and not any(graph.head for graph in graphs):
        return "Not known: no output head found in the graph."
    embedding = "embedding" in quantised or any(graph.embedding for graph in graphs)
    why = "the head and the input embedding were not compared" if embedding else "no input embedding found"
    return f"Not known: {why}."


def _ties(
    graphs: tuple[GraphRecord, ...], tensors: Tensors, reader: ByteReader, depth: Depth, config: ConfigView | None
) -> Iterator[Tie]:
    for graph in graphs:
        if (embedding := graph.embedding) is not None and (head := graph.head) is not None:
            is_shared = head.name == embedding.name
            compared = None if is_shared else _relation(embedding, head, tensors, reader, depth)
            yield _made(embedding.name, head.name, compared, tensors, config)
        elif (pair := quantised_pair(graph)) is not None:
            relation = relate_quantised(*pair, tensors, reader, depth)
            yield _made(pair[0].name, pair[1].name, relation, tensors, config, extra=wasted(relation, *pair, tensors))


def _made(
    embedding: str, head: str, relation: Relation | None, tensors: Tensors, config: ConfigView | None, extra: int = 0
) -> Tie:
    """Return the tie of two initializers; ``None`` if they are one. ``extra`` bytes are wasted besides."""
    members = [Member(embedding, True, Canonical())]
    if relation is not None:
        members.append(Member(head, True, relation))
    states = {member.state for member in members} - {State.CANONICAL}
    declared = config.effective if config else not states - EQUAL
    unread = State.UNREAD in states
    consistent = None if unread else not declared or not states - EQUAL
    # A copy wastes its bytes, a cast that loses nothing those of the narrower side.
    first, *rest = members
    copies = [member for member in rest if member.state in (State.IDENTICAL, State.TRANSPOSED)]
    casts = [member for member in rest if isinstance(member.relation, Cast) and member.relation.lossless]
    narrower = [min(tensors[first.name].nbytes, tensors[member.name].nbytes) for member in casts]
    wasted = sum(tensors[member.name].nbytes for member in copies) + sum(narrower) + extra
    return Tie(Role.WORD_EMBEDDING, embedding, True, declared, consistent, True, wasted, tuple(members))


def _relation(embedding: MatrixRead, head: MatrixRead, tensors: Tensors, reader: ByteReader, depth: Depth) -> Relation:
    """Return how the stored head relates to the embedding; ``transposed`` if its transpose was compared."""
    left, right = tensors[embedding.name], tensors[head.name]
    if left.range == right.range and left.dtype == right.dtype and left.shape == right.shape:
        return Aliased()
    if depth is Depth.HEADER:
        return Unread()
    if depth is Depth.CANDIDATES and is_sampled(reader):
        # What samples prove; nothing for a head that reads the transpose of its matrix.
        if embedding.turned != head.turned:
            return Unread(transposed=True, reason=f"samples cannot compare a transposed matrix: {HINT}")
        return relate_sampled(reader, left, right)

    if embedding.turned == head.turned:
        return _with_nan(relate(reader, left, right), left, reader)
    relation = relate(reader, left, right) if left.shape == right.shape[::-1] and left.dtype == right.dtype else None
    if not isinstance(relation, Transposed):
        relation = relate(reader, *one_way(left, right))
        if isinstance(relation, Identical):
            relation = Transposed()
        if not isinstance(relation, Aliased):
            relation = replace(relation, transposed=True)
    return _with_nan(relation, left, reader)


def _with_nan(relation: Relation, record: TensorRecord, reader: ByteReader) -> Relation:
    if not isinstance(relation, Identical | Transposed | Cast):
        return relation

    return replace(relation, nan=True) if has_nan(reader, record) else relation


def _duplicates(
    checkpoint: Checkpoint, candidates: tuple[TensorRecord, ...], ties: tuple[Tie, ...], reader: ByteReader
) -> Iterator[Duplicate]:
    if len(candidates) < 2:
        return
    from tieconv.inspection.duplicates import find_duplicates

    known = [frozenset(member.name for member in tie.members) for tie in ties]
    homes = {name: graph.file for graph in checkpoint.graphs for name in graph.names}
    for duplicate in find_duplicates(reader, candidates, known=known):
        # Of two graphs in two precisions, one is a cast of the other on purpose.
        if duplicate.kind is not State.CAST or len({homes[name] for name in duplicate.tensors}) == 1:
            yield duplicate


def _view(graphs: tuple[GraphRecord, ...], tensors: Tensors, reader: ByteReader, depth: Depth) -> Head:
    """Return the head of the first graph with one, else the embedding of the first graph with one."""
    with_roles = [graph for graph in graphs if graph.head or quantised_pair(graph)]
    with_roles = with_roles or [graph for graph in graphs if graph.embedding]
    if not with_roles:
        return Head(None, None, None)
    embedding, head, bias = with_roles[0].embedding, with_roles[0].head, with_roles[0].bias
    pair = quantised_pair(with_roles[0])
    if pair is not None:
        embedding, head = (MatrixRead(read.name, False) for read in pair)
    view = output = None
    if embedding is not None:
        record = tensors[embedding.name]
        view = TensorView(record.name, record.shape, record.dtype)
    if head is not None:
        record = tensors[head.name]
        tied = head.name if embedding is not None and embedding.name == head.name else None
        output = OutputHead(record.name, True, tied, record.shape, record.dtype)
    return Head(view, output, None if bias is None else read_bias(tensors[bias], reader, depth))


# Compare an embedding and a head that are quantised in blocks: tied if all their stored parts are equal.

_BLOCKS = {"embedding": ("GatherBlockQuantized", "Gather"), "head": ("MatMulNBits",)}


def quantised_pair(graph: GraphRecord) -> tuple[QuantisedRead, QuantisedRead] | None:
    """Return the embedding and the head if both are quantised in blocks, and the head is of a MatMulNBits."""
    by_role = {read.role: read for read in graph.quantised if read.parts and read.operator in _BLOCKS[read.role]}
    if len(by_role) < len(_BLOCKS):
        return None
    embedding, head = by_role["embedding"], by_role["head"]
    return None if embedding.name == head.name and not _same(embedding, head) else (embedding, head)


def _same(left: QuantisedRead, right: QuantisedRead) -> bool:
    return (left.parts, left.bits, left.block) == (right.parts, right.bits, right.block)


def relate_quantised(
    left: QuantisedRead, right: QuantisedRead, tensors: Tensors, reader: ByteReader, depth: Depth
) -> Aliased | Identical | Unread | None:
    """Return how the head relates to the embedding; ``None`` if they read the same initializers.

    Two different quantisations do not show how the original matrices relate, so they are not compared.
    """
    if _same(left, right):
        return None
    if (left.bits, left.block, len(left.parts)) != (right.bits, right.block, len(right.parts)):
        return Unread(reason="they are quantised differently")
    pairs = [(tensors[a], tensors[b]) for a, b in zip(left.parts, right.parts, strict=True)]
    if all(a.range == b.range for a, b in pairs):
        return Aliased()
    if depth is Depth.HEADER or is_sampled(reader):
        return Unread(reason="their bytes were not read")
    if all(a.dtype == b.dtype and equal(reader, a.range, b.range) for a, b in pairs):
        return Identical()
    return Unread(reason="both are quantised, and their codes, scales or zero points differ")


def wasted(
    relation: Aliased | Identical | Unread | None, left: QuantisedRead, right: QuantisedRead, tensors: Tensors
) -> int:
    """Return the bytes of equal scales and zero points that are stored twice."""
    if not isinstance(relation, Identical):
        return 0
    pairs = zip(left.parts[1:], right.parts[1:], strict=True)
    return sum(tensors[b].nbytes for a, b in pairs if tensors[a].range != tensors[b].range)
