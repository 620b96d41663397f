"""What the structure of an ONNX graph says about its matrices, without a byte of them."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record

OLDEST_OPSET = 11
"""The first opset whose graphs `dedup` rewrites."""
OLDEST_IR = 4
"""The first IR version in which an initializer need not be an input, which a caller may replace."""
MIN_ELEMENTS = 1024
"""Numbers of the smallest matrix that counts as a copy, in every type: 4096 bytes in F32, 2048 in F16."""


@record
class MatrixRead:
    """An initializer as a node reads it; ``turned`` where it is stored as [H, V], so that its columns are tokens."""

    name: str
    turned: bool


@record
class MatrixUse:
    """A read of the initializer ``name`` as input ``index`` of a node, seen through Transpose and Identity.

    ``turned`` where the node reads it transposed, ``columns`` where a Gather looks up its columns. ``operator`` is
    ``output`` where a graph gives it as an output.
    """

    name: str
    operator: str
    index: int
    turned: bool
    columns: bool = False


@record
class Latent:
    """A form of an initializer that a session computes once and keeps: its Transpose, its Cast, or both.

    ``extra`` where another form of it is read too, so that the session holds the matrix more than once.
    """

    name: str
    operators: tuple[str, ...]
    nbytes: int
    extra: bool

    def to_dict(self) -> dict[str, object]:
        """One entry of ``latent``."""
        return {"tensor": self.name, "operators": list(self.operators), "bytes": self.nbytes, "extra": self.extra}


@record
class QuantisedRead:
    """A quantised matrix in the role ``embedding`` or ``head``, and the operator that computes with it.

    ``parts`` are its codes, scales and zero points where they can be compared with those of the other role.
    """

    role: str
    name: str
    operator: str
    parts: tuple[str, ...] = ()
    bits: int = 0
    block: int = 0

    def to_dict(self) -> dict[str, object]:
        """One entry of ``quantised``."""
        return {"role": self.role, "tensor": self.name, "operator": self.operator}


@record
class GraphRecord:
    """One graph: ``names`` are the tensors of it, by their names in the checkpoint.

    ``session_bytes`` is what a session holds of the initializers: every form that a node reads, once. ``embedding``
    is looked up by token ids, ``head`` makes the logits, ``bias`` is added to them; ``quantised`` are those of them
    that are no plain matrices. ``uses`` are the nodes that read initializers of `MIN_ELEMENTS` and more,
    ``overridable`` the initializers that a caller may replace.
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
        """One entry of ``graphs``."""
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
