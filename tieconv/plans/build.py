"""Build the plan from edits and config: the last step of every planner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from tieconv.architectures.effective_flag import FLAG, is_foreign
from tieconv.checkpoint import write_plan
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import TWO_FORMATS, Checkpoint, Layout
from tieconv.checkpoint.tie_group import Tie
from tieconv.loaders.load import TRANSFORMERS_4, load
from tieconv.loaders.loaded import Cause
from tieconv.plans.config import Document, set_flag
from tieconv.plans.edits import Edits, files_of, stored
from tieconv.plans.guards import again, guard_layout, guard_lone_config, refuse
from tieconv.plans.meaning import Notes, described, judged
from tieconv.text import count, shown

EQUAL = frozenset({State.IDENTICAL, State.ALIASED})
ALIKE = EQUAL | {State.CANONICAL, State.ABSENT}
"""States of a member whose values are those of its group, now or once it is loaded."""


def has_own_head(inspection: Inspection) -> bool:
    """Return whether the stored head of a tied group differs from the embedding."""
    head, members = inspection.head.output_head, (member for tie in inspection.ties for member in tie.members)
    return head is not None and any(m.name == head.name and m.stored and m.state not in ALIKE for m in members)


def build(
    command: str,
    inspection: Inspection,
    edits: Edits,
    tied: bool | None,
    promises: write_plan.Promises,
    *,
    options: Mapping[str, str | None] = {},
    notes: Notes = (),
    document: Document | None = None,
    spared: Collection[str] | None = None,
    forced: bool = False,
) -> write_plan.Plan:
    """Return the plan of ``edits`` with the flag set to ``tied``, after `judged` has accepted it.

    With ``tied`` ``None`` the flag does not change. ``document`` is the config with all changes, if others than the
    flag's are due. `judged` describes ``spared``, the zeros by default, and ``forced``. Raises `RefusedError`.
    """
    checkpoint = inspection.checkpoint
    text, changes = document or ((None, ()) if tied is None else set_flag(inspection, tied))
    _guard_foreign(inspection, edits, text.name if text is not None else "")
    guard_lone_config(inspection, bool(changes))
    if tied is not None and checkpoint.config is None:
        promises = write_plan.Promises(None, tuple(replace(promise, declared=None) for promise in promises.ties))

    def drafted(promises: write_plan.Promises) -> write_plan.Plan:
        files = files_of(edits)
        if text is not None:
            links = tuple(link for link in files.links if link.name != text.name)
            files = replace(files, texts=(*files.texts, text), links=links, operations=(*changes, *files.operations))
        kinds = {
            "added": (write_plan.CopyTensor, write_plan.FillTensor, write_plan.ScaleTensor),
            "averaged": (write_plan.AverageTensor,),
            "dropped": (write_plan.DropTensor,),
            "changed": (write_plan.SetTensor,),
            "renamed": (write_plan.RenameTensor,),
            "resized": (write_plan.ResizeTensor,),
            "shared": (write_plan.ShareTensor,),
            "trimmed": (write_plan.TrimStorage,),
        }
        parts = []
        for word, types in kinds.items():
            number = sum(isinstance(operation, types) for operation in files.operations)
            if number:
                parts.append(f"{count(number, 'tensor')} {word}")
        if changes:
            parts.append("config updated")
        if any(isinstance(operation, write_plan.SetMetadata) for operation in files.operations):
            parts.append("metadata updated")
        done = {"retie": "tied", "untie": "untied"}.get(command, "done")
        return write_plan.Plan(
            command=command,
            checkpoint=checkpoint,
            fingerprint=dict(checkpoint.states),
            operations=files.operations,
            weights=files.weights,
            texts=files.texts,
            links=files.links,
            removed=files.removed,
            promises=promises,
            summary=", ".join(parts) if parts else f"already {done}: nothing to change",
            options=options,
            proofs=tuple(edits.proofs),
        )

    plan = drafted(promises)
    after = described(inspection, plan)
    if needs_prefix(inspection, after):
        promises, note = give_prefix(inspection, edits, promises)
        plan, notes = drafted(promises), (*notes, note)
        after = described(inspection, plan)
    spared = edits.dropped_zeros if spared is None else spared
    plan = judged(plan, inspection, after, notes, spared=spared, forced=forced)
    return replace(plan, notes=(*plan.notes, *_advice(inspection, tied, bool(changes))))


def accept_copies(reason: str) -> str:
    """Return the note how `tieconv check` accepts wanted copies that no metadata marks, after the sentence why."""
    settings = 'per-model = [{ model = "OUT", ignore = ["TIE002"], reason = "the copy is wanted" }]'
    return f"{reason}To make `tieconv check` accept it, add this to tieconv.toml: {settings}"


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
        problem = f"the program that reads {config} is not transformers, and {result or 'it does not read ' + edited}"
        hint = "change the model with the program that wrote it"
        refuse(problem, hint, "config.foreign", source=shown(checkpoint.source))


def _advice(inspection: Inspection, tied: bool | None, flag_changes: bool) -> Iterator[str]:
    if tied is not None and inspection.checkpoint.config is None:
        which = "does not tie its head" if tied else "ties its head"
        note = f"no config.json: a program that {which} may refuse the file (transformers: {FLAG} {str(tied).lower()})"
        head = inspection.head.output_head
        yield note if not tied and head and head.stored else f"{note} {REVIEW_FIRST}"
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
        if PurePosixPath(name).name in ("optimizer.pt", "optimizer.bin"):
            before = "tied" if was else "untied"
            yield f"{shown(name)} holds the optimizer state of the {before} model: training cannot resume from it"


def still_stored(ties: Iterable[Tie], edits: Edits) -> tuple[Tie, ...]:
    """Return the groups that have a stored name after the edits. A new inspection sees only these groups."""
    after = edits.after()
    return tuple(tie for tie in ties if any(member.name in after for member in tie.members))


def promise(tie: Tie, declared: bool | None, after: Collection[str]) -> write_plan.TiePromise:
    """Return the promise that the config declares the group so, and that of its names those in ``after`` are stored."""
    names = [member.name for member in tie.members]
    there, absent = (tuple(name for name in names if (name in after) is kind) for kind in (True, False))
    return write_plan.TiePromise(tie.canonical, declared, there, absent)


def kept_promises(inspection: Inspection, ties: Iterable[Tie], after: Collection[str]) -> write_plan.Promises:
    """Return the promises that the config declares ``ties`` as before, with those of their names in ``after``."""
    promises = tuple(promise(tie, tie.declared, after) for tie in ties)
    return write_plan.Promises(inspection.config.effective, promises)


# Add the base model's prefix to the names of a file without it, if a plan adds a head.
#
# gpt2 on the Hub stores ``transformer.wte.weight`` as ``wte.weight``. transformers 4 adds the prefix to each name of
# such a file. It refuses such a file if a head is stored too: then the names in the file need the prefix.

Rename = Callable[[str], str]


def needs_prefix(before: Inspection, after: Inspection) -> bool:
    """Return whether transformers 4 accepts the names ``before`` a plan and refuses the names ``after`` it."""
    if not before.family.prefix or load(after, TRANSFORMERS_4).refused(Cause.NAMES) is None:
        return False
    return load(before, TRANSFORMERS_4).refused(Cause.NAMES) is None


def give_prefix(inspection: Inspection, edits: Edits, promises: write_plan.Promises) -> tuple[write_plan.Promises, str]:
    """Rename the base model's tensors in ``edits``. Return the promises with the new names, and a note."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    start = f"{family.prefix}."
    beside = {family.output_head or "", *family.output_biases}
    beside |= {name for group in family.groups for name in (group.canonical, *group.members)}
    outside = {name for name in beside if not name.startswith(start)}

    def to(name: str) -> str:
        return name if name in outside or name.startswith(start) else start + name

    for name in tensors:
        if name not in edits.drops and name not in edits.additions and to(name) != name:
            edits.renames[name] = to(edits.renames.get(name, name))
    edits.operations[:] = _operations(edits, to)
    edits.additions.update(
        {name: (replace(tensor, name=to(name)), beside) for name, (tensor, beside) in edits.additions.items()}
    )
    edits.kept_copies = {to(name) for name in edits.kept_copies}
    because = "transformers 4 refuses a file with a head and names without prefix"
    note = f"the names get the prefix {shown(start)} because {because}"
    ties = (
        replace(tie, canonical=to(tie.canonical), stored=tuple(map(to, tie.stored)), absent=tuple(map(to, tie.absent)))
        for tie in promises.ties
    )
    return replace(promises, ties=tuple(ties)), note


