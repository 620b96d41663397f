"""Rules about ONNX graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint import graph_structure
from tieconv.checkpoint.finding import Action, Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import Cast, Transposed
from tieconv.checkpoint.tie_group import Duplicate, Member, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import BITS, TensorRecord
from tieconv.checks import evidence
from tieconv.checks.evidence import rule
from tieconv.text import shown, size

LARGE = 16 * graph_structure.MIN_ELEMENTS
"""The fewest elements of a copy outside the head that a finding reports, in every type."""

_EQUAL = frozenset({State.IDENTICAL, State.TRANSPOSED, State.ALIASED})


def heads(inspection: Inspection) -> Iterator[tuple[Tie, Member]]:
    """Yield each tied pair of a graph that is stored as two initializers."""
    for tie in inspection.ties if inspection.checkpoint.graphs else ():
        for member in tie.members[1:]:
            yield tie, member


@record
class Answer:
    """The `tieconv dedup` command for copies, or the reason why it keeps them, or some of them."""

    remedy: Remedy | None
    why: str = ""
    rest: str = ""

    @property
    def message_end(self) -> str:
        """The last sentence of the finding's message; empty if `dedup` removes the copies."""
        if self.rest:
            return f" dedup keeps some of them because {self.rest}."
        return f" dedup keeps them because {self.why}." if self.why else ""


def pair(tie: Tie, member: Member) -> dict[str, bool]:
    """Map the embedding and the head to whether each is stored transposed relative to the embedding."""
    relation = member.relation
    turned = isinstance(relation, Transposed) or (isinstance(relation, Cast) and relation.transposed)
    return {tie.canonical: False, member.name: turned}


def group(inspection: Inspection, copies: Duplicate) -> dict[str, bool]:
    """Map the copies of one matrix to whether each is stored transposed relative to the first."""
    first, *rest = copies.tensors
    shape = inspection.checkpoint.tensors[first].shape
    turned = {name: inspection.checkpoint.tensors[name].shape != shape for name in rest}
    square = copies.kind is State.TRANSPOSED and len(set(shape)) == 1
    return {first: False, **{name: turned[name] or square for name in rest}}


def answer_of(inspection: Inspection, copies: Mapping[str, bool]) -> Answer:
    """Return `tieconv dedup` if it stores the copies once and keeps the outputs of the graph, else why not.

    For copies with a NaN, `check --fix` gets no action: one copy would end the finding, but the NaN would stay.
    """
    first = next(iter(copies))
    graph = next(graph for graph in inspection.checkpoint.graphs if first in graph.names)
    outcome = shared(inspection.checkpoint.tensors, graph, copies)
    if outcome.why:
        return Answer(None, outcome.why)
    if outcome.rounds:
        action = Action("dedup", inspection.checkpoint.source, (("head_form", "gemm"),))
        return Answer(Remedy(action.command, False), rest=outcome.rest)
    action = Action("dedup", inspection.checkpoint.source)
    hides = any(member.relation.holds_nan for _, member in heads(inspection))
    return Answer(Remedy(action.command, True, None if hides else action), rest=outcome.rest)


_WORDS = {
    State.IDENTICAL: "byte-identical",
    State.TRANSPOSED: "transposed",
    State.CAST: "lossless cast",
    State.ALIASED: "one region of the file",
}


_SHOWN = 3


