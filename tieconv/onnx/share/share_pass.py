"""Store each matrix of a graph once, as an onnx-ir pass: requires → call → ensures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS, OLDEST_IR, OLDEST_OPSET, PACKED, Path, near_homes
from tieconv.checkpoint.write_plan.graph import RUNTIMES, HeadForm, SharedMatrix
from tieconv.onnx.graph.initializers import GraphBytes, Stored
from tieconv.onnx.graph.model import GraphFile, opset, sides
from tieconv.onnx.share.apply import apply
from tieconv.onnx.share.find import Group, Member, find_groups
from tieconv.onnx.share.form import choose_form
from tieconv.onnx.share.patterns.interface import Names
from tieconv.onnx.share.quantised import share_quantised
from tieconv.onnx.share.quantised.dequantised import FUSED, is_fused
from tieconv.onnx.share.surviving_copy import Choice, Setting, reads_of
from tieconv.onnx.share.uses import is_standard, uses_of
from tieconv.sources.local.files import FileSet

_INPUT = "it is an input of the graph, so a caller may replace it"
_CAST = f"a Cast reads it too, and a session of {RUNTIMES} folds the Cast into a second matrix"
_APART = (
    f"copies in other subgraphs stay, because {RUNTIMES} computes other bits with a matrix two subgraphs outside its "
    "node"
)
_FORMS = 2
"""Forms of a copy that a session may hold: as stored, and transposed or cast."""


class SharePass(InPlacePass):
    """Leaves one copy of each matrix that a graph holds more than once.

    Without a ``form``, each head gets the first form that keeps every bit of a session's result. After the call,
    ``matrices`` say what was done with each matrix.
    """

    def __init__(self, file: GraphFile, files: FileSet, form: HeadForm | None = None) -> None:
        self._file = file
        self._files = files
        self._form = form
        self.matrices: tuple[SharedMatrix, ...] = ()
        self._promised: Interface = {}

    def requires(self, model: ir.Model) -> None:
        """Raise `PreconditionError` if the graph is too old to be rewritten."""
        if opset(model) < OLDEST_OPSET:
            raise PreconditionError(f"opset {opset(model)} is older than {OLDEST_OPSET}")
        if model.ir_version < OLDEST_IR:
            raise PreconditionError(f"IR version {model.ir_version} is older than {OLDEST_IR}")

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite the graph in place."""
        self._promised = interface(model)
        setting = Setting(self._form or HeadForm.GEMM, opset(model), Names(model), model.graph)
        matrices = share_quantised(self._file, setting.names)
        for group in self._groups():
            matrices += self._share(group, setting)
        self.matrices = (*matrices, *self._cast_by_node(matrices))
        changed = any(matrix.done for matrix in matrices)
        self._file.changed = self._file.changed or changed
        return PassResult(model, modified=changed)

    def ensures(self, model: ir.Model) -> None:
        """Raise `PostconditionError` if inputs or outputs changed, or if a kept initializer is missing."""
        if interface(model) != self._promised:
            raise PostconditionError("the graph's inputs or outputs changed")
        names = {name for graph in model.graphs() for name in graph.initializers}
        for matrix in self.matrices:
            if matrix.initializer not in names:
                raise PostconditionError(f"initializer {matrix.initializer} is missing")

    def _cast_by_node(self, matrices: list[SharedMatrix]) -> list[SharedMatrix]:
        """Return matrices that a session holds twice because it folds a Cast. Sharing them would double the file."""
        reader = GraphBytes(self._file, self._files)
        reported = {matrix.initializer for matrix in matrices}
        casts = [
            entry for entry in reader.stored(MIN_ELEMENTS) if entry.value.name not in reported and _is_cast_too(entry)
        ]
        return [_left(Group((Member(entry, False),), ("folded",)), _CAST, self._file.name) for entry in casts]

    def _groups(self) -> list[Group]:
        """Return groups of several copies, then single matrices that nodes also read transposed."""
        reader = GraphBytes(self._file, self._files)
        stored = reader.stored(MIN_ELEMENTS)
        groups = find_groups(reader, stored)
        grouped = {id(member.stored) for group in groups for member in group.members}
        alone = [Group((Member(entry, False),), ("folded",)) for entry in stored if id(entry) not in grouped]
        return [*groups, *(group for group in alone if _both_ways(group.members))]

    def _share(self, group: Group, setting: Setting) -> list[SharedMatrix]:
        if any(is_fused(member.stored.value) for member in group.members):
            return [_left(group, FUSED, self._file.name)]
        free = [member for member in group.members if not member.stored.value.is_graph_input()]
        fixed = len(free) < len(group.members)
        if len(free) > 1 or (free and _both_ways(free)):
            homes = _homes(free, setting)
            apart = "" if [len(some) for _, some in homes] == [len(free)] else _APART
            note = f"another copy stays: {_INPUT}" if fixed else apart
            why = note
            made: list[SharedMatrix] = []
            for home, some in homes:
                if len(some) > 1 or (some and _both_ways(some)):
                    shared, reason = self._share_near(group, some, replace(setting, home=home), note)
                    why, made = reason or why, made + shared
            return made or ([_left(group, why, self._file.name)] if why else [])
        return [_left(group, _INPUT, self._file.name)] if fixed else []

    def _share_near(
        self, group: Group, members: list[Member], setting: Setting, note: str
    ) -> tuple[list[SharedMatrix], str]:
        """Share ``members`` in the subgraph of ``setting``. Return what was done, and why nothing more."""
        names = f" ({', '.join(str(member.stored.value.name) for member in group.members)})"
        chosen = choose_form(members, setting, self._form)
        if chosen.choice is not None:
            done = self._apply(group, members, chosen.choice, chosen.setting, note + names if note else "")
            return [replace(done, avoided=chosen.avoided)], ""
        parts = [(part, choose_form(part, setting, self._form)) for part in _parts(members) if len(part) > 1]
        made = [
            self._apply(
                Group(tuple(part), ("identical",)), part, selected.choice, selected.setting, chosen.why + names, group
            )
            for part, selected in parts
            if selected.choice is not None
        ]
        return made, chosen.why

    def _apply(
        self,
        group: Group,
        members: list[Member],
        choice: Choice,
        setting: Setting,
        left: str,
        whole: Group | None = None,
    ) -> SharedMatrix:
        """Share ``members``. The other members of ``whole`` stay, each in two forms at most."""
        whole = whole or group
        stored, held = _stored_bytes(members), _held_bytes(members)
        kinds = group.kinds
        if "folded" not in kinds and any(_turned_by_node(member) for member in members):
            kinds = (*kinds, "folded")
        applied = apply(self._file, members, choice, setting)
        survivor = applied.survivor
        assert survivor.const_value is not None and survivor.dtype is not None
        size = survivor.const_value.nbytes
        copies = 2 if any(use.flipped for use in uses_of(survivor)) else 1
        others = len(whole.members) - len(members) + _constants(self._file.model, survivor.const_value)
        return SharedMatrix(
            graph=self._file.name,
            kinds=kinds,
            initializer=str(survivor.name),
            dropped=applied.dropped,
            nodes=applied.nodes,
            dtype=survivor.dtype.name,
            shape=sides(survivor.const_value.shape),
            stored_before=stored,
            stored_after=size,
            held_before=held,
            held_after=copies * size,
            left=left,
            copies_promised=copies + _FORMS * others,
            rounded=applied.rounded,
            form=applied.form,
        )

    def left(self, why: str) -> None:
        """Report every group as unchanged: the pass does not run."""
        self.matrices = tuple(_left(group, why, self._file.name) for group in self._groups())


