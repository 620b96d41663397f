"""The structure of an ONNX graph around its matrices, without their bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from tieconv.checkpoint.value_type import Listed, record

MEASURED_RUNTIMES = ("1.31.1", "1.32.0")
"""The releases of ONNX Runtime on which the tests measured what a session folds, fuses and holds."""
RUNTIMES = f"ONNX Runtime {' or '.join(MEASURED_RUNTIMES)}"
OLDEST_OPSET = 11
"""The first opset whose graphs `dedup` rewrites."""
OLDEST_QUANTISED_OPSET = 18
"""The first opset whose quantised pairs `dedup` rewrites: it has BitwiseAnd, and Reshape keeps an axis of length 0."""
OLDEST_IR = 4
"""The first IR version in which an initializer can be absent from the inputs, which a caller may replace."""
MIN_ELEMENTS = 1024
"""Elements of the smallest matrix that counts as a copy, in every type: 4096 bytes in F32, 2048 in F16."""


Path = tuple[int, ...]
"""A subgraph: a number for each level. The main graph is the empty path."""
PACKED = 1
"""The most levels between a node and its matrix at which ONNX Runtime packs the matrix for the node's kernel.

1.31.1 and 1.32.0 pack a matrix of the node's own graph or of the graph around it. With a matrix further out, a MatMul,
Gemm, LSTM or GRU of one row gives other bits.
"""


def near_homes(reads: Sequence[Collection[Path]]) -> list[tuple[Path, list[int]]]:
    """Return the fewest subgraphs that can hold equal matrices so that each stays packed for the nodes that read it.

    ``reads`` has the subgraphs of the nodes that read each matrix; the result has the matrices of each subgraph. A
    matrix without an entry is left out.
    """
    allowed = [set.intersection(*({path, path[:-PACKED]} for path in paths)) if paths else set() for paths in reads]
    chosen = {path for paths in allowed if len(paths) == 1 for path in paths}
    # Deepest first: a matrix that no chosen subgraph covers moves up, where it may meet others.
    for paths in sorted(allowed, key=lambda paths: -max(map(len, paths), default=0)):
        if paths and not paths & chosen:
            chosen.add(min(paths, key=len))
    held: dict[Path, list[int]] = {}
    for index, paths in enumerate(allowed):
        if paths:
            held.setdefault(min(paths & chosen, key=lambda path: (len(path), path)), []).append(index)
    return [(max(set.intersection(*(allowed[i] for i in some)), key=len), some) for some in held.values()]


@record
class MatrixRead:
    """An initializer as a node reads it; ``turned`` if it is stored as [H, V] (columns are tokens)."""

    name: str
    turned: bool


@record
class MatrixUse:
    """A read of the initializer ``name`` as input ``index`` of a node, through Transpose and Identity.

    ``turned`` if the node reads it transposed, ``columns`` if a Gather looks up its columns. ``operator`` is ``output``
    if the initializer is an output of the graph. ``path`` is the subgraph of the node and ``home`` that of the
    initializer, with an entry for each level.
    """

    name: str
    operator: str
    index: int
    turned: bool
    columns: bool = False
    path: Path = ()
    home: Path = ()

    @property
    def packed(self) -> bool:
        """Whether ONNX Runtime packs the matrix for this node."""
        return len(self.path) - len(self.home) <= PACKED


@record
class Latent(Listed):
    """A form of an initializer that a session computes once and keeps: its Transpose, its Cast, or both.

    ``extra`` if a node also reads another form, so that the session holds the matrix more than once.
    """

    KEYS: ClassVar = {"name": "tensor", "nbytes": "bytes"}

    name: str
    operators: tuple[str, ...]
    nbytes: int
    extra: bool


@record
class QuantisedRead(Listed):
    """A quantised matrix in the role ``embedding`` or ``head``, and the operator that computes with it.

    ``parts`` are its codes, scales and zero points if they can be compared with those of the other role.
    """

    KEYS: ClassVar = {"name": "tensor", "parts": None, "bits": None, "block": None}

    role: str
    name: str
    operator: str
    parts: tuple[str, ...] = ()
    bits: int = 0
    block: int = 0


@record
class GraphRecord(Listed):
    """One graph; ``names`` are the names of its tensors in the checkpoint.

    ``session_bytes`` are the bytes of initializers in a session: every form that a node reads, once. Token ids index
    ``embedding``, ``head`` computes the logits, and the graph adds ``bias`` to them. ``quantised`` are those of the
    three that are quantised. ``uses`` are the nodes that read initializers of `MIN_ELEMENTS` and more. ``overridable``
    are the initializers that a caller may replace.
    """

    KEYS: ClassVar = dict.fromkeys(("sparse", "names", "embedding", "head", "bias", "uses", "overridable"))

    file: str
    ir_version: int
    opset: int
    producer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: int
    sparse: int
    names: tuple[str, ...]
    embedding: MatrixRead | None
    head: MatrixRead | None
    bias: str | None
    session_bytes: int
    latent: tuple[Latent, ...]
    quantised: tuple[QuantisedRead, ...] = ()
    uses: tuple[MatrixUse, ...] = ()
    overridable: tuple[str, ...] = ()
