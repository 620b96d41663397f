"""Name the constant that makes a graph fail: the graph agrees with a number of the model in its place."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from tieconv.checkpoint.results.parity import Case
from tieconv.checkpoint.value_type import identity_record
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.ort_session import open_session
from tieconv.onnx.parity.batches import Cell
from tieconv.onnx.parity.bindings import Bindings, Kind, Role
from tieconv.onnx.parity.graph_file import DTYPES
from tieconv.onnx.parity.graph_forward import GraphModel
from tieconv.onnx.parity.judge import CELL_LIMIT, Errors, Judged, judge, ratios
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.passes import LogitStore, ModelNumbers, Work, run_graph
from tieconv.text import count, shown

TRIALS = 16
"""Most constants that are tried. Each trial is a session that runs two cases at most."""
_TRIAL = "trial"
_PASSES = "the worst case passes"


def wrong_constant(
    subject: Subject, work: Work, store: LogitStore, judged: Judged, numbers: ModelNumbers
) -> Iterator[str]:
    """Yield one sentence: the constant with which the worst case passes, or that none does.

    Yields nothing if no case was measured, or if the model has two graphs: their constants are not tried.
    """
    if subject.pair is not None or subject.graph.embedding is not None:
        return
    cells = _cells(work, judged)
    if not cells:
        return
    rounding = 4 * float(torch.finfo(getattr(torch, subject.precision)).eps)
    scale = _scale(store, judged, cells[-1])
    with open(subject.graph.path, "rb") as file:
        unchanged = file.read()
    if _passes(subject, work, store, judged, unchanged, cells):
        yield "the same graph passes in a second session: the first session or its device computed wrong"
        return
    chosen = candidates(graph_constants(subject.graph.model), numbers, rounding, scale)
    for candidate in chosen[:TRIALS]:
        changed = replaced(subject.graph.path, candidate.constant, candidate.values)
        if _passes(subject, work, store, judged, changed, cells):
            yield _sentence(candidate)
            return
    also = "" if scale is None else f"every logit is {1 / scale:.6g} times the reference's; "
    tried = "" if not chosen else f": tieconv tried {count(min(len(chosen), TRIALS), 'replacement')}"
    yield f"{also}no single constant explains the error{tried}"


def _cells(work: Work, judged: Judged) -> list[Cell]:
    """Return the first cell that failed and the worst one. If all cells passed, return the worst one."""
    quotients = {
        cell: case.ratio for cell, case in zip(work.cells, judged.cases, strict=True) if case.ratio is not None
    }
    failed = [cell for cell, ratio in quotients.items() if ratio > CELL_LIMIT]
    if not quotients:
        return []
    worst = max(quotients, key=lambda cell: quotients[cell])
    return list(dict.fromkeys([*failed[:1], worst]))


def _passes(
    subject: Subject, work: Work, store: LogitStore, judged: Judged, data: bytes, cells: Sequence[Cell]
) -> bool:
    """Return whether the graph with these bytes agrees in these cells."""
    folder = os.path.dirname(os.path.abspath(subject.graph.path))
    try:
        session = open_session(data, subject.provider, precision=subject.precision, folder=folder)
    except (NotRunError, UnreadableError):
        return False
    model = GraphModel(session, subject.bindings, subject.window)
    errors = run_graph(model, work, store, _TRIAL, cells)
    trial = judge(work, store, errors, subject.precision, _TRIAL, cells)
    return not errors and all(
        _ratio(trial, cell) <= min(CELL_LIMIT, _ratio(judged, cell) / 2) for cell in cells if cell in trial.graph
    )


def _ratio(judged: Judged, cell: Cell) -> float:
    return ratios(judged.graph[cell], judged.floor[cell], judged.precision)[0]


def _scale(store: LogitStore, judged: Judged, cell: Cell) -> float | None:
    """Return the factor with which the graph's logits would pass as the reference's, if there is one."""
    reference, graph = store.get(("reference", cell)), store.get(("graph", cell))
    if reference is None or graph is None or not graph.isfinite().all() or not reference.isfinite().all():
        return None
    ours, wanted = graph.double(), reference.double()
    square = float(ours.square().sum())
    factor = float((ours * wanted).sum()) / square if square else 0.0
    scaled = Errors()
    scaled.add(wanted, ours * factor)
    limit = min(CELL_LIMIT, _ratio(judged, cell) / 2)
    passes = factor > 0 and ratios(scaled, judged.floor[cell], judged.precision)[0] <= limit
    return factor if passes else None


def _sentence(candidate: Candidate) -> str:
    constant = candidate.constant
    effect = f"with it, {_PASSES}"
    if constant.epsilon:
        number = float(candidate.values)
        return f"a norm of the graph has epsilon {constant.number:g}, but the model's class has {number:g}; {effect}"
    if constant.values.ndim:
        return (
            f"the constant {shown(constant.name)} differs from {shown(candidate.source)}; with those values, {_PASSES}"
        )
    shown_number = f"{float(candidate.values):.6g}"
    expected = f"{candidate.source} is {shown_number}" if candidate.source else f"the model has {shown_number}"
    times = f" (used {len(constant.uses)} times)" if len(constant.uses) > 1 else ""
    return f"the constant {shown(constant.name)}{times} is {constant.number:.6g}, but {expected}; {effect}"


# Choose which numbers of the model to try in place of constants of the graph, the likeliest first.

_FAR = math.log(100)
"""Largest quotient of a constant and the factor that is tried in its place, as a logarithm."""
_CLOSE = 2e-2
"""The same, as a relative difference, for a factor that the graph has elsewhere."""
_USUAL = frozenset({0.5, 1.0, 2.0, 3.0})
"""Numbers that formulas have. They are tried last, and only with factors up to twice as large or as small."""
_SCALED = {"Mul": 1.0, "Div": -1.0}
"""Operators that scale logits, with the power of the constant."""


@identity_record
class Candidate:
    """A constant, the values to try, and a phrase that says what these values are."""

    constant: Constant
    values: Floats
    source: str
    distance: float


def candidates(
    constants: Sequence[Constant], numbers: ModelNumbers, rounding: float, scale: float | None
) -> list[Candidate]:
    """Return all candidates, the likeliest first.

    ``rounding`` is the relative difference of equal numbers. ``scale`` is the factor that the logits lack, if one
    factor explains them.
    """
    single = [constant for constant in constants if not constant.values.ndim]
    epsilons = [constant for constant in single if constant.epsilon]
    scales = [constant for constant in single if not constant.epsilon]
    made = [
        *_vectors(constants, numbers, rounding),
        *_epsilons(epsilons, numbers.epsilons, rounding),
        *_factors(scales, numbers.factors, rounding),
        *(() if scale is None else _of_logits(scales, scale)),
    ]
    return sorted(made, key=lambda candidate: candidate.distance)


def _equal(first: float, second: float, rounding: float) -> bool:
    return math.isclose(first, second, rel_tol=rounding)


def _vectors(constants: Iterable[Constant], numbers: ModelNumbers, rounding: float) -> Iterator[Candidate]:
    """Yield buffers that the graph lacks, in place of each vector of their length."""
    vectors = [constant for constant in constants if constant.values.ndim]
    for name, values in numbers.vectors.items():
        alike = [constant for constant in vectors if constant.values.shape == values.shape]
        if not any(np.allclose(constant.values, values, rtol=rounding, atol=0) for constant in alike):
            for constant in alike:
                change = np.abs(constant.values - values).max() / np.abs(values).max()
                yield Candidate(constant, values, f"the model's {name}", float(change))


def _epsilons(constants: Iterable[Constant], own: frozenset[float], rounding: float) -> Iterator[Candidate]:
    """Yield the model's epsilons. An epsilon that one norm of the model has may be wrong in another."""
    for constant in constants:
        right = any(_equal(constant.number, epsilon, rounding) for epsilon in own)
        for epsilon in own:
            if not _equal(constant.number, epsilon, rounding):
                yield Candidate(constant, np.array(epsilon), "", 0.5 if right else 0.0)


