"""Choose which copy of a matrix stays, or say why the others cannot be removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import RUNTIMES, HeadForm
from tieconv.onnx.graph.initializers import Stored
from tieconv.onnx.share.find import Member
from tieconv.onnx.share.patterns.interface import Names, Target
from tieconv.onnx.share.patterns.registry import pattern_of
from tieconv.onnx.share.uses import Use, integer, is_standard, uses_of


@record
class Read:
    """A use of one stored copy; ``use.flipped`` is relative to the group's first member."""

    stored: Stored
    use: Use


@record
class Choice:
    """The form that stays. ``keeper`` is the copy with that form, or ``None`` if it is made from ``source``."""

    keeper: Stored | None
    source: Stored
    flipped: bool
    dtype: ir.DataType


@record
class Setting:
    """Settings for a graph file. ``home`` is the graph that will hold the matrix: the main graph, or a subgraph."""

    form: HeadForm
    opset: int
    names: Names
    home: ir.Graph


def reads_of(members: Sequence[Member]) -> list[Read]:
    """Return every use of every copy."""
    return [
        Read(member.stored, use) for member in members for use in uses_of(member.stored.value, flipped=member.flipped)
    ]


def to_rewrite(reads: Sequence[Read], choice: Choice, form: HeadForm) -> list[Read]:
    """Return the uses that do not read the copy that stays; ``use.flipped`` is relative to that copy."""
    turned = [Read(read.stored, replace(read.use, flipped=read.use.flipped != choice.flipped)) for read in reads]
    return [read for read in turned if not _settled(read, choice, form)]


def _settled(read: Read, choice: Choice, form: HeadForm) -> bool:
    if read.stored is not choice.keeper:
        return False
    node = read.use.node
    if not read.use.flipped:
        return node is None or not _turns(node.inputs[read.use.index])
    return form is HeadForm.TRANSPOSE and node is not None and is_standard(node, "MatMul")


def _turns(value: ir.Value | None) -> bool:
    """Return whether a Transpose turns the value and another one turns it back. A session folds them into a copy."""
    maker = value.producer() if value is not None else None
    if maker is None or not is_standard(maker, "Identity", "Transpose"):
        return False
    return is_standard(maker, "Transpose") or _turns(maker.inputs[0])


def target_of(choice: Choice, setting: Setting, value: ir.Value | None = None) -> Target:
    """Return what the uses will read: ``value``, or else the copy of ``choice``."""
    return Target(value or choice.source.value, choice.dtype, setting.form, setting.opset, setting.names)


CAST = f"a Cast reads it, and a session of {RUNTIMES} folds the Cast into another matrix"


def choose(members: Sequence[Member], setting: Setting) -> tuple[Choice | None, str]:
    """Return the first form that every use can read; else ``None`` and why the best form is impossible."""
    reads = reads_of(members)
    why = ""
    types = {member.stored.value.dtype for member in members}
    if len(types) > 1 and any(read.use.node is not None and is_standard(read.use.node, "Cast") for read in reads):
        return None, CAST
    for choice in _candidates(members, reads, setting):
        target = target_of(choice, setting)
        refusals = (pattern_of(read.use).refuses(read.use, target) for read in to_rewrite(reads, choice, setting.form))
        reason = next((reason for reason in refusals if reason), "")
        if not reason:
            return choice, ""
        why = why or reason
    return None, why


def _candidates(members: Sequence[Member], reads: Sequence[Read], setting: Setting) -> Iterator[Choice]:
    """Yield forms in order of preference: rows as the embedding reads them, in the type of the heads."""
    turns = _orientations(reads)
    types = _types(members, reads)
    for flipped in turns:
        for dtype in types:
            held = [m.stored for m in members if m.flipped == flipped and m.stored.value.dtype == dtype]
            held.sort(key=lambda stored: (not stored.value.is_graph_output(), stored.graph is not setting.home))
            for stored in held:
                yield Choice(stored, stored, flipped, dtype)
            source = next((m.stored for m in members if m.stored.value.dtype == dtype), None)
            if not held and source is not None:
                yield Choice(None, source, flipped, dtype)


def _orientations(reads: Sequence[Read]) -> tuple[bool, bool]:
    """Return the orientation in which rows are gathered, then the other one."""
    for read in reads:
        node = read.use.node
        if node is not None and is_standard(node, "Gather") and integer(node, "axis", 0) in (0, -2):
            return read.use.flipped, not read.use.flipped
    return False, True


def _types(members: Sequence[Member], reads: Sequence[Read]) -> list[ir.DataType]:
    """Return the types of the copies. Types that other nodes than a Gather read are first."""
    dtypes: list[ir.DataType] = []
    for read in sorted(reads, key=lambda read: read.use.node is not None and is_standard(read.use.node, "Gather")):
        dtype = read.stored.value.dtype
        if dtype is not None and dtype not in dtypes:
            dtypes.append(dtype)
    return dtypes or [dtype for m in members[:1] if (dtype := m.stored.value.dtype) is not None]
