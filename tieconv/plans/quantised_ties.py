"""Refuse a quantised embedding and head that tieconv must not tie or untie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import REVIEW_FIRST, Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, PairState, QuantisedMatrix, QuantisedTables
from tieconv.checkpoint.write_plan import Plan, Promises, TiePromise
from tieconv.inspection.quantised import quantisation_settings
from tieconv.loaders.evidence import in_file
from tieconv.loaders.registry import consumer
from tieconv.loaders.release_tables import LLAMA_CPP, MLX, TRANSFORMERS, VLLM, VLLM_028
from tieconv.plans import biases
from tieconv.plans.build import build, promise, still_stored
from tieconv.plans.config import Document, config_with_flag, config_with_head, config_without_head, set_flag
from tieconv.plans.edits import Edits
from tieconv.plans.flag_effect import always_tied, guard_flip, reads_false, scaling_exponent
from tieconv.plans.guards import again, guard, guard_lone_config, refuse
from tieconv.plans.meaning import Note, Notes, described
from tieconv.text import Hint, count, listed, shown, size

_UNEQUAL = {
    PairState.EQUAL_VALUES: "their dequantised values are equal, but not their bytes",
    PairState.COPY: "one is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one is a calibrated, quantised copy of the other",
    PairState.DIFFERENT: "their values differ",
}


def quantised_embedding(inspection: Inspection, verb: str) -> QuantisedMatrix:
    """Return the quantised embedding of a model that ``verb`` may change. Raises `RefusedError` for any other.

    For ``untie`` of an untied model with a float embedding, it is the quantised head.
    """
    guard(inspection, verb, quantised=True)
    tables = inspection.quantised
    assert tables is not None  # the caller has asked for `quantised_tables`
    for reason, code in _matrix_reasons(inspection, tables):
        refuse(reason, again(inspection, "inspect"), code)
    _guard_flag(inspection, verb)
    # Refuse a class that ties more than the embedding and the head.
    names = {matrix.name for matrix in tables.matrices}
    names |= {inspection.family.input_embedding or "", inspection.family.output_head or ""}
    for group in inspection.family.groups:
        others = [name for name in (group.canonical, *group.members) if name not in names]
        if others and (group.gated or group.role is Role.WORD_EMBEDDING):
            problem = f"{inspection.family.architecture} ties {shown(others[0])} too"
            why = "tieconv changes only quantised models that tie two tables"
            refuse(f"{problem}, and {why}", again(inspection, "inspect"), "tie.quantised")
    embedding = tables.of(EMBEDDING)
    if embedding is None:
        head = tables.of(HEAD)
        assert head is not None  # one of the two matrices is quantised
        if verb == "untie" and inspection.config.effective is False:
            return head
        problem = f"{shown(head.name)} is quantised and the embedding is not, so they are two matrices"
        refuse(f"{problem} ({unequal_clause(tables)})", separate_hint(inspection), "tie.quantised")
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
        problem = f"tieconv did not compare {shown(head.name)} with {shown(embedding.name)}: {shown(reason, 200)}"
        refuse(problem, "download the model, then run the command again", "retie.not-equal")
    if relation.differing == ("scheme",):
        which = f"the embedding has {_scheme(embedding)}, and the head {_scheme(head)}"
    else:
        names = [part.name for part in head.parts if part.role in relation.differing]
        lost = names or [part.name for part in embedding.parts if part.role in relation.differing]
        which = f"{listed(lost)} {'differs' if len(lost) == 1 else 'differ'}"
    problem = f"the quantised {shown(head.name)} is not a copy of {shown(embedding.name)}"
    refuse(f"{problem}: {which} ({_UNEQUAL[relation.state]})", separate_hint(inspection), "retie.not-equal")


def unequal_clause(tables: QuantisedTables) -> str:
    """Return why the head is not a copy of the embedding, as a clause."""
    if tables.relation is None:
        return "only one of them is stored"
    return _UNEQUAL.get(tables.relation.state) or shown(tables.relation.reason, 200)


def separate_hint(inspection: Inspection) -> str:
    """Return what to do with two matrices that stay separate."""
    if inspection.config.effective:
        return Hint("make the config say untied: ", again(inspection, "set-tie false"))
    return "the model is untied: nothing to change"


def _scheme(matrix: QuantisedMatrix) -> str:
    groups = f", groups of {matrix.block[1]}" if matrix.block else ""
    return f"{shown(matrix.scheme)} with {count(matrix.bits, 'bit') if matrix.bits else 'unknown bits'}{groups}"


def _matrix_reasons(inspection: Inspection, tables: QuantisedTables) -> Iterator[tuple[str, str]]:
    """Yield broken and unknown matrices, and tensors beside the parts that tieconv does not know, each with a code."""
    for matrix in tables.matrices:
        label = shown(matrix.name)
        if matrix.faults:
            yield f"the quantised {label} is broken: {matrix.faults[0].reason}", "quantised.broken"
        if not matrix.scheme or matrix.uncomputed:
            yield f"tieconv does not know how {label} is quantised", "tie.quantised"
        parts = {part.name for part in matrix.parts}
        module = f"{matrix.name.removesuffix('.weight')}."
        for name in inspection.checkpoint.tensors:
            if name.startswith(module) and name not in parts and name != f"{module}bias":
                beside = f"{shown(name)} is stored beside the parts of {label}"
                yield f"{beside}, and tieconv does not know it", "tie.quantised"


def _guard_flag(inspection: Inspection, verb: str) -> None:
    """Refuse a class whose flag also changes the forward pass: codes cannot be scaled exactly."""
    changes = inspection.config.effective if verb == "untie" else not inspection.config.effective
    if not changes and not reads_false(inspection):
        return
    guard_flip(inspection, verb)
    if scaling_exponent(inspection, verb):
        problem = f"{inspection.family.architecture} scales its logits by the flag, and tieconv does not scale codes"
        refuse(problem, "do not change the head", "flag.forward")


def plan_quantised_retie(inspection: Inspection, *, bias: biases.BiasChoice, force: bool, inexact: bool) -> Plan:
    """Return the plan that drops the parts of a head that are byte-identical to those of the embedding.

    The flag and the quantisation config change together. ``force`` accepts a result that transformers 5 does not load.
    Raises `RefusedError` if one part differs, and for ``inexact`` options that change values.
    """
    embedding = quantised_embedding(inspection, "retie")
    if inexact:
        problem = f"{shown(embedding.name)} is quantised, and codes have no mean (--from mean)"
        refuse(problem, separate_hint(inspection), "tie.quantised")
    name, tables = head_name(inspection), inspection.quantised
    assert tables is not None
    head, edits = tables.of(HEAD), Edits(inspection.checkpoint)
    notes: Notes = ()
    if head is None and float_table(inspection, inspection.family.output_head):
        problem = f"the embedding is quantised, but {shown(name)} is stored as floats, so they are two matrices"
        refuse(problem, separate_hint(inspection), "retie.not-equal")
    if head is not None:
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
        notes = (Note(text, tuple(part.name for part in head.parts)),)
    document: Document = set_flag(inspection, True)
    if head is not None or document[1]:  # the config of a tied model stays as its quantiser wrote it
        document = config_without_head(inspection, name.removesuffix(".weight"))
    guard_lone_config(inspection, bool(document[1]))
    notes += biases.apply(edits, inspection, bias, tied=True)
    promises = Promises(True, _promised(inspection, edits, True), (embedding.role,))
    options = {"bias": str(bias), "force": str(force).lower()}
    plan = build(
        "retie", inspection, edits, True, promises, options=options, notes=notes, document=document, forced=force
    )
    hint = Hint("accept it with: ", again(inspection, "retie", survivor="embed", force=True))
    return with_loader_notes(plan, inspection, without_head(tables), forced=force, hint=hint)


def _leaf(matrix: QuantisedMatrix, name: str) -> str:
    return name.removeprefix(matrix.name.removesuffix("weight"))


def _promised(inspection: Inspection, edits: Edits, tied: bool) -> tuple[TiePromise, ...]:
    after = edits.after()
    return tuple(promise(tie, tied, after) for tie in still_stored(inspection.ties, edits) if tie.gated)


def plan_quantised_untie(inspection: Inspection, *, bias: biases.BiasChoice, keep_flag: bool) -> Plan:
    """Return the plan that stores a copy of each part for the head, and lists the head in the config.

    A stored head, quantised or float, stays: then only the flag changes. Raises `RefusedError` for ``keep_flag``, and
    if transformers 5 loads the model but not the result.
    """
    embedding = quantised_embedding(inspection, "untie")
    name, tables, edits = head_name(inspection), inspection.quantised, Edits(inspection.checkpoint)
    assert tables is not None
    if keep_flag:
        problem = f"{shown(embedding.name)} is quantised, and loaders fail on a tied model that stores a quantised head"
        refuse(problem, Hint("change the flag too: ", again(inspection, "untie")), "tie.quantised")
    if sentence := always_tied(inspection):
        refuse(sentence, "keep the model tied", "tie.always")
    document: Document = config_with_flag(inspection, False)
    if tables.of(HEAD) is None and float_table(inspection, inspection.family.output_head) is None:
        parts = []
        for part in embedding.parts:
            copied = f"{_module(name)}.{part.name.removeprefix(f'{_module(embedding.name)}.')}"
            edits.copy(copied, edits.checkpoint.tensors[part.name])
            parts.append(replace(part, name=copied))
        head = replace(embedding, role=HEAD, name=name, parts=tuple(parts))
        document = config_with_head(inspection, name.removesuffix(".weight"))
        tables = replace(tables, matrices=(*tables.matrices, head))
    guard_lone_config(inspection, bool(document[1]))
    notes = biases.apply(edits, inspection, bias, tied=False)
    roles = tuple(matrix.role for matrix in tables.matrices)
    promises = Promises(False, _promised(inspection, edits, False), roles)
    options = {"bias": str(bias), "keep_flag": "false"}
    plan = build("untie", inspection, edits, False, promises, options=options, notes=notes, document=document)
    return with_loader_notes(plan, inspection, tables, forced=False, hint="keep the model tied")


def _module(name: str) -> str:
    return name.removesuffix(".weight")


# Say which loaders load a quantised model after a plan, from the measured answers.
#
# transformers 5 decides, and for files of MLX mlx-lm. If it loads the model and would not load the result, tieconv
# refuses. Every other answer is a note.

_FAULTS = {Outcome.DISCARDED: 1, Outcome.RANDOM: 2, Outcome.ERROR: 2}
"""Outcomes that lose the stored values of the head, the worse ones with the higher number."""

_LABELS = {
    TRANSFORMERS: "transformers 5",
    VLLM: "vLLM 0.32",
    VLLM_028: "vLLM 0.28",
    MLX: "mlx-lm 0.32",
    LLAMA_CPP: "llama.cpp",
}

Answers = dict[tuple[str, str], tuple[Prediction, Prediction]]
"""The predictions for the model and for the result, by loader. The first loader decides."""


def with_loader_notes(plan: Plan, before: Inspection, tables: QuantisedTables, *, forced: bool, hint: str) -> Plan:
    """Return the plan with notes on the loaders of its result, whose quantised matrices are ``tables``.

    Raises `RefusedError`, with ``hint``, if the loader that decides makes less of the result than of the model. If the
    user ``forced`` the plan, that is a note.
    """
    if plan.changes_nothing:
        return plan
    after = described(before, plan)
    settings = quantisation_settings(after.checkpoint.quantisation_values)
    matrices = tuple(
        replace(matrix, config=settings.choice(matrix.name.removesuffix(".weight"), matrix.role))
        for matrix in tables.matrices
    )
    after = replace(after, quantised=replace(tables, matrices=matrices))
    asked = (MLX,) if tables.matrices[0].scheme.startswith("MLX") else (TRANSFORMERS, VLLM, VLLM_028, LLAMA_CPP)
    predictors = {loader: consumer(*loader).predict for loader in asked}
    answers = {loader: (predict(before), predict(after)) for loader, predict in predictors.items()}
    was, comes = answers[asked[0]]
    if _fault(comes) > _fault(was) and not forced:
        refuse(f"{_LABELS[asked[0]]} would not load the result correctly: {comes.detail}", hint, "meaning.refused")
    return replace(plan, notes=(*plan.notes, *_notes(answers, tables)))


def _fault(answer: Prediction) -> int:
    return _FAULTS.get(answer.outcome, 0)


def _notes(answers: Answers, tables: QuantisedTables) -> Iterator[str]:
    """Yield what loaders fail at, and which loaders were not measured."""
    grouped: dict[tuple[str, bool], list[str]] = {}
    for loader, (was, comes) in answers.items():
        if _fault(comes):
            grouped.setdefault((comes.detail, _fault(was) >= _fault(comes)), []).append(_LABELS[loader])
    for (detail, already), labels in grouped.items():
        yield f"{listed(labels)}: {detail}" + (". The model already has this fault" if already else f" {REVIEW_FIRST}")
    decides = next(iter(answers.values()))[1]
    if _fault(decides) and tables.matrices[0].scheme.startswith("compressed-tensors"):
        yield "transformers 5 loads the result with quantization_config=CompressedTensorsConfig(dequantize=True)"
    unknown = [_LABELS[loader] for loader, (_, comes) in answers.items() if comes.outcome is Outcome.UNKNOWN]
    if unknown:
        yield f"tieconv has no measurement of how {listed(unknown)} would load the result"


def without_head(tables: QuantisedTables) -> QuantisedTables:
    """Return the tables without the quantised head."""
    return replace(tables, matrices=tuple(matrix for matrix in tables.matrices if matrix.role != HEAD), relation=None)
