"""Prove a written graph: read it again, count the copies in a session, and compare the bits of its outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import TensorProto, helper

from tieconv.checkpoint.graph_plan import SessionProof, SessionRuns, SharedMatrix
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.value_type import identity_record
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import StalePlanError, TieconvError, VerificationError
from tieconv.formats.onnx import check_readable
from tieconv.install import install_command
from tieconv.onnx import graph_model
from tieconv.onnx.child import available_memory, refusal
from tieconv.onnx.share.find import by_rows, describe, find_groups
from tieconv.onnx.share.quantised import quantised_pairs
from tieconv.onnx.share.share_matrices import interface
from tieconv.sources.local import open_files
from tieconv.sources.user_files import new_file
from tieconv.text import shown, size

# Count the copies that a session of a written graph holds, from the session's optimized model.

_DUMP = "tieconv-proof.onnx"
_HINT = "nothing was written; report this with the graph's exporter and its version"
NOT_INSTALLED = f"onnxruntime is not installed: {install_command('onnx')}"


def prove(staged: Path, source: Path, name: str, matrices: Sequence[SharedMatrix]) -> SessionProof:
    """Return how many copies of each matrix a session of the graph holds, with all optimizations on.

    Raises `VerificationError` if there are more copies than promised. Raises it also if no session can load the written
    graph but a session can load ``source``. Without onnxruntime, and for a graph that it cannot run, the result is a
    reason instead of counts.
    """
    if not graph_model.has_onnxruntime():
        return SessionProof(name, why_not=NOT_INSTALLED)
    dump = os.path.join(os.path.dirname(name), _DUMP)
    outside = any(matrix.held_after > matrix.stored_after for matrix in matrices)
    try:
        why_not = _dump(staged / name, staged / dump, outside)
        if why_not and not refusal(source):  # the written graph alone is at fault
            raise VerificationError(f"written {shown(name)}: {shown(why_not, 400)}", _HINT, "verify.session")
        if why_not:
            return SessionProof(name, why_not=why_not)
        # The CPU provider computes products of F16 in F32. For that it casts a constant once, whatever the graph says.
        with open_files(staged) as files:
            graph: graph_model.GraphFile = graph_model.read_graph(str(staged), dump, files)
            reader = graph_model.GraphBytes(graph, files)
            stored = [by_rows(entry) for entry in reader.stored(MIN_ELEMENTS)]
            groups = find_groups(reader, stored)
            sets = [{member.stored.record.name for member in group.members} for group in groups]
        ranges_of = {matrix.initializer: _alike(matrix, stored, sets) for matrix in matrices}
        copies = {name: sum(not wider for wider in ranges.values()) for name, ranges in ranges_of.items()}
        casts = [name for name, ranges in ranges_of.items() if any(ranges.values())]
    finally:
        for left in (dump, f"{dump}.data"):
            (staged / left).unlink(missing_ok=True)
    for matrix in matrices:
        if copies[matrix.initializer] == 0:
            return SessionProof(name, why_not=f"the session has no initializer named {matrix.initializer}")
        if copies[matrix.initializer] > matrix.copies_promised:
            raise VerificationError(
                f"{shown(name)}: a session holds {copies[matrix.initializer]} copies of {shown(matrix.initializer)}, "
                f"but the plan promised {matrix.copies_promised}",
                _HINT,
                "verify.session",
            )
    return SessionProof(name, tuple(copies.items()), tuple(casts), runs=_compared(staged / name, source, matrices))


def _compared(written: Path, source: Path, matrices: Sequence[SharedMatrix]) -> SessionRuns | None:
    """Run both graphs. Raises `VerificationError` if a result differs that the plan does not announce."""
    if written == source:
        return None
    runs = compare_runs(source, written)
    if runs.differing and not any(matrix.rounded for matrix in matrices):
        raise VerificationError(
            f"{shown(written.name)}: a session of the written graph gives other bits than the source "
            f"for {shown(runs.differing[0])}",
            _HINT,
            "verify.runs",
        )
    return runs


def _dump(graph: Path, to: Path, outside: bool) -> str:
    """Make a session write its optimized model. Return why it failed; empty if it wrote the model.

    What the session did not change remains a reference to the graph's data, so the file is small. With ``outside`` (a
    matrix is expected twice) all tensors go to a data file. A graph alone is limited to 2 GiB.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    if outside:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{to.name}.data")
    message, folder = _in_folder(graph_model.parse(graph.parent, graph.name), graph)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime raises various exceptions
        reason = str(error).splitlines()[0].replace(f"{graph.parent}/", "")
        return f"onnxruntime {ort.__version__} cannot load the graph: {reason[:300]}"
    return "" if to.exists() else "onnxruntime did not write an optimized model"


