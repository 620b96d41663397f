"""Plan to untie: store the head and every other tied name that loaders then read as a separate tensor."""

from __future__ import annotations

from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import Layout
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.checkpoint.write_plan import Plan, Promises, TiePromise
from tieconv.loaders.llama_cpp import head_rule, load_error
from tieconv.loaders.load import TRANSFORMERS_4, TRANSFORMERS_5, load
from tieconv.plans import biases
from tieconv.plans.biases import BiasChoice
from tieconv.plans.build import ALIKE, EQUAL, accept_copies, build, promise, still_stored
from tieconv.plans.config import config_with_flag
from tieconv.plans.edits import Edits
from tieconv.plans.flag_effect import always_tied, apart_note, guard_flip, keep_untied, reads_false, scaling_exponent
from tieconv.plans.guards import again, guard, guard_contents, refuse
from tieconv.plans.meaning import Note
from tieconv.text import Hint, shown


def plan_untie(inspection: Inspection, *, bias: BiasChoice = BiasChoice.KEEP, keep_flag: bool = False) -> Plan:
    """Return the plan that stores every name of the tied groups.

    With ``keep_flag``, the config does not change and the plan stores equal copies. Raises `RefusedError` if the flag
    changes the forward pass and no exact scaling of the head compensates for it.
    """
    if inspection.checkpoint.format == "gguf":
        return plan_gguf_untie(inspection, bias=bias, keep_flag=keep_flag)
    if inspection.quantised_tables is not None:
        from tieconv.plans.quantised_ties import plan_quantised_untie  # most models are not quantised

        return plan_quantised_untie(inspection, bias=bias, keep_flag=keep_flag)
    guard(inspection, "untie")
    edits = Edits(inspection.checkpoint)
    flips = not keep_flag and inspection.config.effective and not reads_false(inspection)
    exponent = scaling_exponent(inspection, "untie") if flips else 0
    if inspection.config.effective and (not keep_flag or inspection.family.misfit):
        guard_flip(inspection, "untie")
    notes: list[str | Note] = []
    if flips and not exponent and (sentence := always_tied(inspection)):
        hint = Hint("write a copy and leave the flag: ", again(inspection, "untie", keep_flag=True))
        refuse(sentence, hint, "tie.always")
    for tie in inspection.ties:
        notes += _separate(edits, inspection, tie, exponent, keep_flag)
    if keep_flag and inspection.config.effective:
        notes += _keep_copies(edits, inspection)
    notes += biases.apply(edits, inspection, bias, tied=keep_flag and inspection.config.effective)
    always = inspection.family.tying is Tying.ALWAYS
    tied = inspection.config.effective if keep_flag or always else False
    flag = None if keep_flag else False
    after, ties = edits.after(), still_stored(inspection.ties, edits)
    promises = Promises(tied, tuple(promise(tie, tied if tie.gated else True, after) for tie in ties))
    options = {"bias": str(bias), "keep_flag": str(keep_flag).lower()}
    document = None if flag is None else config_with_flag(inspection, flag)
    return build("untie", inspection, edits, flag, promises, options=options, notes=tuple(notes), document=document)


def _separate(edits: Edits, inspection: Inspection, tie: Tie, exponent: int, keep_flag: bool) -> tuple[Note, ...]:
    """Store the absent names of one group, except names that the class always shares."""
    tensors = inspection.checkpoint.tensors
    source = tensors[next(member.name for member in tie.members if member.state is State.CANONICAL)]
    head = inspection.head.output_head
    notes: list[Note] = []
    for member in tie.members:
        is_head = head is not None and member.name == head.name
        empty = member.relation.is_empty
        if member.state not in ALIKE and not empty:
            if member.state is State.TRANSPOSED or member.relation.shape_differs:
                problem = f"loaders cannot read the stored {shown(member.name)}: {difference_clause(member)}"
                refuse(problem, "store it in the shape of the embedding first", "untie.shape")
            notes += apart_note(inspection, tie, member, keep_flag=keep_flag)
        origin = _origin(inspection, tie, member, source)
        if is_head and exponent:
            # Store E × 2**exponent as the head, which gives the tied logits without the scaling of the flag.
            if member.stored and member.state not in EQUAL:
                problem = f"{shown(member.name)} differs from the embedding, and the flag also scales the logits"
                refuse(problem, keep_untied(inspection), "flag.forward")
            edits.scale(member.name, origin, exponent)
        elif (empty or not member.stored or member.state is State.ALIASED) and (tie.gated or is_head):
            _guard_rows(inspection, member, origin)
            edits.copy(member.name, origin)
    return tuple(notes)


