"""List the inputs of an encoder-decoder's graphs for the plan, and check that its encoder can be fed."""

from __future__ import annotations

from tieconv.onnx.export.sample_inputs import reads_features
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.reference.encoder_input import planned_encoder_input
from tieconv.reference.packages import need

_STATES = "decoder: encoder_hidden_states [batch, encoder sequence, width]"
_DECODER = "decoder: input_ids [batch, sequence]"
_MORE = (
    "decoder: past_key_values [batch, heads, past, width] of each layer, for decoder and encoder",
    "decoder: use_cache_branch [1], false for the first tokens",
)


def pair_inputs(name: str, directory: str) -> tuple[str, ...]:
    """Return the inputs of the class ``name``, whose config is in ``directory``.

    Raises `RefusedError` if the encoder reads images or sound in a shape that the config does not fix.
    """
    cls = getattr(need("transformers", "onnx,torch", "exporting"), name, None)
    reads = planned_encoder_input(cls, directory) if reads_features(cls, Kind.PAIR) else None
    if reads is None:
        encoder = "encoder: input_ids and attention_mask [batch, encoder sequence]"
        return encoder, _DECODER, f"{_STATES}, encoder_attention_mask", *_MORE
    axes = ", ".join(map(str, ("batch", *reads.shape)))
    return f"encoder: {reads.name} [{axes}]", _DECODER, _STATES, *_MORE