def _operations(edits: Edits, to: Rename) -> Iterator[write_plan.Operation]:
    """Yield the operations with the new names. Operations that only rename come first."""
    before = tuple(edits.operations)
    yield from (write_plan.RenameTensor(name, renamed) for name, renamed in edits.renames.items())
    for operation in before:
        if isinstance(operation, write_plan.CopyTensor | write_plan.FillTensor | write_plan.ScaleTensor):
            yield replace(operation, name=to(operation.name))
        elif not isinstance(operation, write_plan.RenameTensor):
            yield operation


# Add the "format" entry to safetensors metadata: transformers 4 refuses a file without it.

FORMAT, TORCH = "format", "pt"


def plan_add_format(inspection: Inspection) -> write_plan.Plan:
    """Return the plan that adds the "format" entry to a model of one file. Raises `RefusedError` for other formats."""
    guard_layout(inspection)
    checkpoint = inspection.checkpoint
    guard_named(checkpoint, again(inspection, "inspect"))
    weights = with_format(checkpoint)
    keeps = (write_plan.KeepTensor(name) for name in checkpoint.tensors)
    plan = write_plan.Plan(
        command="reindex",
        checkpoint=checkpoint,
        fingerprint=dict(checkpoint.states),
        operations=(*named(weights), *keeps),
        weights=weights,
        texts=(),
        links=tuple(write_plan.LinkFile(name, size) for name, size in sorted(_files(checkpoint, weights).items())),
        removed=(),
        promises=write_plan.Promises(inspection.config.effective, ()),
        summary=summary(weights) or 'the metadata already has a "format" entry: nothing to change',
        options={"add-format": "true"},
    )
    return judged(plan, inspection, described(inspection, plan), ())


