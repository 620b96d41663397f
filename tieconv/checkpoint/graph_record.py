"""What the structure of an ONNX graph says about its matrices, without a byte of them."""

from __future__ import annotations

from tieconv.checkpoint.record import record


@record
class MatrixRead:
    """An initializer as a node reads it; ``turned`` where it is stored as [H, V], so that its columns are tokens."""

    name: str
    turned: bool


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
    """A quantised matrix in the role ``embedding`` or ``head``, and the operator that computes with it."""

    role: str
    name: str
    operator: str

    def to_dict(self) -> dict[str, object]:
        """One entry of ``quantised``."""
        return {"role": self.role, "tensor": self.name, "operator": self.operator}


@record
class GraphRecord:
    """One graph: ``names`` are the tensors of it, by their names in the checkpoint.

    ``session_bytes`` is what a session holds of the initializers: every form that a node reads, once. ``embedding``
    is looked up by token ids, ``head`` makes the logits, ``bias`` is added to them; ``quantised`` are those of them
    that are no plain matrices.
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
            "latent": [found.to_dict() for found in self.latent],
            "quantised": [found.to_dict() for found in self.quantised],
        }