Interface = dict[str, list[tuple[str, str, str]]]
"""The name, type and shape of each input and output."""


def interface(model: ir.Model) -> Interface:
    """Return inputs and outputs: names in order, types and shapes."""
    return {
        side: [(str(value.name), str(value.type), str(value.shape)) for value in values]
        for side, values in (("inputs", model.graph.inputs), ("outputs", model.graph.outputs))
    }


def _constants(model: ir.Model, matrix: ir.TensorProtocol) -> int:
    """Count Constant nodes that hold a matrix of the same shape.

    The pass does not compare them, but a session may hold them too.
    """
    sides_ = sorted(sides(matrix.shape))
    tensors = (
        ir.convenience.get_const_tensor(node.outputs[0])
        for graph in model.graphs()
        for node in graph
        if is_standard(node, "Constant")
    )
    return sum(tensor is not None and sorted(sides(tensor.shape)) == sides_ for tensor in tensors)


def _homes(members: Sequence[Member], setting: Setting) -> list[tuple[ir.Graph, list[Member]]]:
    """Return the graphs in which copies can be stored once without a change of a session's bits, and those copies.

    A copy that a node reads from more than one subgraph further out is left where it is.
    """
    paths = _paths(setting.home)
    reads = []
    for member in members:
        home = paths[id(member.stored.graph)]
        nodes = [read.use.node for read in reads_of([member])]
        read_in = {home if node is None else paths.get(id(node.graph), home) for node in nodes} or {home}
        reads.append(read_in if all(len(path) - len(home) <= PACKED for path in read_in) else set())
    graphs = {paths[id(graph)]: graph for graph in (setting.home, *setting.home.subgraphs())}
    return [(graphs[path], [members[index] for index in some]) for path, some in near_homes(reads)]


