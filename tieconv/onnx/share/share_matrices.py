"""Store each matrix of a graph once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.graph_plan import HeadForm, SharedMatrix
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS, OLDEST_IR, OLDEST_OPSET, PACKED, RUNTIMES, Path, near_homes
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import Gathered
from tieconv.onnx.graph_model import GraphBytes, GraphFile, Stored, opset, shared_matrix, sides
from tieconv.onnx.share.find import (
    Group,
    Member,
    Use,
    describe,
    find_groups,
    integer,
    is_standard,
    remove_unread,
    uses_of,
)
from tieconv.onnx.share.node_patterns import MICROSOFT, Names, Target, becomes_another_node, folded, pattern_of, rounded
from tieconv.onnx.share.quantised import FUSED, is_fused, share_quantised
from tieconv.sources.local import FileSet

_INPUT = "it is an input of the graph, so a caller may replace it"
_CAST = f"a Cast reads it too, and a session of {RUNTIMES} folds the Cast into a second matrix"
_APART = (
    f"copies in other subgraphs stay, because {RUNTIMES} computes other bits with a matrix two subgraphs outside its "
    "node"
)
_FORMS = 2
"""Forms of a copy that a session may hold: as stored, and transposed or cast."""


def share(file: GraphFile, files: FileSet, form: HeadForm | None = None) -> tuple[SharedMatrix, ...]:
    """Leave one copy of each matrix that the graph holds more than once. Return what was done with each matrix.

    Without a ``form``, each head gets the first form that keeps every bit of a session's result. A graph that is too
    old to be rewritten stays as it is.
    """
    model, sharing = file.model, _Sharing(file, files, form)
    why = ""
    if opset(model) < OLDEST_OPSET:
        why = f"opset {opset(model)} is older than {OLDEST_OPSET}"
    elif model.ir_version < OLDEST_IR:
        why = f"IR version {model.ir_version} is older than {OLDEST_IR}"
    if why:
        return tuple(_left(group, why, file) for group in sharing.groups())
    before = interface(model)
    matrices = sharing.rewrite()
    names = {name for graph in model.graphs() for name in graph.initializers}
    assert interface(model) == before and names.issuperset(matrix.initializer for matrix in matrices)
    file.changed = file.changed or any(matrix.done for matrix in matrices)
    return matrices


@record
class _Sharing:
    """A graph file whose matrices are shared, and the form of its heads; ``None`` for the first that fits."""

    _file: GraphFile
    _files: FileSet
    _form: HeadForm | None

    def rewrite(self) -> tuple[SharedMatrix, ...]:
        model = self._file.model
        setting = Setting(self._form or HeadForm.GEMM, opset(model), Names(model), model.graph)
        matrices = share_quantised(self._file, setting.names)
        for group in self.groups():
            matrices += self._share(group, setting)
        # A session folds the Cast and holds these matrices twice. Sharing them would double the file.
        reader = GraphBytes(self._file, self._files)
        reported = {matrix.initializer for matrix in matrices}
        casts = [
            entry for entry in reader.stored(MIN_ELEMENTS) if entry.value.name not in reported and _is_cast_too(entry)
        ]
        return (*matrices, *[_left(Group((Member(entry, False),), ("folded",)), _CAST, self._file) for entry in casts])

    def groups(self) -> list[Group]:
        """Return groups of several copies, then single matrices that nodes also read transposed."""
        reader = GraphBytes(self._file, self._files)
        stored = reader.stored(MIN_ELEMENTS)
        groups = find_groups(reader, stored)
        grouped = {id(member.stored) for group in groups for member in group.members}
        alone = [Group((Member(entry, False),), ("folded",)) for entry in stored if id(entry) not in grouped]
        return [*groups, *(group for group in alone if _both_ways(group.members))]

    def _share(self, group: Group, setting: Setting) -> list[SharedMatrix]:
        if any(is_fused(member.stored.value) for member in group.members):
            return [_left(group, FUSED, self._file)]
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
            return made or ([_left(group, why, self._file)] if why else [])
        return [_left(group, _INPUT, self._file)] if fixed else []

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
        made = []
        for part, selected in parts:
            if selected.choice is not None:
                alike, why = Group(tuple(part), ("identical",)), chosen.why + names
                made.append(self._apply(alike, part, selected.choice, selected.setting, why, group))
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
        if "folded" not in kinds and any(use.flipped for member in members for use in uses_of(member.stored.value)):
            kinds = (*kinds, "folded")
        # Rewrite every use that does not read the copy that stays.
        reads = to_rewrite(reads_of(members), choice, setting.form)
        survivor = _keeper(self._file, members, choice, setting, reads)
        target = target_of(choice, setting, survivor)
        nodes = tuple(describe(node) for read in reads for node in (read.use.node, *folded(read.use, target)))
        loose = rounding(members, reads, target)
        heads = any(becomes_another_node(read.use) for read in reads)
        for read in reads:
            pattern_of(read.use).rewrite(read.use, target)
        for member in members:
            remove_unread(member.stored.value)
        removed = [member.stored for member in members if member.stored.value is not survivor]
        for copy in removed:
            assert not copy.value.uses() and not copy.value.is_graph_output()
            copy.graph.initializers.pop(str(copy.value.name))
        dropped = tuple(str(copy.value.name) for copy in removed)
        if setting.form is HeadForm.FUSED and reads:
            self._file.model.graph.opset_imports.setdefault(MICROSOFT, 1)
        assert survivor.const_value is not None
        size = survivor.const_value.nbytes
        copies = 2 if any(use.flipped for use in uses_of(survivor)) else 1
        others = len(whole.members) - len(members) + _constants(self._file.model, survivor.const_value)
        # A session holds an output of the graph as a separate copy if an Identity or a Transpose returns it.
        returned = sum(use.node is None for use in uses_of(survivor)) - survivor.is_graph_output()
        return shared_matrix(
            self._file,
            survivor,
            kinds,
            stored=(stored, size),
            held=(held, copies * size),
            dropped=dropped,
            nodes=nodes,
            left=left,
            copies_promised=copies + returned + _FORMS * others,
            rounded=loose,
            form=setting.form if heads else None,
        )


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


def _stored_bytes(members: Sequence[Member]) -> int:
    return sum({member.stored.record.range: member.stored.record.nbytes for member in members}.values())


def _held_bytes(members: Sequence[Member]) -> int:
    """Return the bytes in a session: each copy that is read, plus the result of each folded Transpose."""
    total = 0
    for member in members:
        turns = {use.flipped for use in uses_of(member.stored.value)}
        total += len(turns) * member.stored.record.nbytes
    return total


def _left(group: Group, why: str, file: GraphFile) -> SharedMatrix:
    stored, held = _stored_bytes(group.members), _held_bytes(group.members)
    names = [str(member.stored.value.name) for member in group.members]
    first, reason = group.members[0].stored.value, f"{why} ({', '.join(names)})"
    return shared_matrix(file, first, group.kinds, (stored, stored), (held, held), left=reason)


# Choose the form of a head: the first that keeps every bit of what a session computes.


@record
class FormChoice:
    """The copy that stays and the form of the heads.

    ``choice`` is ``None`` if all copies stay; ``why`` gives the reason. ``avoided`` says what an earlier form would
    round differently.
    """

    choice: Choice | None
    setting: Setting
    why: str = ""
    avoided: str = ""


def choose_form(members: Sequence[Member], setting: Setting, form: HeadForm | None) -> FormChoice:
    """Choose ``form`` whatever it rounds, or with ``None`` the first form that changes no bit."""
    why = avoided = ""
    for candidate in HeadForm if form is None else (form,):
        now = replace(setting, form=candidate)
        choice, why = choose(members, now)
        if choice is None:
            continue
        beside = ""
        if form is None:
            reads = to_rewrite(reads_of(members), choice, candidate)
            beside = rounding(members, reads, target_of(choice, now))
        if not beside:
            return FormChoice(choice, now, avoided=avoided)
        avoided = avoided or beside
        why = f"{RUNTIMES} may round differently next to {beside} in every form; --head-form gemm stores it once"
    return FormChoice(None, setting, why)


# Choose which copy of a matrix stays, or say why the others cannot be removed.


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
    # Types that other nodes than a Gather read are first.
    dtypes: list[ir.DataType] = []
    for read in sorted(reads, key=lambda read: read.use.node is not None and is_standard(read.use.node, "Gather")):
        dtype = read.stored.value.dtype
        if dtype is not None and dtype not in dtypes:
            dtypes.append(dtype)
    types = dtypes or [dtype for m in members[:1] if (dtype := m.stored.value.dtype) is not None]
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


# Make every node read the copy that stays, and remove the other copies.

LEFT = "a MatMul with the matrix as its left operand"
"""A use that no form of the head changes."""


def rounding(members: Sequence[Member], reads: Sequence[Read], target: Target) -> str:
    """Return what a session may round differently after ``reads`` are rewritten; empty if every bit stays."""
    beside = next((reason for read in reads if (reason := rounded(read.use, target))), "")
    return beside or (_on_the_left(members) if any(read.use.flipped for read in reads) else "")


def _on_the_left(members: Sequence[Member]) -> str:
    """Return `LEFT` if a MatMul has the matrix as its left operand; else an empty string.

    A session fuses Transposes around such a MatMul by separate rules.
    """
    nodes = (read.use.node for read in reads_of(members) if read.use.index == 0)
    return LEFT if any(node is not None and is_standard(node, "MatMul") for node in nodes) else ""


def _keeper(
    file: GraphFile, members: Sequence[Member], choice: Choice, setting: Setting, reads: Sequence[Read]
) -> ir.Value:
    if choice.keeper is None:
        return turned(file, choice.source, setting.home, setting.names.free(f"{choice.source.value.name}_transposed"))
    stored = choice.keeper
    if stored.graph is not setting.home and any(m.stored.graph is not stored.graph for m in members):
        # Move the initializer to the graph that every node which reads it can see.
        value = stored.value
        stored.graph.initializers.pop(str(value.name))
        counts: Counter[str | None] = Counter()
        for graph in file.model.graphs():
            counts.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
            counts.update(value.name for node in graph for value in node.outputs)
        if counts[value.name] > 0:
            value.name = setting.names.free(str(value.name))
        setting.home.register_initializer(value)
    return stored.value


def turned(file: GraphFile, stored: Stored, graph: ir.Graph, name: str) -> ir.Value:
    """Return a new initializer of ``graph``: the transposed matrix, whose bytes are gathered at the write."""
    rows, columns = stored.record.shape
    return _made(file, stored, graph, name, (columns, rows), (1, columns))


def copied(file: GraphFile, stored: Stored, graph: ir.Graph, name: str) -> ir.Value:
    """Return a new initializer of ``graph`` with the bytes of the stored matrix."""
    rows, columns = stored.record.shape
    return _made(file, stored, graph, name, (rows, columns), (columns, 1))


def _made(
    file: GraphFile, stored: Stored, graph: ir.Graph, name: str, shape: tuple[int, int], stride: tuple[int, int]
) -> ir.Value:
    tensor = stored.value.const_value
    assert tensor is not None
    made: ir.TensorProtocol
    if isinstance(tensor, ir.ExternalTensor):
        content = Gathered(stored.record.range, stored.record.dtype, shape, stride)
        made = file.make(content, tensor, shape, name)
    else:
        array = tensor.numpy()
        made = ir.Tensor(np.ascontiguousarray(array if stride[1] == 1 else array.T), dtype=tensor.dtype, name=name)
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype))
    value.const_value = made
    graph.register_initializer(value)
    return value
