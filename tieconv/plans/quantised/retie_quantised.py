"""Plan to tie a quantised model: drop every part of a head that equals the embedding, part by part."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import HEAD, PairState, QuantisedMatrix
from tieconv.checkpoint.write_plan import Plan, Promises, TiePromise
from tieconv.plans import biases
from tieconv.plans.biases import BiasChoice
from tieconv.plans.build import build, still_stored
from tieconv.plans.config import set_flag
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, guard_lone_config, refuse
from tieconv.plans.meaning import Note, Notes
from tieconv.plans.quantised.quantised_config import Document, config_without_head
from tieconv.plans.quantised.quantised_loaders import with_loader_notes, without_head
from tieconv.plans.quantised.quantised_pair import (
    float_table,
    head_name,
    quantised_embedding,
    refuse_unequal,
    separate_hint,
)
from tieconv.text import count, shown, size


def plan_quantised_retie(inspection: Inspection, *, bias: BiasChoice, force: bool, inexact: bool) -> Plan:
    """Return the plan that drops the parts of a head that are byte-identical to those of the embedding.

    The flag and the quantisation config change together. ``force`` accepts a result that transformers 5 does not load.
    Raises `RefusedError` if one part differs, and for ``inexact`` options that change values.
    """
    embedding = quantised_embedding(inspection, "retie")
    if inexact:
        refuse(
            f"{shown(embedding.name)} is quantised, and codes have no mean (--from mean)",
            separate_hint(inspection),
            "tie.quantised",
        )
    name, tables = head_name(inspection), inspection.quantised
    assert tables is not None
    head, edits = tables.of(HEAD), Edits(inspection.checkpoint)
    notes: Notes = ()
    if head is None and float_table(inspection, inspection.family.output_head):
        refuse(
            f"the embedding is quantised, but {shown(name)} is stored as floats, so they are two matrices",
            separate_hint(inspection),
            "retie.not-equal",
        )
    if head is not None:
        notes = _drop(edits, inspection, embedding, head)
    document: Document = set_flag(inspection, True)
    if head is not None or document[1]:  # the config of a tied model stays as its quantiser wrote it
        document = config_without_head(inspection, name.removesuffix(".weight"))
    guard_lone_config(inspection, bool(document[1]))
    notes += biases.apply(edits, inspection, bias, tied=True)
    tied = tuple(_promise(inspection, tie.canonical, name) for tie in still_stored(inspection.ties, edits) if tie.gated)
    plan = build(
        "retie",
        inspection,
        edits,
        tied=True,
        promises=Promises(True, tied, (embedding.role,)),
        options={"bias": str(bias), "force": str(force).lower()},
        notes=notes,
        document=document,
        spared=biases.dropped(edits),
        forced=force,
    )
    hint = f"accept it with: {again(inspection, 'retie', '--from embed --force')}"
    return with_loader_notes(plan, inspection, without_head(tables), forced=force, hint=hint)


def _drop(edits: Edits, inspection: Inspection, embedding: QuantisedMatrix, head: QuantisedMatrix) -> Notes:
    """Drop every part of the head. The write proves each part again."""
    relation = inspection.quantised.relation if inspection.quantised else None
    if relation is None or relation.state is not PairState.EQUAL:
        refuse_unequal(inspection, embedding, head)
    sources = {(part.role, _leaf(embedding, part.name)): part.name for part in embedding.parts}
    for part in head.parts:
        source = sources[part.role, _leaf(head, part.name)]
        edits.drop_equal(part.name, source, f"equal to {source}, byte for byte")
    text = (
        f"the quantised head equals the quantised embedding in {count(len(head.parts), 'part')}: "
        f"{size(relation.bytes_wasted)} saved"
    )
    return (Note(text, tuple(part.name for part in head.parts)),)


def _leaf(matrix: QuantisedMatrix, name: str) -> str:
    return name.removeprefix(matrix.name.removesuffix("weight"))


def _promise(inspection: Inspection, canonical: str, head: str) -> TiePromise:
    stored = (canonical,) if canonical in inspection.checkpoint.tensors else ()
    return TiePromise(canonical, True, stored, (head,))