@rule("ONX001", "graph-stores-twice", Level.WARNING)
def stored_twice(inspection: Inspection) -> Iterator[Finding]:
    """A graph stores one matrix twice.

    ## What it does
    Reports initializers of one ONNX graph that hold the same matrix. Copies may be byte-identical, transposed, or cast to
    another type without loss. It also reports initializers on one region of an external file: a session reads it for
    each of them. The rule covers heads and embeddings from 1,024 elements, and other matrices from 16,384. If
    the config declares the model untied, the level for the head is note. The default depth compares matrices with the
    embedding's shape; `--depth full` compares all.

    ## Why it matters
    Exporters keep a tie only if both names are one Python object. Otherwise the head becomes a transposed copy, on disk and
    in every session. Optimizers do not merge it, because the bytes differ.

    ## Example
    `Gather(W)` and `MatMul(x, Wᵀ)`, both stored:

        warning ONX001: onnx::MatMul_447 is a transposed copy of
        model.embed_tokens.weight. The copy wastes 12.3 kB on disk and in each
        session.

    ## How to fix
    `tieconv dedup` stores the matrix once and rewrites the nodes that read it. The logits keep every bit; see [ONNX
    graphs](onnx.md). If `dedup` keeps both copies, the finding is a note. Its message says why and has no command.
    """
    # Yield one finding for each tied pair, and one for all other copies of a graph.
    # Pairs with a NaN are reported by ONX004.
    tensors = inspection.checkpoint.tensors
    for tie, member in heads(inspection):
        counts = tensors[tie.canonical].elements >= graph_structure.MIN_ELEMENTS
        lossless = isinstance(member.relation, Cast) and member.relation.lossless
        if (member.state in _EQUAL or lossless) and not member.relation.holds_nan and counts:
            answer = answer_of(inspection, pair(tie, member))
            message = f"{shown(member.name)} is a {_WORDS[member.state]} copy of {shown(tie.canonical)}. "
            message += f"The copy wastes {size(tie.bytes_wasted)} on disk and in each session."
            if member.state is State.ALIASED:
                message = f"{shown(member.name)} and {shown(tie.canonical)} are one region of the file. "
                wasted = size(inspection.checkpoint.tensors[member.name].nbytes)
                message += f"Each session holds it twice, which wastes {wasted}."
            # An untied model with equal matrices may be trained next.
            tied = inspection.config.effective or inspection.checkpoint.config is None
            yield stored_twice.finding(
                f"{message}{answer.message_end}",
                (tie.canonical, member.name),
                level=Level.WARNING if tied and answer.remedy else Level.NOTE,
                remedy=answer.remedy,
            )
    for graph in inspection.checkpoint.graphs:
        inside = (duplicate for duplicate in inspection.duplicates if set(duplicate.tensors) <= set(graph.names))
        copies = [duplicate for duplicate in inside if _counts(duplicate, inspection)]
        # A copy that `dedup` keeps is still a finding afterwards, so each finding has one answer.
        # The copies grouped by what `dedup` does with them.
        parts: dict[Answer, list[Duplicate]] = {}
        for duplicate in copies:
            parts.setdefault(answer_of(inspection, group(inspection, duplicate)), []).append(duplicate)
        for why, some in parts.items():
            yield _others(inspection, some, why)


def _counts(duplicate: Duplicate, inspection: Inspection) -> bool:
    """Return whether the removable copies hold enough elements together. Codes of a head may be fewer."""
    numbers = (len(duplicate.tensors) - 1) * inspection.checkpoint.tensors[duplicate.tensors[0]].elements
    quantised = {table.name for table in inspection.quantised.matrices} if inspection.quantised else set()
    least = LARGE if quantised.isdisjoint(duplicate.tensors) else graph_structure.MIN_ELEMENTS
    return duplicate.kind in _WORDS and numbers >= least


def _others(inspection: Inspection, copies: list[Duplicate], answer: Answer) -> Finding:
    copies = sorted(copies, key=lambda duplicate: -duplicate.bytes_wasted)
    listed = copies[:_SHOWN]
    groups = "; ".join(f"{evidence.listed(duplicate.tensors)} ({_WORDS[duplicate.kind]})" for duplicate in listed)
    more = f"; and {len(copies) - _SHOWN:,} more" if len(copies) > _SHOWN else ""
    tensors = inspection.checkpoint.tensors
    wasted = sum(duplicate.bytes_wasted for duplicate in copies)
    held = sum(min(tensors[n].nbytes for n in each.tensors) * (len(each.tensors) - 1) for each in copies)
    waste = f"{size(wasted)} on disk and " if wasted else ""
    waste += "in each session" if held == wasted else f"{size(held)} in each session"
    return stored_twice.finding(
        f"The graph stores a matrix under several names: {groups}{more}. The copies waste {waste}.{answer.message_end}",
        dict.fromkeys(name for duplicate in copies for name in duplicate.tensors),
        level=Level.WARNING if answer.remedy else Level.NOTE,
        remedy=answer.remedy,
    )


