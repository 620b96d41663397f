"""Whether `tieconv dedup` can store copies once. The nodes that read them decide, as in the share pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.graph_plan import RUNTIMES
from tieconv.checkpoint.graph_structure import (
    OLDEST_IR,
    OLDEST_OPSET,
    OLDEST_QUANTISED_OPSET,
    GraphRecord,
    MatrixUse,
    near_homes,
)
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import BITS, TensorRecord
from tieconv.text import shown

_PRODUCTS = ("MatMul", "Gemm", "com.microsoft.FusedMatMul")
_MATRIX = 2
FAR = f"{RUNTIMES} computes other bits with a matrix two subgraphs outside its node"


@record
class Outcome:
    """``why`` `dedup` keeps the copies (empty if it does not), and whether a session may then round differently.

    ``rest`` says why it keeps some of the copies.
    """

    why: str = ""
    rounds: bool = False
    rest: str = ""


@record
class _Read:
    """A node's read of one copy: ``turned`` relative to the first copy, in the type ``dtype``."""

    use: MatrixUse
    turned: bool
    dtype: str


def shared(tensors: Mapping[str, TensorRecord], graph: GraphRecord, copies: Mapping[str, bool]) -> Outcome:
    """Return what `dedup` does with ``copies``, a map from names to whether each is transposed."""
    records = [tensors[name] for name in copies]
    why = _whole_graph(graph) or next((reason for copy in records if (reason := _alone(graph, copy))), "")
    if why:
        return Outcome(why)
    if _is_quantised_pair(graph, copies):
        old = graph.opset < OLDEST_QUANTISED_OPSET
        return Outcome(f"opset {graph.opset} is older than {OLDEST_QUANTISED_OPSET}" if old else "")
    shapes = {record.shape if len(record.shape) != _MATRIX else tuple(sorted(record.shape)) for record in records}
    if len(shapes) > 1:
        return Outcome("they are stored in two shapes")
    uses = {name: [use for use in graph.uses if use.name == name] for name in copies}
    paths = [{use.path for use in read} or {()} if all(use.packed for use in read) else set() for read in uses.values()]
    names = list(copies)
    homes = [{names[index]: copies[names[index]] for index in some} for _, some in near_homes(paths)]
    outcomes = [_in_one_home(tensors, graph, some) for some in homes if len(some) > 1 or len(copies) == 1]
    done = [outcome for outcome in outcomes if not outcome.why]
    if not done:
        return outcomes[0] if outcomes else Outcome(FAR)
    rest = FAR if [len(some) for some in homes] != [len(copies)] else next((o.why for o in outcomes if o.why), "")
    return Outcome(rounds=any(outcome.rounds for outcome in done), rest=rest)


def _in_one_home(tensors: Mapping[str, TensorRecord], graph: GraphRecord, copies: Mapping[str, bool]) -> Outcome:
    """Return what `dedup` does with copies that one subgraph can hold."""
    records = [tensors[name] for name in copies]
    types = list(dict.fromkeys(record.dtype for record in records))
    reads = [
        _Read(use, use.turned != copies[use.name], tensors[use.name].dtype) for use in graph.uses if use.name in copies
    ]
    casts = [read for read in reads if read.use.operator == "Cast"]
    if len(types) > 1 and (casts or len(records[0].shape) != _MATRIX):
        return Outcome("a Cast reads one of them" if casts else "only matrices are shared in another type")
    forms = [(turned, dtype) for turned in _orientations(reads) for dtype in types]
    refusals = [next(_refusals(reads, copies, form), "") for form in forms]
    chosen = next((form for form, refusal in zip(forms, refusals, strict=True) if not refusal), None)
    if chosen is None:
        return Outcome(refusals[0])
    left = any(read.use.operator == "MatMul" and read.use.index == 0 for read in reads)
    return Outcome(rounds=left and any(read.turned != chosen[0] for read in reads))


def _is_quantised_pair(graph: GraphRecord, copies: Mapping[str, bool]) -> bool:
    """Return whether the copies are the codes of an embedding and a head that are quantised in blocks."""
    pair = {read.name: read.operator for read in graph.quantised if read.parts}
    return set(copies) <= set(pair) and "GatherBlockQuantized" in pair.values()


def _whole_graph(graph: GraphRecord) -> str:
    if graph.opset < OLDEST_OPSET:
        return f"opset {graph.opset} is older than {OLDEST_OPSET}"
    if graph.ir_version < OLDEST_IR:
        return f"IR version {graph.ir_version} is older than {OLDEST_IR}"
    return "the graph has sparse tensors" if graph.sparse else ""


def _alone(graph: GraphRecord, record: TensorRecord) -> str:
    """Return why one copy cannot be shared; empty if it can."""
    if record.name in graph.overridable:
        return f"{shown(record.name)} is an input of the graph, so a caller may replace it"
    return f"{shown(record.name)} is stored as {record.dtype}" if BITS.get(record.dtype, 8) % 8 else ""


def _orientations(reads: list[_Read]) -> tuple[bool, bool]:
    """Return both orientations; the first is the one in which a Gather looks up rows."""
    rows = next((read.turned for read in reads if read.use.operator == "Gather" and not read.use.columns), False)
    return rows, not rows


def _refusals(reads: list[_Read], copies: Mapping[str, bool], form: tuple[bool, str]) -> Iterator[str]:
    """Yield why nodes cannot read the matrix in this form."""
    turned, dtype = form
    for read in reads:
        as_stored = read.turned == turned and read.dtype == dtype
        product = read.use.operator in _PRODUCTS and read.use.index == 1 and read.dtype == dtype
        if as_stored or product or (read.use.operator == "Gather" and read.use.index == 0):
            continue
        yield f"{shown(read.use.operator.rpartition('.')[2])} reads {shown(read.use.name)} in another form"
