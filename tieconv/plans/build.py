"""Build the plan from edits and config: the last step of every planner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from tieconv.architectures.own_flag import is_foreign
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import Layout
from tieconv.checkpoint.tie_group import Tie
from tieconv.checkpoint.write_plan import (
    AverageTensor,
    CopyTensor,
    DropConfig,
    DropTensor,
    FillTensor,
    Operation,
    OutputText,
    Plan,
    Promises,
    RenameTensor,
    ResizeTensor,
    ScaleTensor,
    SetConfig,
    SetMetadata,
    SetTensor,
    ShareTensor,
    TiePromise,
    TrimStorage,
)
from tieconv.plans.base_prefix import give_prefix, needs_prefix
from tieconv.plans.config import set_flag
from tieconv.plans.edited_files import files_of, with_text
from tieconv.plans.edits import Edits
from tieconv.plans.guards import guard_lone_config, refuse
from tieconv.plans.meaning import Notes, judged
from tieconv.plans.meaning.described import described
from tieconv.text import count, shown

_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
"""Files that the trainers of transformers and accelerate save beside a checkpoint."""

ALIKE = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED, State.ABSENT})
"""States of a member whose values are those of its group, now or once it is loaded."""


def build(
    command: str,
    inspection: Inspection,
    edits: Edits,
    *,
    tied: bool | None,
    promises: Promises,
    options: Mapping[str, str | None],
    notes: Notes,
    document: tuple[OutputText | None, tuple[SetConfig | DropConfig, ...]] | None = None,
    spared: Collection[str] = (),
    forced: bool = False,
) -> Plan:
    """Return the plan of ``edits`` with the flag set to ``tied``, after `judged` has accepted it.

    With ``tied`` ``None`` the flag does not change. ``document`` is the config with all changes, if others than the
    flag's are due.
    `judged` describes ``spared`` and ``forced``. Raises `RefusedError`.
    """
    checkpoint = inspection.checkpoint
    text, changes = document or ((None, ()) if tied is None else set_flag(inspection, tied))
    _guard_foreign(inspection, edits, text.name if text is not None else "")
    guard_lone_config(inspection, bool(changes))
    if tied is not None and checkpoint.config is None:
        promises = Promises(None, tuple(replace(promise, declared=None) for promise in promises.ties))

    def drafted(promises: Promises) -> Plan:
        files = files_of(edits)
        if text is not None:
            files = with_text(files, text, changes)
        return Plan(
            command=command,
            checkpoint=checkpoint,
            fingerprint=dict(checkpoint.states),
            operations=files.operations,
            weights=files.weights,
            texts=files.texts,
            links=files.links,
            removed=files.removed,
            promises=promises,
            summary=_summary(command, files.operations, bool(changes)),
            options=options,
            proofs=tuple(edits.proofs),
        )

    plan = drafted(promises)
    after = described(inspection, plan)
    if needs_prefix(inspection, after):
        promises, note = give_prefix(inspection, edits, promises)
        plan, notes = drafted(promises), (*notes, note)
        after = described(inspection, plan)
    plan = judged(plan, inspection, after, notes, spared=spared, forced=forced)
    return replace(plan, notes=(*plan.notes, *_advice(inspection, tied, bool(changes))))


def _guard_foreign(inspection: Inspection, edits: Edits, edited: str) -> None:
    """Refuse a plan that changes a name in a model of another program than transformers: its loader may be strict.

    ``edited`` is the name of the config that the plan changes; empty if it changes none.
    """
    checkpoint = inspection.checkpoint
    lit = "model_config.yaml" in checkpoint.companions and checkpoint.files[0].name.startswith("lit_model")
    if checkpoint.layout is Layout.FILE or not (lit or is_foreign(checkpoint.config_values)):
        return
    names, after = set(checkpoint.tensors), set(edits.after())
    changed = next(iter(sorted(names ^ after)), "")
    if changed or (lit and edited):
        config = "model_config.yaml" if lit else shown(checkpoint.config.name if checkpoint.config else "")
        result = f"the result would {'lack' if changed in names else 'have'} {shown(changed)}" if changed else ""
        refuse(
            f"the program that reads {config} is not transformers, and {result or 'it does not read ' + edited}",
            "change the model with the program that wrote it",
            "config.foreign",
            source=shown(checkpoint.source),
        )


def _advice(inspection: Inspection, tied: bool | None, flag_changes: bool) -> Iterator[str]:
    """Yield the notes about what the user must do by hand."""
    if tied is not None and inspection.checkpoint.config is None:
        value = str(tied).lower()
        yield f"the model has no config.json: set tie_word_embeddings to {value} in the config that you load it with"
    if tied is not None and flag_changes:
        yield from _optimizers(inspection, tied)


def _optimizers(inspection: Inspection, tied: bool) -> Iterator[str]:
    """Yield a note for each optimizer file that no longer fits the model.

    torch loads an optimizer state only if the number of parameters is the same. For transformers 5 two tensors that
    differ are two parameters, whatever the flag says: then the number does not change.
    """
    tie, was = inspection.word_tie, inspection.config.effective
    if was is tied or tie is None or any(member.state not in ALIKE for member in tie.members):
        return
    for name in inspection.checkpoint.companions:
        if PurePosixPath(name).name in _OPTIMIZERS:
            before = "tied" if was else "untied"
            yield f"{shown(name)} holds the optimizer state of the {before} model: training cannot resume from it"


def still_stored(ties: Iterable[Tie], edits: Edits) -> tuple[Tie, ...]:
    """Return the groups that have a stored name after the edits. A new inspection sees only these groups."""
    after = edits.after()
    return tuple(tie for tie in ties if any(member.name in after for member in tie.members))


def kept_promise(edits: Edits, tie: Tie) -> TiePromise:
    """Return the promise that the config declares the group as before, with the names that the edits leave."""
    after = edits.after()
    names = [member.name for member in tie.members]
    return TiePromise(
        tie.canonical,
        tie.declared,
        tuple(name for name in names if name in after),
        tuple(name for name in names if name not in after),
    )


def _summary(command: str, operations: Collection[Operation], config_changes: bool) -> str:
    kinds = {
        "added": (CopyTensor, FillTensor, ScaleTensor),
        "averaged": (AverageTensor,),
        "dropped": (DropTensor,),
        "changed": (SetTensor,),
        "renamed": (RenameTensor,),
        "resized": (ResizeTensor,),
        "shared": (ShareTensor,),
        "trimmed": (TrimStorage,),
    }
    parts = []
    for word, types in kinds.items():
        number = sum(isinstance(operation, types) for operation in operations)
        if number:
            parts.append(f"{count(number, 'tensor')} {word}")
    if config_changes:
        parts.append("config updated")
    if any(isinstance(operation, SetMetadata) for operation in operations):
        parts.append("metadata updated")
    done = {"retie": "tied", "untie": "untied"}.get(command, "done")
    return ", ".join(parts) if parts else f"already {done}: nothing to change"