def guard_named(checkpoint: Checkpoint, hint: str) -> None:
    """Raise `RefusedError` for a model that is not in safetensors files."""
    if checkpoint.format != "safetensors":
        refuse(
            f'{shown(checkpoint.source)} has the format {checkpoint.format}: only safetensors has a "format" entry',
            hint,
            "reindex.add-format",
        )


def with_format(checkpoint: Checkpoint) -> tuple[write_plan.OutputWeights, ...]:
    """Return the files without a "format" entry that loaders accept, with that entry. Nothing else changes."""
    outputs = []
    for file in checkpoint.files:
        if file.metadata is None or file.refused_format is not None:
            tensors = tuple(stored(tensor, tensor.name) for tensor in file.tensors)
            outputs.append(write_plan.OutputWeights(file.name, tensors, {**(file.metadata or {}), FORMAT: TORCH}))
    return tuple(outputs)


def named(weights: tuple[write_plan.OutputWeights, ...]) -> tuple[write_plan.SetMetadata, ...]:
    """Return the operations for the files from `with_format`."""
    return tuple(write_plan.SetMetadata(output.name, FORMAT, TORCH) for output in weights)


def summary(weights: tuple[write_plan.OutputWeights, ...]) -> str:
    """Return the summary, such as ``format pt added to 2 files``. It is empty for no file."""
    return f"format {TORCH} added to {count(len(weights), 'file')}" if weights else ""


def _files(checkpoint: Checkpoint, weights: tuple[write_plan.OutputWeights, ...]) -> Mapping[str, int]:
    files = {file.name: file.size for file in checkpoint.files} | dict(checkpoint.companions)
    if checkpoint.config is not None and checkpoint.layout is not Layout.FILE:
        files[checkpoint.config.name] = checkpoint.states[checkpoint.config.name].size
    written = {output.name for output in weights}
    return {name: size for name, size in files.items() if name not in written}


# Change the format that loaders prefer in a directory with two formats, and drop the others.
def alone(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint without the files of other formats. ``others`` still lists them."""
    return replace(
        checkpoint,
        companions={name: size for name, size in checkpoint.companions.items() if name not in checkpoint.others},
        cautions=tuple(caution for caution in checkpoint.cautions if caution.code != TWO_FORMATS),
    )


def dropping(plan: write_plan.Plan) -> write_plan.Plan:
    """Add to a plan for an `alone` checkpoint the files to drop.

    The fingerprint has the state of each, so a file that has changed since is refused.
    """
    others = plan.checkpoint.others
    if not others:
        return plan
    written = {output.name for output in plan.weights} | {text.name for text in plan.texts}
    drops = tuple(write_plan.DropFile(name, state.size) for name, state in others.items())
    removed = (*plan.removed, *(name for name in others if name not in written))
    line = f"{plan.summary}; {count(len(others), 'file')} of another format dropped"
    changed = replace(plan, operations=(*drops, *plan.operations), removed=removed, summary=line)
    return replace(changed, fingerprint={**plan.fingerprint, **others})
