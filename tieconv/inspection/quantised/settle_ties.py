"""Correct tied groups and the head by the evidence about quantised matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.quantised_matrix import (
    CODE_LEAVES,
    EMBEDDING,
    HEAD,
    SCALE_LEAVES,
    PairRelation,
    PairState,
    QuantisedTables,
    parametrised_parts,
)
from tieconv.checkpoint.relation.proved import Identical, OtherBytes, Relation, Unread
from tieconv.checkpoint.tie_group import Duplicate, Head, Member, Tie
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.quantised.quantisation_config import quantisation_settings
from tieconv.inspection.quantised.scheme_interface import StoredModule
from tieconv.inspection.quantised.survey_quantised import PART_LEAVES, recognise

IN_PARTS = "it is stored as quantised codes, in several tensors"


def with_quantised(inspection: Inspection, tables: QuantisedTables) -> Inspection:
    """Return the inspection with the tables, and with no claim about a tie that the parts do not prove."""
    head = inspection.head.output_head
    ties = tuple(_settled(tie, tables, head.name if head else "") for tie in inspection.ties)
    saved = sum(tie.bytes_wasted for tie in inspection.ties) - sum(tie.bytes_wasted for tie in ties)
    wasted = _more_wasted(tables, ties, inspection.duplicates)
    unique = max(inspection.bytes_unique + saved - wasted, 0)
    return replace(inspection, quantised=tables, ties=ties, head=_head(inspection.head, tables), bytes_unique=unique)


def _settled(tie: Tie, tables: QuantisedTables, head: str) -> Tie:
    names = {matrix.name for matrix in tables.matrices}
    if not any(member.name in names for member in tie.members):
        return tie
    members = tuple(_member(member, tie, tables, head) for member in tie.members)
    repeated = {member.name for member in members if isinstance(member.relation, Identical)}
    before = {member.name for member in tie.members if isinstance(member.relation, Identical)}
    return replace(
        tie,
        members=members,
        consistent=_consistent(tie, members),
        bytes_wasted=tie.bytes_wasted if repeated == before else 0,
    )


def _member(member: Member, tie: Tie, tables: QuantisedTables, head: str) -> Member:
    """Return the member with the relation of its whole matrix, not of its codes alone."""
    names = {matrix.name for matrix in tables.matrices}
    if member.state is State.CANONICAL:
        return member
    if not member.stored:
        return replace(member, relation=Unread(reason=IN_PARTS)) if member.name in names else member
    canonical = next((entry.name for entry in tie.members if entry.state is State.CANONICAL), tie.canonical)
    if not names & {member.name, canonical}:
        return member
    is_pair = member.name == head or canonical == head
    return replace(member, relation=_relation(member.relation, tables.relation if is_pair else None))


def _relation(relation: Relation, pair: PairRelation | None) -> Relation:
    if pair is None or pair.state is PairState.UNREAD:
        return Unread(reason=pair.reason if pair else "it is quantised")
    if pair.state is PairState.EQUAL:
        return relation
    return OtherBytes(reason=PAIR_WORDS[pair.state])


PAIR_WORDS = {
    PairState.EQUAL: "every part is equal",
    PairState.EQUAL_VALUES: "the parts differ, but all dequantised values are equal",
    PairState.COPY: "one is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one is close to a quantised copy of the other",
    PairState.DIFFERENT: "the dequantised values differ",
    PairState.UNREAD: "nothing is proved",
}
"""What each state means, as a clause."""


def _consistent(tie: Tie, members: tuple[Member, ...]) -> bool | None:
    """Return what the stored matrices say about the declared tie; ``None`` if nothing is proved."""
    if not tie.declared:
        return tie.consistent
    states = {member.state for member in members}
    if states & {State.DISTINCT, State.NEAR, State.SCALED, State.CAST, State.TRANSPOSED}:
        return False
    return None if State.UNREAD in states else tie.consistent


def _more_wasted(tables: QuantisedTables, ties: tuple[Tie, ...], duplicates: tuple[Duplicate, ...]) -> int:
    """Return the bytes of equal parts of the head that neither a tie nor a duplicate counts."""
    pair, head = tables.relation, tables.of(HEAD)
    if pair is None or pair.state is not PairState.EQUAL or head is None:
        return 0
    counted = {name for duplicate in duplicates for name in duplicate.tensors}
    counted |= {member.name for tie in ties for member in tie.stored_members if isinstance(member.relation, Identical)}
    return max(pair.bytes_wasted - sum(part.nbytes for part in head.parts if part.name in counted), 0)


def _head(head: Head, tables: QuantisedTables) -> Head:
    """Return the head without a claim that a tensor gives it values, if it has codes."""
    output = head.output_head
    if output is None or output.stored or tables.of(HEAD) is None:
        return head
    return replace(head, output_head=replace(output, tied_to=None))


_NAMES = {EMBEDDING: "input embedding", HEAD: "output head"}


def quantised_effect(inspection: Inspection, tables: QuantisedTables) -> str:
    """Return what follows for the tie, in two or three sentences; empty if the config alone decides."""
    broken = next((matrix for matrix in tables.matrices if matrix.faults), None)
    if broken is not None:
        return f"Unknown: the quantised {_NAMES[broken.role]} is broken."
    unread = next((matrix for matrix in tables.matrices if not matrix.scheme), None)
    if unread is not None and parametrised_parts(unread):
        return f"Unknown: the {_NAMES[unread.role]} is parametrised, and loaders do not find its weight."
    if unread is not None:
        return f"Unknown: tieconv does not know how the {_NAMES[unread.role]} is quantised."
    if not inspection.config.effective:
        return ""
    head = tables.of(HEAD)
    if head is not None and _equal(tables):
        return "Tied by the config, and every part of the quantised head equals the embedding's."
    if head is not None or _head_is_stored(inspection):
        quantised = _NAMES[HEAD if head is not None else EMBEDDING]
        return f"Unknown: the config says tied, but the {quantised} is quantised separately. The loader decides."
    if inspection.checkpoint.format == "gguf":
        embedding = tables.of(EMBEDDING)
        scheme = embedding.scheme.removeprefix("ggml ") if embedding else ""
        return f"{inspection.config.why} The head computes with its type, {scheme}."
    return f"{inspection.config.why} The embedding is quantised, and some loaders do not tie quantised matrices."


def _equal(tables: QuantisedTables) -> bool:
    return tables.relation is not None and tables.relation.state is PairState.EQUAL


def _head_is_stored(inspection: Inspection) -> bool:
    head = inspection.head.output_head
    return head is not None and head.stored


_MOST_MODULES = 65_536
_ENDS = tuple(f".{leaf}" for leaf in (*CODE_LEAVES, *SCALE_LEAVES))


def logical_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return [V, H] of each quantised matrix by the name that it would have unquantised."""
    settings = quantisation_settings(checkpoint.quantisation_values)
    tensors = checkpoint.tensors
    shapes: dict[str, tuple[int, int]] = {}
    for name in islice(_modules(tensors), _MOST_MODULES):
        parts = {leaf: tensors[f"{name}.{leaf}"] for leaf in PART_LEAVES if f"{name}.{leaf}" in tensors}
        choice = settings.choice(name, HEAD)
        matrix = recognise(StoredModule(name, HEAD, parts, lambda record: None, choice, settings.method))
        if matrix is not None and matrix.shape is not None:
            shapes[f"{name}.weight"] = matrix.shape
    return shapes


def _modules(tensors: Mapping[str, TensorRecord]) -> dict[str, None]:
    """Return the modules with a part that shows a quantised matrix, in file order."""
    coded = (name for name in tensors if name.endswith(_ENDS))
    return dict.fromkeys(name.removesuffix(end) for name in coded for end in _ENDS if name.endswith(end))
