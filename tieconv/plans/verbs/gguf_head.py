"""Plan to drop or add ``output.weight`` of a GGUF file, which is what ties or unties it in llama.cpp."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import Layout
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.tie_group import Member
from tieconv.checkpoint.write_plan import Plan, Promises, TiePromise
from tieconv.loaders.engines.gguf_architectures import head_rule, load_error
from tieconv.plans.biases import BiasChoice
from tieconv.plans.build import build
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, guard_contents, inspect_hint, refuse
from tieconv.text import shown


def plan_gguf_retie(inspection: Inspection, *, bias: BiasChoice, forced: bool) -> Plan:
    """Return the plan that drops an ``output.weight`` whose type and bytes are those of ``token_embd.weight``.

    llama.cpp then reads ``token_embd.weight`` in both roles. Raises `RefusedError` for other values, for ``forced``,
    for a ``bias`` to change, and for an architecture that needs the tensor.
    """
    _guard(inspection, "retie", bias, "--from, --force or --max-kl" if forced else "")
    embedding, head = _pair(inspection)
    edits = Edits(inspection.checkpoint)
    if head.stored:
        if head.state is not State.IDENTICAL:
            refuse(
                f"{shown(head.name)} is not a byte-identical copy of {shown(embedding)}: {difference_clause(head)}",
                "keep the file as it is, or tie the original model and convert it again",
                "retie.not-equal",
            )
        _guard_architecture(inspection, head.name)
        edits.drop_equal(head.name, embedding, f"equal to {embedding}, byte for byte")
    return _built("retie", inspection, edits, TiePromise(embedding, None, (embedding,), (head.name,)))


def plan_gguf_untie(inspection: Inspection, *, bias: BiasChoice, keep_flag: bool) -> Plan:
    """Return the plan that stores the bytes of ``token_embd.weight`` as ``output.weight`` too.

    Raises `RefusedError` for ``keep_flag``, for a ``bias`` to change, and for an architecture that never reads the
    tensor.
    """
    _guard(inspection, "untie", bias, "--keep-flag" if keep_flag else "")
    embedding, head = _pair(inspection)
    edits = Edits(inspection.checkpoint)
    if not head.stored:
        _guard_architecture(inspection, head.name, needed=True)
        edits.copy(head.name, inspection.checkpoint.tensors[embedding])
    return _built("untie", inspection, edits, TiePromise(embedding, None, (embedding, head.name), ()))


def _built(verb: str, inspection: Inspection, edits: Edits, promise: TiePromise) -> Plan:
    promises = Promises(verb == "retie", (promise,))
    return build(verb, inspection, edits, tied=None, promises=promises, options={}, notes=())


def _guard(inspection: Inspection, verb: str, bias: BiasChoice, options: str) -> None:
    """Refuse a split file, a file without an embedding, and options that mean nothing for GGUF."""
    source = shown(inspection.checkpoint.source)
    guard_contents(inspection)
    if inspection.checkpoint.layout is Layout.SHARDED:
        refuse(
            f"{source} is split into several GGUF files",
            "join them first: llama-gguf-split --merge FIRST OUT",
            "gguf.split",
        )
    if bias is not BiasChoice.KEEP:
        options = f"--bias {bias}"
    if options:
        refuse(f"{verb} takes no {options} for a GGUF file", f"use: {again(inspection, verb)}", "gguf.option")
    if inspection.word_tie is None or not inspection.word_tie.canonical_stored:
        refuse(f"{source} has no token_embd.weight", inspect_hint(inspection), "tie.absent")


def _pair(inspection: Inspection) -> tuple[str, Member]:
    tie = inspection.word_tie
    assert tie is not None  # `_guard` refuses it
    return tie.canonical, next(member for member in tie.members if member.name != tie.canonical)


def _guard_architecture(inspection: Inspection, head: str, *, needed: bool = False) -> None:
    """Refuse an architecture whose loader needs ``head``, or never reads it if it is ``needed``."""
    architecture = inspection.family.architecture
    why = load_error(architecture, head, stored=needed)
    if head_rule(architecture) is None:
        why = f"tieconv does not know what llama.cpp does with {shown(head)} of the architecture {shown(architecture)}"
    if why is not None:
        refuse(why, inspect_hint(inspection), "gguf.architecture")
