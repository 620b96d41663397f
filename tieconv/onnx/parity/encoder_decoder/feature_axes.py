"""Give an encoder's features the axes that the model's config fixes, where the graph leaves them open."""

from __future__ import annotations

from dataclasses import replace

from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.errors import UnreadableError
from tieconv.onnx.parity.encoder_decoder.pair_roles import Pair
from tieconv.reference import architecture
from tieconv.reference.model import planned_encoder_input
from tieconv.reference.packages import need
from tieconv.text import shown


def with_fixed_features(pair: Pair, checkpoint: Checkpoint) -> Pair:
    """Return the pair with a fixed shape of each row of its features. optimum leaves all axes open.

    Raises `UnreadableError` if the model's encoder reads something else, and `RefusedError` if its shape is not fixed.
    """
    value = pair.features
    if value is None:
        return pair
    name = architecture(checkpoint.config_values, checkpoint.source)
    cls = getattr(need("transformers", "onnx", "the torch reference"), name, None)
    reads = planned_encoder_input(cls, checkpoint.root)
    if reads is None or reads.name != value.name or len(reads.shape) != len(value.shape) - 1:
        raise UnreadableError(
            f"{shown(pair.encoder.path)} reads {shown(value.name)} {list(value.shape)}, but {shown(name)} does not",
            "give the model that was exported",
            "onnx.inputs",
        )
    sides = (side if isinstance(side, int) else fixed for side, fixed in zip(value.shape[1:], reads.shape, strict=True))
    return replace(pair, features=replace(value, shape=(value.shape[0], *sides)))