@rule("ONX002", "latent-copy", Level.WARNING)
def latent_copy(inspection: Inspection) -> Iterator[Finding]:
    """A session makes a second copy of a stored matrix.

    ## What it does
    Reports initializers of at least 16,384 elements that a graph reads in two forms. One form is the stored matrix, or the
    output of a Transpose, Cast or Reshape. The other form is the output of another such node.

    ## Why it matters
    When a session starts, the runtime computes all nodes that depend only on initializers (constant folding). So the
    Transpose in front of a tied head becomes a second matrix, on the CPU and on CUDA. The file shares the matrix, but the
    session does not. Optimizers that write the folded graph store both.

    ## Example
    `Gather(W)` and `MatMul(x, Transpose(W))`, as torch and transformers export a tied model:

        warning ONX002: ONNX Runtime 1.31.1 or 1.32.0 folds the Transpose of
        model.embed_tokens.weight. So each session holds a second copy of 131 kB.

    ## How to fix
    `tieconv dedup` lets the head read the stored matrix, with `Gemm(transB=1)`. It does not change a Cast: store the matrix
    in the type that the nodes compute in. In an int4 graph of onnxruntime-genai, it replaces the Reshape by a lookup of the
    same rows.
    """
    # Yield one finding for each folded form beside another form.
    for graph in inspection.checkpoint.graphs:
        for latent in graph.latent:
            if latent.extra and inspection.checkpoint.tensors[latent.name].elements >= LARGE:
                yield _report(inspection, latent)


def _report(inspection: Inspection, latent: graph_structure.Latent) -> Finding:
    codes = {read.name for graph in inspection.checkpoint.graphs for read in graph.quantised if read.parts}
    shareable = latent.operators == ("Transpose",) or (latent.operators == ("Reshape",) and latent.name in codes)
    operators = " and the ".join(dict.fromkeys(latent.operators))
    return latent_copy.finding(
        f"{graph_structure.RUNTIMES} folds the {operators} of {shown(latent.name)}. "
        f"So each session holds a second copy of {size(latent.nbytes)}.",
        (latent.name,),
        remedy=answer_of(inspection, {latent.name: False}).remedy if shareable else None,
    )


_UNEQUAL = frozenset({State.SCALED, State.NEAR, State.DISTINCT})


@rule("ONX003", "graph-tie-broken", Level.ERROR)
def tie_broken(inspection: Inspection) -> Iterator[Finding]:
    """The config ties a graph's head and embedding, and their values differ.

    ## What it does
    Reports an ONNX graph whose head and embedding hold different values, although `config.json` declares the model tied.
    The rule finds both from the nodes, not from their names. It transposes a transposed head before it compares.

    ## Why it matters
    A tied model has one matrix, so one of the two is wrong. Perhaps the exporter read a head that training did not update.
    Or one of them was changed later: quantized and dequantized, or pruned. The graph runs, but its logits are wrong.

    ## Example
    `"tie_word_embeddings": true`, an embedding and another head:

        error ONX003: lm_head.weight differs from model.embed_tokens.weight (in 96
        of 96 rows, by at most 0.972). However, the config says tied.

    ## How to fix
    Export the graph again from the checkpoint, and compare the two: `tieconv parity`. If the head should differ from the
    embedding, correct the config.
    """
    # Yield one finding for each pair.
    # A head that is a multiple of the embedding is a warning: it may include a factor of the logits.
    for tie, member in heads(inspection):
        if member.state not in _UNEQUAL or inspection.checkpoint.config is None or not tie.declared:
            continue
        level = Level.WARNING if member.state is State.SCALED else evidence.certain(inspection, Level.ERROR)
        yield tie_broken.finding(
            f"{evidence.difference(member, tie.canonical)}. However, {evidence.says(inspection, True)}.",
            (tie.canonical, member.name),
            level=level,
        )


