"""Add or drop the head bias when a model is tied or untied."""

from __future__ import annotations

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import Choice
from tieconv.checkpoint.write_plan import AllZero
from tieconv.plans.build import ALIKE
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, refuse
from tieconv.text import Hint, shown


class BiasChoice(Choice):
    """What a plan does with the head bias."""

    KEEP = "keep"
    ZERO = "zero"
    STRIP = "strip"


def apply(edits: Edits, inspection: Inspection, choice: BiasChoice, *, tied: bool) -> tuple[str, ...]:
    """Add or drop the bias as the user chose, and return notes. ``tied`` is the state after the plan."""
    if choice is BiasChoice.ZERO:
        return _zero(edits, inspection, tied)
    if choice is BiasChoice.STRIP:
        return _strip(edits, inspection)
    return ()


def _zero(edits: Edits, inspection: Inspection, tied: bool) -> tuple[str, ...]:
    names = _names(inspection, tied)
    bias = inspection.head.output_bias
    if bias and bias.state is not BiasState.ABSENT:
        return ()
    embedding = inspection.head.input_embedding
    output = inspection.head.output_head
    like = output if output and output.shape and output.dtype else embedding
    if like is None or not like.shape or not like.dtype:
        quantised = inspection.quantised_tables is not None
        why = "the head and the embedding are quantised" if quantised else "it stores no head and no embedding"
        problem = f"{shown(inspection.checkpoint.source)}: {why}, so the size and dtype of a bias are unknown"
        refuse(problem, again(inspection, "inspect"), "bias.size")
    rows = like.shape[0]
    shape = (1, rows) if inspection.family.bias_is_row else (rows,)
    stored = output.name if output and output.stored else (embedding.name if embedding else "")
    for name in names:
        edits.fill(name, like.dtype, shape, stored)
    # Loaders ignore or refuse a bias that the class does not have. Tests run transformers and safetensors. The source
    # code says what vLLM and mlx-lm do: vllm#21176, mlx-examples#564.
    if inspection.family.output_biases:
        return ()
    listed = ", ".join(shown(name) for name in names)
    if not inspection.family.architecture:
        return (f"tieconv does not know the class: a program without a parameter {listed} may refuse the file",)
    vllm = "vLLM ignores it and mlx-lm refuses it" if tied else "vLLM and mlx-lm refuse it"
    return (
        f"{inspection.family.architecture} has no parameter {listed}. transformers ignores it and reports it as "
        f"unexpected. safetensors' load_model refuses it unless strict=False. According to their source code, {vllm}",
    )


def _names(inspection: Inspection, tied: bool) -> tuple[str, ...]:
    """Return the bias names that loaders read: one name if the pair is tied, else both."""
    names = inspection.family.output_biases
    if not names:
        bias = inspection.head.output_bias
        return (bias.name,) if bias else ()
    aliases = {
        member
        for group in inspection.family.groups
        if group.role is Role.OUTPUT_BIAS and (tied or not group.gated)
        for member in group.members
    }
    return tuple(name for name in names if name not in aliases)


def _strip(edits: Edits, inspection: Inspection) -> tuple[str, ...]:
    bias = inspection.head.output_bias
    if bias is None or bias.state is BiasState.ABSENT:
        return ()
    if bias.state is BiasState.NONZERO:
        largest = f" (largest magnitude {bias.max_abs:.4g})" if bias.max_abs else ""
        problem = f"{shown(bias.name)} is not all zero{largest}, so removing it changes the logits"
        exits = "" if inspection.family.output_biases else "use a class that reads it, or train the model without it; "
        refuse(problem, Hint(exits, "see its values: ", again(inspection, "analyze")), "bias.nonzero")
    pairs = (tie for tie in inspection.ties if tie.role is Role.OUTPUT_BIAS)
    unequal = (tie for tie in pairs if any(member.state not in ALIKE for member in tie.members))
    differing = next((member.name for tie in unequal for member in tie.members if member.name != bias.name), None)
    if differing:
        problem = f"{shown(differing)} differs from {shown(bias.name)}, which is all zero"
        refuse(problem, again(inspection, "inspect"), "bias.copies-differ")
    tensors = inspection.checkpoint.tensors
    names = {bias.name, *inspection.family.output_biases} | {
        member.name for tie in inspection.ties if tie.role is Role.OUTPUT_BIAS for member in tie.stored_members
    }
    for name in sorted(names & tensors.keys() | edits.additions.keys() & names):
        edits.additions.pop(name, None)
        edits.operations[:] = [operation for operation in edits.operations if getattr(operation, "name", "") != name]
        if name in edits.checkpoint.tensors:
            edits.drop(name, "all zero")
            edits.proofs.append(AllZero(edits.checkpoint.tensors[name]))
    if not inspection.family.output_biases:
        return ()
    if not inspection.family.architecture:
        return (f"tieconv does not know the class: a program with a parameter {shown(bias.name)} may refuse the file",)
    return (
        f"{inspection.family.architecture} has a parameter {shown(bias.name)}. "
        "transformers reports it as missing and sets it to zero, the same values as before",
    )
