"""Plan to untie a quantised model: store a copy of every part of the embedding under the head's name."""

from __future__ import annotations

from dataclasses import replace

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import HEAD, QuantisedMatrix
from tieconv.checkpoint.write_plan import Plan, Promises, TiePromise
from tieconv.plans import biases
from tieconv.plans.biases import BiasChoice
from tieconv.plans.build import build, still_stored
from tieconv.plans.edits import Edits
from tieconv.plans.flag_effect import always_tied
from tieconv.plans.guards import again, guard_lone_config, refuse
from tieconv.plans.quantised.quantised_config import Document, config_with_flag, config_with_head
from tieconv.plans.quantised.quantised_loaders import with_head, with_loader_notes
from tieconv.plans.quantised.quantised_pair import float_table, head_name, quantised_embedding
from tieconv.text import shown


def plan_quantised_untie(inspection: Inspection, *, bias: BiasChoice, keep_flag: bool) -> Plan:
    """Return the plan that stores a copy of each part for the head, and lists the head in the config.

    A stored head, quantised or float, stays: then only the flag changes. Raises `RefusedError` for ``keep_flag``, and
    if transformers 5 loads the model but not the result.
    """
    embedding = quantised_embedding(inspection, "untie")
    name, tables, edits = head_name(inspection), inspection.quantised, Edits(inspection.checkpoint)
    assert tables is not None
    if keep_flag:
        refuse(
            f"{shown(embedding.name)} is quantised, and loaders fail on a tied model that stores a quantised head",
            f"change the flag too: {again(inspection, 'untie')}",
            "tie.quantised",
        )
    if sentence := always_tied(inspection):
        refuse(sentence, "keep the model tied", "tie.always")
    document: Document = config_with_flag(inspection, False)
    if tables.of(HEAD) is None and float_table(inspection, inspection.family.output_head) is None:
        head = _copied(edits, embedding, name)
        document = config_with_head(inspection, name.removesuffix(".weight"))
        tables = with_head(tables, head)
    guard_lone_config(inspection, bool(document[1]))
    notes = biases.apply(edits, inspection, bias, tied=False)
    after = edits.after()
    ties = tuple(
        TiePromise(tie.canonical, False, tuple(each.name for each in tie.members if each.name in after), ())
        for tie in still_stored(inspection.ties, edits)
        if tie.gated
    )
    plan = build(
        "untie",
        inspection,
        edits,
        tied=False,
        promises=Promises(False, ties, tuple(matrix.role for matrix in tables.matrices)),
        options={"bias": str(bias), "keep_flag": "false"},
        notes=notes,
        document=document,
        spared=biases.dropped(edits),
    )
    return with_loader_notes(plan, inspection, tables, forced=False, hint="keep the model tied")


def _copied(edits: Edits, embedding: QuantisedMatrix, head: str) -> QuantisedMatrix:
    """Copy every part of the embedding to the head's name, and return the head."""
    parts = []
    for part in embedding.parts:
        name = f"{_module(head)}.{part.name.removeprefix(f'{_module(embedding.name)}.')}"
        edits.copy(name, edits.checkpoint.tensors[part.name])
        parts.append(replace(part, name=name))
    return replace(embedding, role=HEAD, name=head, parts=tuple(parts))


def _module(name: str) -> str:
    return name.removesuffix(".weight")