def _alike(
    matrix: SharedMatrix, stored: Sequence[graph_model.Stored], groups: Sequence[set[str]]
) -> dict[ByteRange, bool]:
    """Return the ranges of the kept initializer's copies, and whether each has a wider type.

    The result is empty if the initializer is absent.
    """
    own = next((entry.record for entry in stored if entry.value.name == matrix.initializer), None)
    if own is None:
        return {}
    names = next((group for group in groups if own.name in group), {own.name})
    return {entry.record.range: entry.record.nbytes > own.nbytes for entry in stored if entry.record.name in names}


# Run a graph before and after a rewrite in sessions of ONNX Runtime, and compare every bit of the outputs.
#
# One batch of each shape runs with the branches and trips that its inputs lead to. Then both graphs get inputs that
# override conditions. They force each branch of each If.

BATCHES = (("one row", 1, (1, 576, 64, 512)), ("several rows", 2, (3, 576, 64, 512)), ("a longer input", 1, (5, 640)))
EMPTY = ("an empty batch", 0, (2, 576, 64, 512))
"""A shape of inputs: its name, the first axis, and lengths of the rest. The first accepted length is run."""
THREADS = (1, 2)
MOST_RUNS = 512
_SHARE = 0.5
"""The share of the free memory that the graph and a session of it may use."""
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}
_LARGEST = (50, 2, 1)
"""Whole numbers of inputs are below the first of these that the graph accepts."""
_MOST = 1 << 24  # numbers of one input, which take half a second to draw

Feeds = dict[str, Any]


@identity_record
class _Case:
    """Inputs of one run, of the shape ``shape``. ``forced`` names the branch that ``overrides`` force.

    ``accepted`` is false if no session of the source accepts inputs of this shape.
    """

    shape: str
    feeds: Feeds
    accepted: bool
    forced: str = ""
    overrides: Feeds = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.shape}, {self.forced}" if self.forced else self.shape


@dataclass
class _Control:
    """The Ifs of a model with the branches that lead to each, and its operators `Loop` and `Scan`."""

    ifs: list[tuple[str, tuple[tuple[int, bool], ...]]] = field(default_factory=list)
    loops: set[str] = field(default_factory=set)

    def add(self, label: str, path: tuple[tuple[int, bool], ...]) -> int:
        self.ifs.append((label, path))
        return len(self.ifs) - 1


def compare_runs(source: Path, written: Path) -> SessionRuns:
    """Run both graphs with the same inputs. Return how many runs were compared, which differ, and what was not run."""
    before, after = (graph_model.parse(path.parent, path.name) for path in (source, written))
    why = _impossible(before)
    if why:
        return SessionRuns(not_run=(why,))
    left, right = _in_folder(before, source), _in_folder(after, written)
    natural = list(_natural(before, left))
    control = _forced(before)
    runs = _Runs()
    runs.compare(left, right, natural)
    runs.not_run += [f"trips of a {operator} that these inputs do not give" for operator in sorted(control.loops)]
    if control.ifs and _forced(after) == control:
        cases = [case for base in natural for case in _with_overrides(base, control)]
        dropped = len(cases) - MOST_RUNS
        runs.compare(_in_folder(before, source), _in_folder(after, written), cases[:MOST_RUNS])
        if dropped > 0:
            runs.not_run.append(f"{dropped} further combinations of branches")
    elif control.ifs:
        runs.not_run.append("the branches that these inputs do not lead to")
    return runs.result()


