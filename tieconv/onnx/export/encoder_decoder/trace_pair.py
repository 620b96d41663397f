"""Trace an encoder-decoder as two graphs: the encoder, and a decoder with the caches of both attentions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from tieconv.onnx.export import adapter
from tieconv.onnx.export.encoder_decoder.merged_decoder import HIDDEN, merge
from tieconv.onnx.export.encoder_decoder.shared_data import write_data
from tieconv.onnx.export.encoder_decoder.traced_modules import (
    CrossAttention,
    Decoder,
    Encoder,
    Layers,
    decoded,
    empty_cache,
    named,
)
from tieconv.onnx.export.sample_inputs import BATCH, PAST, SEQUENCE, SOURCE, sample_batch
from tieconv.onnx.parity.encoder_decoder.pair_files import DECODER, ENCODER
from tieconv.reference import EncoderInput, Reference
from tieconv.reference.encoder_input import encoder_input


def trace_pair(
    reference: Reference, raw: Path, data_of: Callable[[str], str], opset: int | None, fuse: str | None
) -> None:
    """Write the graphs `encoder_model.onnx` and `decoder_model_merged.onnx` to ``raw``.

    ``data_of`` gives the name of a graph's data file. Graphs with the same data file share equal tensors. Raises what
    `adapter.export_graph` raises.
    """
    model = reference.model
    reads = encoder_input(model)
    source, tokens = _sample(reference, reads)
    encoder = Encoder(model)
    with torch.no_grad():
        reference.call(**source, decoder_input_ids=tokens, use_cache=False)  # raises if the config does not fit
        # The encoder of images or sound has a fixed number of positions, but the decoder takes any.
        hidden = encoder(**source)["last_hidden_state"][:, :SOURCE]
        mask = source.get("attention_mask")
        layers = _filled(model, tokens[:, :PAST], hidden, mask)
    masked = {} if mask is None else {"encoder_attention_mask": mask}
    step = {"input_ids": tokens[:, PAST:], **masked, HIDDEN: hidden, "past_key_values": layers}

    def trace(module: torch.nn.Module, inputs: dict[str, Any], *, batch_only: bool = False) -> ir.Model:
        made = adapter.export_graph(module.eval(), inputs, opset, fuse, batch_only=batch_only)
        program: ir.Model = adapter.program_of(made)
        return program

    graphs = {ENCODER: trace(encoder, source, batch_only=reads is not None), DECODER: trace(Decoder(model), step)}
    merge(graphs[DECODER], trace(CrossAttention(model), {HIDDEN: hidden}))
    for name in dict.fromkeys(map(data_of, graphs)):
        write_data((graph for stem, graph in graphs.items() if data_of(stem) == name), raw / name)
    for stem, graph in graphs.items():
        ir.save(graph, raw / f"{stem}.onnx")


def _sample(reference: Reference, reads: EncoderInput | None) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return inputs of the encoder, and tokens of the decoder (batch × past and sequence)."""
    rows = int(reference.model.config.get_text_config(decoder=True).vocab_size)
    tokens = sample_batch(rows, PAST + SEQUENCE)
    if reads is not None:
        values = torch.randn((BATCH, *reads.shape), generator=torch.Generator().manual_seed(0))
        return {reads.name: values.to(reference.model.dtype)}, tokens.ids
    batch = sample_batch(rows, SOURCE)
    return {"input_ids": batch.ids, "attention_mask": batch.mask}, tokens.ids


def _filled(model: Any, ids: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor | None) -> Layers:
    """Return keys and values of both attentions after the tokens ``ids``."""
    cache = decoded(model, ids, hidden, mask, empty_cache()).past_key_values
    own, cross = named(cache, "decoder"), named(cache, "encoder")
    return {index: own[index] | cross[index] for index in own}