def _keep_copies(edits: Edits, inspection: Inspection) -> tuple[str, ...]:
    """Mark the copies in the metadata; without metadata, return a note on how to configure `tieconv check`."""
    after, checkpoint, head = edits.after(), inspection.checkpoint, inspection.head.output_head
    copies = [
        member.name
        for tie in inspection.ties
        for member in tie.members
        if tie.declared and member.state in ALIKE - {State.CANONICAL} and member.name in after
        if tie.gated or (head is not None and member.name == head.name)
    ]
    if not copies:
        return ()
    if checkpoint.format == "safetensors" and all(file.metadata is not None for file in checkpoint.files):
        edits.kept_copies.update(copies)
        return ()
    return (accept_copies("the file has no metadata that could mark the copy as wanted. "),)


def _origin(inspection: Inspection, tie: Tie, member: Member, source: TensorRecord) -> TensorRecord:
    """Return the tensor that loads into an absent name in transformers 5 if tied, else in transformers 4."""
    if member.stored:
        return source
    loaded = load(inspection, TRANSFORMERS_5 if tie.declared else TRANSFORMERS_4)
    return inspection.checkpoint.tensors[loaded.source(member.name) or source.name]


def _guard_rows(inspection: Inspection, member: Member, source: TensorRecord) -> None:
    """Refuse to store an encoder table with the decoder's rows: FSMT has a separate vocabulary for each."""
    rows = inspection.checkpoint.config_values.get("src_vocab_size")
    if isinstance(rows, int) and "encoder" in member.name.split(".") and source.shape[:1] != (rows,):
        refuse(
            f"the config's src_vocab_size gives {shown(member.name)} {rows:,} rows, but {shown(source.name)} has "
            f"{source.shape[0] if source.shape else 0:,}",
            again(inspection, "inspect"),
            "untie.shape",
        )


# Plan to drop or add ``output.weight`` of a GGUF file, which is what ties or unties it in llama.cpp.
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
            problem = f"{shown(head.name)} is not a byte-identical copy of {shown(embedding)}"
            hint = "keep the file as it is, or tie the original model and convert it again"
            refuse(f"{problem}: {difference_clause(head)}", hint, "retie.not-equal")
        _guard_architecture(inspection, head.name)
        edits.drop_equal(head.name, embedding, f"equal to {embedding}, byte for byte")
    promises = Promises(True, (TiePromise(embedding, None, (embedding,), (head.name,)),))
    return build("retie", inspection, edits, None, promises)


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
    promises = Promises(False, (TiePromise(embedding, None, (embedding, head.name), ()),))
    return build("untie", inspection, edits, None, promises)


def _guard(inspection: Inspection, verb: str, bias: BiasChoice, options: str) -> None:
    """Refuse a split file, a file without an embedding, and options that mean nothing for GGUF."""
    source = shown(inspection.checkpoint.source)
    guard_contents(inspection)
    if inspection.checkpoint.layout is Layout.SHARDED:
        hint = "join them first: llama-gguf-split --merge FIRST OUT"
        refuse(f"{source} is split into several GGUF files", hint, "gguf.split")
    if bias is not BiasChoice.KEEP:
        options = f"--bias {bias}"
    if options:
        refuse(f"{verb} takes no {options} for a GGUF file", Hint("use: ", again(inspection, verb)), "gguf.option")
    if inspection.word_tie is None or not inspection.word_tie.canonical_stored:
        refuse(f"{source} has no token_embd.weight", again(inspection, "inspect"), "tie.absent")


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
        refuse(why, again(inspection, "inspect"), "gguf.architecture")