_InFolder = tuple[bytes, str]
"""A graph as a message, and the folder of its data. A session maps large initializers of the graph file too."""


def _in_folder(model: onnx.ModelProto, path: Path) -> _InFolder:
    return model.SerializeToString(), str(path.parent)


def _impossible(model: onnx.ModelProto) -> str:
    if any(node.op_type in _RANDOM for node in _nodes(model.graph)):
        return "the graph draws random numbers"
    held = {initializer.name for initializer in model.graph.initializer}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name not in held and kind not in _FLOATS and kind not in _WHOLE:
            return f"tieconv makes no input of the type of {shown(value.name)}"
    needed = 3 * (model.ByteSize() + sum(_outside(tensor) for tensor in graph_model.tensors(model)))
    room = available_memory()
    return "" if needed < _SHARE * room else f"two sessions need {size(needed)} of memory, but {size(room)} is free"


_WHOLE = {TensorProto.INT64: np.int64, TensorProto.INT32: np.int32, TensorProto.BOOL: np.bool_}
_WHOLE |= {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8, TensorProto.INT16: np.int16}


def _outside(tensor: onnx.TensorProto) -> int:
    lengths = [entry.value for entry in tensor.external_data if entry.key == "length"]
    return int(lengths[0]) if lengths else 0


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _natural(model: onnx.ModelProto, graph: _InFolder) -> Iterator[_Case]:
    """Yield one case for each shape of inputs that a session of the graph accepts; else one without inputs."""
    session = _session(graph, THREADS[0])
    for name, first, lengths in (*BATCHES, EMPTY):
        tried = ((length, largest) for length in lengths for largest in _LARGEST)
        made = (_feeds(model.graph, first, length, largest) for length, largest in tried)
        accepted = next((feeds for feeds in made if feeds is not None and _run(session, feeds) is not None), None)
        yield _Case(name, accepted or {}, accepted is not None)


def _feeds(graph: onnx.GraphProto, first: int, length: int, largest: int) -> Feeds | None:
    """Return inputs with ``first`` entries on an open first axis, and ``length`` on the others. ``None``: too large."""
    random = np.random.default_rng(first * 1000 + length)
    held = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in held]
    shapes = [value.type.tensor_type.shape.dim for value in inputs]
    batches = {dims[0].dim_param for dims in shapes if dims and dims[0].dim_param}  # such an axis may be the second too
    feeds: Feeds = {}
    for value, dims in zip(inputs, shapes, strict=True):
        kind = value.type.tensor_type.elem_type
        leads = [dim.dim_param in batches if dim.dim_param else position == 0 for position, dim in enumerate(dims)]
        shape = [_side(dim, first if lead else length, length) for dim, lead in zip(dims, leads, strict=True)]
        if np.prod(shape) > _MOST:
            return None
        numbers = random.standard_normal(shape) if kind in _FLOATS else random.integers(0, largest, shape)
        feeds[value.name] = np.asarray(numbers, _FLOATS.get(kind) or _WHOLE[kind])
    return feeds


