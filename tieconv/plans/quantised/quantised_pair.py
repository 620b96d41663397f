"""Refuse a quantised embedding and head that tieconv must not tie or untie."""

from __future__ import annotations

from typing import NoReturn

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, PairState, QuantisedMatrix, QuantisedTables
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.plans.flag_effect import guard_flip, reads_false, scaling_exponent
from tieconv.plans.guards import again, guard, inspect_hint, refuse
from tieconv.text import count, listed, shown

_UNEQUAL = {
    PairState.EQUAL_VALUES: "their dequantised values are equal, but not their bytes",
    PairState.COPY: "one is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one is a calibrated, quantised copy of the other",
    PairState.DIFFERENT: "their values differ",
}


def quantised_embedding(inspection: Inspection, verb: str) -> QuantisedMatrix:
    """Return the quantised embedding of a model that ``verb`` may change. Raises `RefusedError` for any other."""
    guard(inspection, verb, quantised=True)
    tables = inspection.quantised
    assert tables is not None  # the caller has asked for `quantised_tables`
    _guard_matrices(inspection, tables)
    _guard_flag(inspection, verb)
    _guard_groups(inspection)
    embedding = tables.of(EMBEDDING)
    if embedding is None:
        _refuse_float(inspection, tables)
    return embedding


def head_name(inspection: Inspection) -> str:
    """Return the name that the head's matrix has, or would have, in the file."""
    assert inspection.family.output_head is not None  # `guard` has refused a class without a head
    return in_file(inspection, inspection.family.output_head)


def float_table(inspection: Inspection, name: str | None) -> str | None:
    """Return the name in the file of a stored table, ``None`` if it is not stored as one tensor."""
    stored = in_file(inspection, name) if name else None
    return stored if stored in inspection.checkpoint.tensors else None


def refuse_unequal(inspection: Inspection, embedding: QuantisedMatrix, head: QuantisedMatrix) -> NoReturn:
    """Refuse to tie two matrices that are not equal in every part, and name the parts that differ."""
    tables = inspection.quantised
    relation = tables.relation if tables else None
    if relation is None or relation.state is PairState.UNREAD:
        reason = relation.reason if relation else "their bytes were not read"
        refuse(
            f"tieconv did not compare {shown(head.name)} with {shown(embedding.name)}: {shown(reason, 200)}",
            "download the model, then run the command again",
            "retie.not-equal",
        )
    if relation.differing == ("scheme",):
        which = f"the embedding has {_scheme(embedding)}, and the head {_scheme(head)}"
    else:
        names = [part.name for part in head.parts if part.role in relation.differing]
        lost = names or [part.name for part in embedding.parts if part.role in relation.differing]
        which = f"{listed(lost)} {'differs' if len(lost) == 1 else 'differ'}"
    refuse(
        f"the quantised {shown(head.name)} is not a copy of {shown(embedding.name)}: {which} "
        f"({_UNEQUAL[relation.state]})",
        separate_hint(inspection),
        "retie.not-equal",
    )


def unequal_clause(tables: QuantisedTables) -> str:
    """Return why the head is not a copy of the embedding, as a clause."""
    if tables.relation is None:
        return "only one of them is stored"
    return _UNEQUAL.get(tables.relation.state) or shown(tables.relation.reason, 200)


def separate_hint(inspection: Inspection) -> str:
    """Return what to do with two matrices that stay separate."""
    if inspection.config.effective:
        return f"make the config say untied: {again(inspection, 'set-tie false')}"
    return "the model is untied: nothing to change"


def _scheme(matrix: QuantisedMatrix) -> str:
    groups = f", groups of {matrix.block[1]}" if matrix.block else ""
    return f"{shown(matrix.scheme)} with {count(matrix.bits, 'bit') if matrix.bits else 'unknown bits'}{groups}"


def _refuse_float(inspection: Inspection, tables: QuantisedTables) -> NoReturn:
    head = tables.of(HEAD)
    assert head is not None  # one of the two matrices is quantised
    refuse(
        f"{shown(head.name)} is quantised and the embedding is not, so they are two matrices "
        f"({unequal_clause(tables)})",
        separate_hint(inspection),
        "tie.quantised",
    )


def _guard_matrices(inspection: Inspection, tables: QuantisedTables) -> None:
    """Refuse broken and unknown matrices, and tensors beside the parts that tieconv does not know."""
    for matrix in tables.matrices:
        for fault in matrix.faults[:1]:
            refuse(
                f"the quantised {shown(matrix.name)} is broken: {fault.reason}",
                inspect_hint(inspection),
                "quantised.broken",
            )
        if not matrix.scheme or matrix.uncomputed:
            refuse(
                f"tieconv does not know how {shown(matrix.name)} is quantised",
                inspect_hint(inspection),
                "tie.quantised",
            )
        parts = {part.name for part in matrix.parts}
        module = f"{matrix.name.removesuffix('.weight')}."
        for name in inspection.checkpoint.tensors:
            if name.startswith(module) and name not in parts and name != f"{module}bias":
                refuse(
                    f"{shown(name)} is stored beside the parts of {shown(matrix.name)}, and tieconv does not know it",
                    inspect_hint(inspection),
                    "tie.quantised",
                )


def _guard_flag(inspection: Inspection, verb: str) -> None:
    """Refuse a class whose flag also changes the forward pass: codes cannot be scaled exactly."""
    changes = inspection.config.effective if verb == "untie" else not inspection.config.effective
    if not changes and not reads_false(inspection):
        return
    guard_flip(inspection, verb)
    if scaling_exponent(inspection, verb):
        refuse(
            f"{inspection.family.architecture} scales its logits by the flag, and tieconv does not scale codes",
            "do not change the head",
            "flag.forward",
        )


def _guard_groups(inspection: Inspection) -> None:
    """Refuse a class that ties more than the embedding and the head."""
    tables = inspection.quantised
    names = {matrix.name for matrix in tables.matrices} if tables else set()
    names |= {inspection.family.input_embedding or "", inspection.family.output_head or ""}
    for group in inspection.family.groups:
        others = [name for name in (group.canonical, *group.members) if name not in names]
        if others and (group.gated or group.role is Role.WORD_EMBEDDING):
            refuse(
                f"{inspection.family.architecture} ties {shown(others[0])} too, and tieconv changes only quantised "
                "models that tie two tables",
                inspect_hint(inspection),
                "tie.quantised",
            )
