"""Run an encoder-decoder of torch step by step, with the caches of both attentions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def encoder_decoder_steps(
    call: Callable[..., Any], inputs: Mapping[str, Any], pieces: tuple[int, ...]
) -> Iterator[Any]:
    """Yield the logits of consecutive ``pieces`` of the decoder's tokens. The encoder runs once.

    ``call`` is the model's forward pass, and ``inputs`` its keyword arguments for the whole sequence.
    """
    from transformers import DynamicCache, EncoderDecoderCache

    tokens = inputs["decoder_input_ids"]
    cache, start = EncoderDecoderCache(DynamicCache(), DynamicCache()), 0
    arguments = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    for length in pieces:
        end = start + length
        piece = tokens[:, start:end]
        made = call(**arguments, decoder_input_ids=piece, past_key_values=cache, use_cache=True)
        arguments.pop("input_ids", None)
        arguments["encoder_outputs"] = encoder_outputs(made.encoder_last_hidden_state)
        yield made.logits
        start = end


def encoder_outputs(states: Any) -> Any:
    """Return the encoder's last hidden states as the argument `encoder_outputs` of a forward pass."""
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=states)