def _side(dim: Any, size_: int, length: int) -> int:
    """Return the length of an axis. A sum such as ``past + sequence`` adds its terms, and ``8`` is a number."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    terms = [term.strip() for term in dim.dim_param.split("+")]
    open_side = size_ if len(terms) == 1 else length
    return sum(int(term) if term.isdigit() else open_side for term in terms)


def _with_overrides(case: _Case, control: _Control) -> Iterator[_Case]:
    """Yield the case with each branch of each If forced."""
    free = {f"{_IF}{index}.{part}": np.array(part == "free") for index in range(len(control.ifs)) for part in _PARTS}
    for index, (label, path) in enumerate(control.ifs):
        for branch in (True, False):
            chosen = dict(free)
            for position, taken in (*path, (index, branch)):
                chosen |= {f"{_IF}{position}.free": np.array(False), f"{_IF}{position}.taken": np.array(taken)}
            yield replace(case, forced=f"{'then' if branch else 'else'} branch of {label}", overrides=chosen)


_IF = "tieconv.if."
_PARTS = ("free", "taken")


def _forced(model: onnx.ModelProto) -> _Control:
    """Add inputs that override the condition of every If of the model. Return its Ifs and loops."""
    control = _Control()
    _force(model.graph, (), control)
    for name in (f"{_IF}{index}.{part}" for index in range(len(control.ifs)) for part in _PARTS):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    return control


def _force(graph: onnx.GraphProto, path: tuple[tuple[int, bool], ...], control: _Control) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        inner = {a.name: a.g for a in node.attribute if a.HasField("g")}
        if node.op_type == "If" and not node.domain:
            index = control.add(shown(node.name or (node.output[0] if node.output else "")), path)
            for name, branch in inner.items():
                _force(branch, (*path, (index, name == "then_branch")), control)
            mixed = f"{_IF}{index}.natural"
            nodes.append(helper.make_node("And", [node.input[0], f"{_IF}{index}.free"], [mixed]))
            nodes.append(helper.make_node("Or", [mixed, f"{_IF}{index}.taken"], [f"{mixed}.or"]))
            node.input[0] = f"{mixed}.or"
        else:
            control.loops |= {node.op_type} & {"Loop", "Scan"}
            for body in inner.values():
                _force(body, path, control)
        nodes.append(node)
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copied)


@dataclass
class _Runs:
    """What was compared so far: the shapes that ran by what was forced, and what did not run."""

    equal: int = 0
    ran: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, dict[str, None]] = field(default_factory=dict)
    differing: dict[str, float] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)

    def compare(self, source: _InFolder, written: _InFolder, cases: Sequence[_Case]) -> None:
        """Run all cases in sessions of both graphs, with each number of threads."""
        for threads in THREADS:
            results = [_outputs(_session(graph, threads), cases) for graph in (source, written)]
            for case, left, right in zip(cases, *results, strict=True):
                if left is None:
                    self.failed.setdefault(case.forced, {})[case.shape] = None
                    continue
                self.ran.setdefault(case.forced, set()).add(case.shape)
                if right is None:
                    self.differing[case.name] = np.inf
                elif _same(left, right):
                    self.equal += 1
                else:
                    self.differing[case.name] = max(self.differing.get(case.name, 0), _distance(left, right))

    def result(self) -> SessionRuns:
        shapes = self.ran.pop("", set())
        refused = self.failed.pop("", {})
        cases = [name for name, *_ in (*BATCHES, EMPTY) if name in shapes]
        tried = {*self.ran, *self.failed}
        cases += [f"{len(self.ran)} of {len(tried)} branches"] if tried else []
        missing = {name: [shape for shape in some if shape not in refused] for name, some in self.failed.items()}
        parts = [f"{name} ({', '.join(some)})" if name in self.ran else name for name, some in missing.items() if some]
        differing = tuple(f"{name} (by up to {by:.1e})" for name, by in self.differing.items())
        if refused:
            parts.insert(
                0, f"{', '.join(refused)} (ONNX Runtime does not run the source with random inputs of these shapes)"
            )
        return SessionRuns(self.equal, tuple(cases), differing, (*parts, *self.not_run))


def _outputs(session: Any, cases: Sequence[_Case]) -> list[list[Any] | None]:
    runs = (case.feeds | case.overrides if case.accepted else None for case in cases)
    return [None if feeds is None else _run(session, feeds) for feeds in runs]


def _session(graph: _InFolder, threads: int) -> Any:
    """Return a session of a graph, or ``None`` if it does not open."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    message, folder = graph
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        return ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - the runtime raises various exceptions; no case is run then
        return None


def _run(session: Any, feeds: Mapping[str, Any]) -> list[Any] | None:
    """Return the outputs, or ``None`` if the session refuses the inputs or does not exist."""
    if session is None:
        return None
    try:
        return list(session.run(None, feeds))
    except Exception:  # noqa: BLE001 - the runtime raises various exceptions
        return None


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        return len(left) == len(right) and all(_same(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, np.ndarray) and left.dtype != object:
        return bool(left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes())
    return bool(np.array_equal(left, right))


def _distance(left: Any, right: Any) -> float:
    """Return the largest difference of two lists of outputs, or infinity if the shapes differ."""
    if isinstance(left, list):
        return max((_distance(*pair) for pair in zip(left, right, strict=True)), default=np.inf)
    if left.shape != right.shape or left.dtype.kind not in "fiub":
        return float("inf")
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0))


