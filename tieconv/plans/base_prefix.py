"""Add the base model's prefix to the names of a file without it, if a plan adds a head.

gpt2 on the Hub stores ``transformer.wte.weight`` as ``wte.weight``. transformers 4 adds the prefix to each name of such
a file. It refuses such a file if a head is stored too: then the names in the file need the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan import CopyTensor, FillTensor, Operation, Promises, RenameTensor, ScaleTensor
from tieconv.loaders.load import TRANSFORMERS_4, load
from tieconv.loaders.loaded import Cause
from tieconv.plans.edits import Edits
from tieconv.text import shown

Rename = Callable[[str], str]


def needs_prefix(before: Inspection, after: Inspection) -> bool:
    """Return whether transformers 4 accepts the names ``before`` a plan and refuses the names ``after`` it."""
    if not before.family.prefix or load(after, TRANSFORMERS_4).refused(Cause.NAMES) is None:
        return False
    return load(before, TRANSFORMERS_4).refused(Cause.NAMES) is None


def give_prefix(inspection: Inspection, edits: Edits, promises: Promises) -> tuple[Promises, str]:
    """Rename the base model's tensors in ``edits``. Return the promises with the new names, and a note."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    start = f"{family.prefix}."
    outside = {name for name in _outside_the_base(family) if not name.startswith(start)}

    def to(name: str) -> str:
        return name if name in outside or name.startswith(start) else start + name

    for name in tensors:
        if name not in edits.drops and name not in edits.additions and to(name) != name:
            renamed = edits.renames.get(name)
            edits.renames[name] = RenameTensor(name, to(renamed.to if renamed else name))
    edits.operations[:] = _operations(edits, to)
    edits.additions.update(
        {name: (replace(tensor, name=to(name)), beside) for name, (tensor, beside) in edits.additions.items()}
    )
    edits.kept_copies = {to(name) for name in edits.kept_copies}
    because = "transformers 4 refuses a file with a head and names without prefix"
    note = f"the names get the prefix {shown(start)} because {because}"
    return _promises(promises, to), note


def _outside_the_base(family: Family) -> Iterator[str]:
    yield from (name for name in (family.output_head, *family.output_biases) if name is not None)
    for group in family.groups:
        yield from (group.canonical, *group.members)


def _operations(edits: Edits, to: Rename) -> Iterator[Operation]:
    """Yield the operations with the new names. Operations that only rename come first."""
    operations = tuple(operation for operation in edits.operations if not isinstance(operation, RenameTensor))
    yield from edits.renames.values()
    for operation in operations:
        if isinstance(operation, CopyTensor | FillTensor | ScaleTensor):
            yield replace(operation, name=to(operation.name))
        else:
            yield operation


def _promises(promises: Promises, to: Rename) -> Promises:
    ties = (
        replace(tie, canonical=to(tie.canonical), stored=tuple(map(to, tie.stored)), absent=tuple(map(to, tie.absent)))
        for tie in promises.ties
    )
    return replace(promises, ties=tuple(ties))
