"""The input embedding, the output embedding and the bias of a model, by their names in the file."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum

from tieconv.checkpoint.json_values import plain
from tieconv.checkpoint.value_type import record


class BiasState(StrEnum):
    """The content of a head bias."""

    ABSENT = "absent"
    ZERO = "zero"
    NONZERO = "nonzero"
    UNREAD = "unread"


@record
class TensorView:
    """A tensor that is part of the input or output embedding."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@record
class OutputHead:
    """The output embedding: stored, absent because it is tied (``tied_to``), or missing."""

    name: str
    stored: bool
    tied_to: str | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@record
class OutputBias:
    """The head's bias: the name that a loader reads, or would read."""

    name: str
    state: BiasState
    max_abs: float | None = None


@record
class Head:
    """Input embedding, output embedding and bias, by their names in the file."""

    input_embedding: TensorView | None
    output_head: OutputHead | None
    output_bias: OutputBias | None
    embedding_pieces: tuple[TensorView, ...] = ()  # the stored tensors whose rows together are the input embedding

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``head``."""
        embedding, output, bias = self.input_embedding, self.output_head, self.output_bias
        return {
            "input_embedding": embedding
            and {"name": embedding.name, "shape": list(embedding.shape), "dtype": embedding.dtype},
            "embedding_pieces": [
                {"name": piece.name, "shape": list(piece.shape), "dtype": piece.dtype}
                for piece in self.embedding_pieces
            ],
            "output_head": output and {key: plain(value) for key, value in asdict(output).items()},
            "output_bias": bias and {"name": bias.name, "state": str(bias.state), "max_abs": bias.max_abs},
        }