# Read written graphs again, and compare them with their source.


def check_written(
    staged: Path, name: str, source: graph_model.GraphFile, matrices: Sequence[SharedMatrix] | None
) -> None:
    """Check that the graph ``name`` under ``staged`` is valid and has the inputs and outputs of ``source``.

    With ``matrices`` (those of the pass), also check that no large matrix is stored twice. Matrices that the pass left
    are excepted. Raises `VerificationError`.
    """
    try:
        with open_files(staged) as files:
            check_readable(str(staged), files, name)
            written = graph_model.read_graph(str(staged), name, files)
            reader = graph_model.GraphBytes(written, files)
            groups = find_groups(reader, reader.stored(MIN_ELEMENTS)) if matrices is not None else []
            pairs = list(quantised_pairs(written.model)) if matrices is not None else []
    except TieconvError as error:
        raise VerificationError(f"the written graph cannot be read: {error.message}", _HINT, "verify.graph") from error
    if interface(written.model) != interface(source.model):
        _fail(name, "has other inputs or outputs than its source")
    _check_valid(staged / name, Path(source.root) / source.name)
    left = {matrix.initializer for matrix in matrices or () if matrix.left}
    for group in groups:
        names = [str(member.stored.value.name) for member in group.members]
        if left.isdisjoint(names) and not any(
            any(initializer in m.left for initializer in names) for m in matrices or ()
        ):
            _fail(name, f"still stores {shown(names[0])} and {shown(names[1])}, which are one matrix")
    for table, head in pairs:
        if str(head.codes.name) not in left:
            _fail(name, f"still stores the quantised matrix of {describe(table.node)} and of its head twice")


def check_still_equal(source: graph_model.GraphFile, matrices: Sequence[SharedMatrix]) -> None:
    """Raise `StalePlanError` if the copies of a shared matrix now differ in the source.

    A file's times do not show a write through a memory mapping that was dirty before.
    """
    if not any(matrix.dropped for matrix in matrices):
        return
    with open_files(source.root) as files:
        now = graph_model.read_graph(source.root, source.name, files)
        reader = graph_model.GraphBytes(now, files)
        stored = reader.stored(MIN_ELEMENTS)
        groups = [{str(entry.stored.value.name) for entry in group.members} for group in find_groups(reader, stored)]
        groups += [{str(part.name) for table in pair for part in table.parts} for pair in quantised_pairs(now.model)]
    names = {str(entry.value.name) for entry in stored}
    for matrix in matrices:
        copies = {matrix.initializer, *matrix.dropped} & names
        if len(copies) > 1 and not any(copies <= group for group in groups):
            problem = f"{shown(source.name)}: another program changed {shown(sorted(copies)[0])} after it was compared"
            raise StalePlanError(problem, "end that program, then run the command again", "plan.stale")


def _check_valid(written: Path, source: Path) -> None:
    """Check that onnx's checker accepts the graph, unless it rejects the source too.

    The checker holds a file twice in memory, so it gets one that refers to the graph's large initializers.
    """
    checked = written.with_name(_DUMP)
    try:
        with new_file(checked) as small:
            small.write(graph_model.referring(written.parent, written.name))
        why = _fault(checked)
    finally:
        checked.unlink(missing_ok=True)
    if why and not _fault(source):
        _fail(written.name, f"is not valid: {shown(why, 300)}")


def _fault(path: Path) -> str:
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 - the checker raises various exceptions
        return str(error).replace(str(path), path.name) or type(error).__name__
    return ""


def _fail(name: str, why: str) -> NoReturn:
    raise VerificationError(f"written {shown(name)} {why}", _HINT, "verify.graph")