def _factors(constants: Sequence[Constant], known: Iterable[float], rounding: float) -> Iterator[Candidate]:
    """Yield factors of the model in place of constants that equal none. Far ones only if the graph lacks them."""
    factors = list(known)
    present = [f for f in factors if any(_equal(constant.number, f, rounding) for constant in constants)]
    for constant in constants:
        if constant.number < 0 or any(_equal(constant.number, factor, rounding) for factor in factors):
            continue
        far, later = (math.log(2), _FAR) if constant.number in _USUAL else (_FAR, 0.0)
        for factor in factors:
            quotient = abs(math.log(constant.number / factor))
            if quotient <= (_CLOSE if factor in present else far):
                yield Candidate(constant, np.array(factor), "", later + quotient)


def _of_logits(constants: Iterable[Constant], scale: float) -> Iterator[Candidate]:
    """Yield the value with which the logits would be the reference's, for each constant that multiplies or divides."""
    for constant in constants:
        if constant.operator in _SCALED:
            value = constant.number * scale ** _SCALED[constant.operator]
            yield Candidate(constant, np.array(value), "the value that the logits suggest", abs(math.log(scale)))


# List the float constants of a graph by where nodes use them, and write the graph with another value there.

EPSILON = "epsilon"
_CONSTANT_PASSES = frozenset({"Cast", "CastLike", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand"})
"""Operators behind which a constant has the same meaning."""
_ROOTS = frozenset({"Sqrt", "Pow"})
_DEFAULT = frozenset({"LayerNormalization", "RMSNormalization"})
"""Operators whose epsilon is 1e-5 if they have no such attribute."""
LONGEST_VECTOR = 4096
Floats = npt.NDArray[np.float64]
Use = tuple[int, int | str]
"""A node by its number in the graph, and the number of its input or the name of its attribute."""
Placed = tuple[str, Floats, int | str, bool]
"""Name, values, the number of the input or the name of the attribute, and whether it is an epsilon."""


@identity_record
class Constant:
    """Equal constants with one meaning. ``name`` is the first one's, ``uses`` are the places that read them.

    ``values`` has no axes for a number. ``epsilon`` is true for numbers that are added before a root. ``operator`` has
    the types of the nodes.
    """

    name: str
    values: Floats
    operator: str
    epsilon: bool
    uses: tuple[Use, ...]

    @property
    def number(self) -> float:
        """The value of a constant with one element."""
        return float(self.values.reshape(-1)[0])


def graph_constants(model: ir.Model) -> list[Constant]:
    """Return the finite constants other than zero: numbers, and vectors of up to 4096 elements.

    A soft cap is read by operators of two types. Such a number is listed for all types and for each.
    """
    groups: dict[tuple[tuple[int, ...], bytes, bool], list[tuple[str, Floats, str, Use]]] = defaultdict(list)
    for index, node in enumerate(_nodes(model)):
        for name, values, key, epsilon in (*_inputs(node), *_attributes(node)):
            if np.isfinite(values).all() and values.any():
                groups[values.shape, values.tobytes(), epsilon].append((name, values, node.op_type, (index, key)))
    constants: list[Constant] = []
    for (_, _, epsilon), uses in groups.items():
        operators = tuple(dict.fromkeys(operator for _, _, operator, _ in uses))
        for chosen in dict.fromkeys([operators, *((operator,) for operator in operators)]):
            part = [use for use in uses if use[2] in chosen]
            name, values, *_ = part[0]
            readers = tuple(use[3] for use in part)
            constants.append(Constant(name, values, "/".join(chosen), epsilon, readers))
    return constants


def replaced(path: str, constant: Constant, values: Floats) -> bytes:
    """Return the bytes of the graph at ``path`` with other ``values`` of the constant. Its data files stay in use."""
    model = ir.load(path)
    nodes = list(_nodes(model))
    for number, (index, key) in enumerate(constant.uses):
        node = nodes[index]
        if isinstance(key, str):
            node.attributes[key] = ir.AttrFloat32(key, float(values.reshape(-1)[0]))
            continue
        tensor = _tensor(node.inputs[key])
        assert tensor is not None and node.graph is not None
        array = tensor.numpy()
        made = ir.node("Constant", [], {"value": ir.tensor(values.reshape(array.shape).astype(array.dtype))})
        made.outputs[0].name = f"tieconv.constant.{number}"
        node.graph.insert_before(node, made)
        node.replace_input_with(key, made.outputs[0])
    data: bytes = ir.to_proto(model).SerializeToString()
    return data


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _inputs(node: ir.Node) -> Iterator[Placed]:
    for key, value in enumerate(node.inputs):
        tensor = _tensor(value)
        if value is None or tensor is None:
            continue
        array = np.asarray(tensor.numpy(), np.float64)
        numbers = array.reshape(()) if array.size == 1 else array.reshape(-1)
        yield str(value.name), numbers, key, array.size == 1 and _before_root(node)


def _attributes(node: ir.Node) -> Iterator[Placed]:
    if node.op_type == "Constant":
        return
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.FLOAT and attribute.value is not None:
            yield str(node.name), np.array(float(attribute.value)), name, name == EPSILON
    if node.op_type in _DEFAULT and EPSILON not in node.attributes:
        yield str(node.name), np.array(1e-5), EPSILON, True


def _tensor(value: Any) -> Any:
    """Return the float tensor of a constant with at most one long axis, or ``None``."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype.name not in DTYPES or tensor.dtype.name == "BFLOAT16":
        return None
    sides = [side for side in tensor.shape.numpy() if side != 1]
    return tensor if len(sides) < 2 and all(1 < side <= LONGEST_VECTOR for side in sides) else None


def _before_root(node: ir.Node) -> bool:
    """Return whether the constant is added and the sum's root is next."""
    while node.op_type in _CONSTANT_PASSES:
        users = [user for user, _ in node.outputs[0].uses()]
        if len(users) != 1:
            return False
        (node,) = users
    return node.op_type == "Add" and any(user.op_type in _ROOTS for user, _ in node.outputs[0].uses())


def uncounted(cases: Iterable[Case], bindings: Bindings) -> Iterator[str]:
    """Yield a sentence if only padded rows are wrong and the graph has no position ids."""
    if Role.POSITIONS in bindings.inputs or bindings.kind not in (Kind.CACHED, Kind.PLAIN):
        return
    wrong = {bool(case.padding) for case in cases if case.ratio is None or case.ratio > CELL_LIMIT}
    if wrong == {True}:
        yield "only rows with left padding are wrong: the graph has no position_ids and counts the padding too"