@rule("ONX004", "nan-in-graph-head", Level.ERROR)
def nan_in_head(inspection: Inspection) -> Iterator[Finding]:
    """Head and embedding of a graph are equal and hold a NaN.

    ## What it does
    Reports an ONNX graph that stores a tied matrix twice, with at least one NaN in it. The copies are equal bit for bit,
    except for a transpose or a cast.

    ## Why it matters
    Every logit of that token is NaN, so the softmax over all tokens is NaN. A NaN in an embedding is a sign of a broken
    training run or of a cast that overflowed.

    ## Example
    A NaN in the embedding, and in the transposed copy for the head:

        error ONX004: model.embed_tokens.weight and onnx::MatMul_447 are one matrix,
        which holds a NaN. Every logit of that token is NaN.

    ## How to fix
    Find the row in the checkpoint that the graph was exported from. `tieconv dedup` stores the matrix once, NaN included.
    """
    # Yield one finding for each pair of equal copies with a NaN.
    for tie, member in heads(inspection):
        if member.relation.holds_nan:
            answer = answer_of(inspection, pair(tie, member))
            yield nan_in_head.finding(
                f"{shown(tie.canonical)} and {shown(member.name)} are one matrix, which holds a NaN. "
                "Every logit of that token is NaN.",
                (tie.canonical, member.name),
                remedy=None if member.state is State.CAST else answer.remedy,
            )


# The matrices that nodes of a graph share.

_PRODUCTS = ("MatMul", "Gemm", "com.microsoft.FusedMatMul")
_MATRIX = 2
FAR = f"{graph_structure.RUNTIMES} computes other bits with a matrix two subgraphs outside its node"


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

    use: graph_structure.MatrixUse
    turned: bool
    dtype: str


def shared(
    tensors: Mapping[str, TensorRecord], graph: graph_structure.GraphRecord, copies: Mapping[str, bool]
) -> Outcome:
    """Return what `dedup` does with ``copies``, a map from names to whether each is transposed."""
    records = [tensors[name] for name in copies]
    why = _whole_graph(graph) or next((reason for copy in records if (reason := _alone(graph, copy))), "")
    if why:
        return Outcome(why)
    # Whether the copies are the codes of an embedding and a head that are quantised in blocks.
    pair = {read.name: read.operator for read in graph.quantised if read.parts}
    if set(copies) <= set(pair) and "GatherBlockQuantized" in pair.values():
        old = graph.opset < graph_structure.OLDEST_QUANTISED_OPSET
        return Outcome(f"opset {graph.opset} is older than {graph_structure.OLDEST_QUANTISED_OPSET}" if old else "")
    shapes = {record.shape if len(record.shape) != _MATRIX else tuple(sorted(record.shape)) for record in records}
    if len(shapes) > 1:
        return Outcome("they are stored in two shapes")
    uses = {name: [use for use in graph.uses if use.name == name] for name in copies}
    paths = [{use.path for use in read} or {()} if all(use.packed for use in read) else set() for read in uses.values()]
    names = list(copies)
    homes = [{names[index]: copies[names[index]] for index in some} for _, some in graph_structure.near_homes(paths)]
    outcomes = [_in_one_home(tensors, graph, some) for some in homes if len(some) > 1 or len(copies) == 1]
    done = [outcome for outcome in outcomes if not outcome.why]
    if not done:
        return outcomes[0] if outcomes else Outcome(FAR)
    rest = FAR if [len(some) for some in homes] != [len(copies)] else next((o.why for o in outcomes if o.why), "")
    return Outcome(rounds=any(outcome.rounds for outcome in done), rest=rest)


def _in_one_home(
    tensors: Mapping[str, TensorRecord], graph: graph_structure.GraphRecord, copies: Mapping[str, bool]
) -> Outcome:
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


def _whole_graph(graph: graph_structure.GraphRecord) -> str:
    if graph.opset < graph_structure.OLDEST_OPSET:
        return f"opset {graph.opset} is older than {graph_structure.OLDEST_OPSET}"
    if graph.ir_version < graph_structure.OLDEST_IR:
        return f"IR version {graph.ir_version} is older than {graph_structure.OLDEST_IR}"
    return "the graph has sparse tensors" if graph.sparse else ""


def _alone(graph: graph_structure.GraphRecord, record: TensorRecord) -> str:
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
    returned = {read.use.name for read in reads if read.use.operator == "output"}
    for read in reads:
        # Only the copy that stays can be an output, and only as stored.
        if read.use.operator == "output" and (read.use.turned or len(returned) > 1):
            yield f"{shown(read.use.name)} is an output of the graph"
        as_stored = read.turned == turned and read.dtype == dtype
        product = read.use.operator in _PRODUCTS and read.use.index == 1 and read.dtype == dtype
        if as_stored or product or (read.use.operator == "Gather" and read.use.index == 0):
            continue
        yield f"{shown(read.use.operator.rpartition('.')[2])} reads {shown(read.use.name)} in another form"
