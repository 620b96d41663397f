"""The structure of an ONNX graph around its matrices, without their bytes."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record

OLDEST_OPSET = 11
"""The first opset whose graphs `dedup` rewrites."""
OLDEST_QUANTISED_OPSET = 18
"""The first opset whose quantised pairs `dedup` rewrites: it has BitwiseAnd, and Reshape keeps an axis of length 0."""
OLDEST_IR = 4
"""The first IR version in which an initializer can be absent from the inputs, which a caller may replace."""
MIN_ELEMENTS = 1024
"""Elements of the smallest matrix that counts as a copy, in every type: 4096 bytes in F32, 2048 in F16."""


@record
class MatrixRead:
    """An initializer as a node reads it; ``turned`` if it is stored as [H, V] (columns are tokens)."""

    name: str
    turned: bool


@record
class MatrixUse:
    """A read of the initializer ``name`` as input ``index`` of a node, through Transpose and Identity.

    ``turned`` if the node reads it transposed, ``columns`` if a Gather looks up its columns. ``operator`` is ``output``
    if the initializer is an output of the graph.
    """

    name: str
    operator: str
    index: int
    turned: bool
    columns: bool = False


@record
class Latent:
    """A form of an initializer that a session computes once and keeps: its Transpose, its Cast, or both.

    ``extra`` if a node also reads another form, so that the session holds the matrix more than once.
    """

    name: str
    operators: tuple[str, ...]
    nbytes: int
    extra: bool

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``latent``."""
        return {"tensor": self.name, "operators": list(self.operators), "bytes": self.nbytes, "extra": self.extra}


@record
class QuantisedRead:
    """A quantised matrix in the role ``embedding`` or ``head``, and the operator that computes with it.

    ``parts`` are its codes, scales and zero points if they can be compared with those of the other role.
    """

    role: str
    name: str
    operator: str
    parts: tuple[str, ...] = ()
    bits: int = 0
    block: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``quantised``."""
        return {"role": self.role, "tensor": self.name, "operator": self.operator}


@record
class GraphRecord:
    """One graph; ``names`` are the names of its tensors in the checkpoint.

    ``session_bytes`` are the bytes of initializers in a session: every form that a node reads, once. Token ids index
    ``embedding``, ``head`` computes the logits, and the graph adds ``bias`` to them. ``quantised`` are those of the
    three that are quantised. ``uses`` are the nodes that read initializers of `MIN_ELEMENTS` and more. ``overridable``
    are the initializers that a caller may replace.
    """

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
    latent: tuple[Latent, ...]
    session_bytes: int
    quantised: tuple[QuantisedRead, ...] = ()
    uses: tuple[MatrixUse, ...] = ()
    overridable: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``graphs``."""
        return {
            "file": self.file,
            "ir_version": self.ir_version,
            "opset": self.opset,
            "producer": self.producer,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "nodes": self.nodes,
            "session_bytes": self.session_bytes,
            "latent": [entry.to_dict() for entry in self.latent],
            "quantised": [entry.to_dict() for entry in self.quantised],
        }