def _paths(graph: ir.Graph, path: Path = ()) -> dict[int, Path]:
    """Return the path of each graph by its id: a number for each level."""
    paths = {id(graph): path}
    inner = (attribute for node in graph for attribute in node.attributes.values() if not attribute.is_ref())
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    values = [attribute.value for attribute in inner if attribute.type in kinds]
    graphs = [graph for value in values for graph in (value if isinstance(value, tuple) else (value,))]
    for number, inside in enumerate(graphs):
        paths |= _paths(inside, (*path, number))
    return paths


def _is_cast_too(stored: Stored) -> bool:
    """Return whether nodes read a matrix both directly and through a Cast."""
    if len(stored.record.shape) != 2:
        return False
    casts = [use.node is not None and is_standard(use.node, "Cast") for use in uses_of(stored.value)]
    return any(casts) and not all(casts)


def _both_ways(members: Sequence[Member]) -> bool:
    """Return whether nodes read the matrix both as stored and transposed. A session then holds both."""
    return len(members[0].stored.record.shape) == 2 and len({read.use.flipped for read in reads_of(members)}) == 2


def _parts(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members by type and orientation. All bytes within a part are the same."""
    parts: dict[object, list[Member]] = {}
    for member in members:
        parts.setdefault((member.flipped, member.stored.record.dtype), []).append(member)
    return list(parts.values())


def _turned_by_node(member: Member) -> bool:
    return any(use.flipped for use in uses_of(member.stored.value))


def _stored_bytes(members: Sequence[Member]) -> int:
    return sum({member.stored.record.range: member.stored.record.nbytes for member in members}.values())


def _held_bytes(members: Sequence[Member]) -> int:
    """Return the bytes in a session: each copy that is read, plus the result of each folded Transpose."""
    total = 0
    for member in members:
        turns = {use.flipped for use in uses_of(member.stored.value)}
        total += len(turns) * member.stored.record.nbytes
    return total


def _left(group: Group, why: str, graph: str = "") -> SharedMatrix:
    first: Stored = group.members[0].stored
    stored, held = _stored_bytes(group.members), _held_bytes(group.members)
    names = [str(member.stored.value.name) for member in group.members]
    return SharedMatrix(
        graph=graph,
        kinds=group.kinds,
        initializer=names[0],
        dropped=(),
        nodes=(),
        dtype=first.value.dtype.name if first.value.dtype else "",
        shape=first.record.shape,
        stored_before=stored,
        stored_after=stored,
        held_before=held,
        held_after=held,
        left=f"{why} ({', '.join(names)})",
    )
