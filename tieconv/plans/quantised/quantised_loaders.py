"""Say which loaders load a quantised model after a plan, from the measured answers.

transformers 5 decides, and for files of MLX mlx-lm. If it loads the model and would not load the result, tieconv
refuses. Every other answer is a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tieconv.checkpoint.finding import REVIEW_FIRST, Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import HEAD, QuantisedMatrix, QuantisedTables
from tieconv.checkpoint.write_plan import Plan
from tieconv.inspection.quantised.quantisation_config import quantisation_settings
from tieconv.loaders.evidence.quantised_cells import LLAMA_CPP, MLX, TRANSFORMERS, VLLM, VLLM_028
from tieconv.loaders.registry import consumer
from tieconv.plans.guards import refuse
from tieconv.plans.meaning.described import described
from tieconv.text import listed

_FAULTS = {Outcome.DISCARDED: 1, Outcome.RANDOM: 2, Outcome.ERROR: 2}
"""Outcomes that lose the stored values of the head, the worse ones with the higher number."""

_LABELS = {
    TRANSFORMERS: "transformers 5",
    VLLM: "vLLM 0.32",
    VLLM_028: "vLLM 0.28",
    MLX: "mlx-lm 0.32",
    LLAMA_CPP: "llama.cpp",
}
_DEQUANTISED = "transformers 5 loads the result with quantization_config=CompressedTensorsConfig(dequantize=True)"

Answers = dict[tuple[str, str], tuple[Prediction, Prediction]]
"""The predictions for the model and for the result, by loader. The first loader decides."""


def with_loader_notes(plan: Plan, before: Inspection, tables: QuantisedTables, *, forced: bool, hint: str) -> Plan:
    """Return the plan with notes on the loaders of its result, whose quantised matrices are ``tables``.

    Raises `RefusedError`, with ``hint``, if the loader that decides makes less of the result than of the model. If the
    user ``forced`` the plan, that is a note.
    """
    if plan.changes_nothing:
        return plan
    after = _with_tables(described(before, plan), tables)
    asked = (MLX,) if tables.matrices[0].scheme.startswith("MLX") else (TRANSFORMERS, VLLM, VLLM_028, LLAMA_CPP)
    answers = {loader: (_answer(before, loader), _answer(after, loader)) for loader in asked}
    was, comes = answers[asked[0]]
    if _fault(comes) > _fault(was) and not forced:
        refuse(f"{_LABELS[asked[0]]} would not load the result correctly: {comes.detail}", hint, "meaning.refused")
    return replace(plan, notes=(*plan.notes, *_notes(answers, tables)))


def _with_tables(after: Inspection, tables: QuantisedTables) -> Inspection:
    """Return the model with ``tables``, as its config describes them."""
    settings = quantisation_settings(after.checkpoint.quantisation_values)
    matrices = tuple(
        replace(matrix, config=settings.choice(matrix.name.removesuffix(".weight"), matrix.role))
        for matrix in tables.matrices
    )
    return replace(after, quantised=replace(tables, matrices=matrices))


def _answer(inspection: Inspection, loader: tuple[str, str]) -> Prediction:
    return consumer(*loader).predict(inspection)


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
        yield _DEQUANTISED
    unknown = [_LABELS[loader] for loader, (_, comes) in answers.items() if comes.outcome is Outcome.UNKNOWN]
    if unknown:
        yield f"tieconv has no measurement of how {listed(unknown)} would load the result"


def without_head(tables: QuantisedTables) -> QuantisedTables:
    """Return the tables without the quantised head."""
    return replace(tables, matrices=tuple(matrix for matrix in tables.matrices if matrix.role != HEAD), relation=None)


def with_head(tables: QuantisedTables, head: QuantisedMatrix) -> QuantisedTables:
    """Return the tables with a quantised head."""
    return replace(tables, matrices=(*tables.matrices, head))
