"""Whether stored tensors of one tied group have one shape."""

from __future__ import annotations

from tieconv.checkpoint.files.weight_file import TensorRecord


def fits(tensor: TensorRecord, reference: TensorRecord) -> bool:
    """Return whether two stored tensors can be one parameter: their shapes are equal as they are stored.

    A vector of shape `[n]` does not fit `[n, 1]`. A transposed matrix fits only where it is square: no shape shows
    there that it is transposed, and `State.TRANSPOSED` does. A tensor without elements, such as the placeholder of a
    sharded save, fits no tensor with elements. Two tensors without elements fit where their shapes are equal.
    """
    return tensor.shape == reference.shape
