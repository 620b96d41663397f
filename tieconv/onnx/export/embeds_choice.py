"""Decide whether a model is exported as an embedding and a decoder of `inputs_embeds`."""

from __future__ import annotations

from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.errors import RefusedError
from tieconv.onnx.export.embeds.text_part import LeftOut, left_out_parts, reads_embeddings, refused
from tieconv.onnx.export.sample_inputs import check_inputs, encoder_decoder_kind, modality_input, reads_features
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.quantise.scheme import Scheme
from tieconv.reference.packages import need
from tieconv.text import shown

AXES = (
    "embed_tokens.onnx: input_ids [batch, sequence]",
    "model.onnx: inputs_embeds [batch, sequence, width]",
    "attention_mask [batch, past + sequence]",
    "position_ids [batch, sequence], with M-RoPE [3, batch, sequence]",
    "past_key_values [batch, heads, past, width] of each layer",
)


def rows_only(name: str, checkpoint: Checkpoint, kind: Kind, *, wanted: bool) -> LeftOut | None:
    """Return what is not exported, or ``None`` if one graph reads token ids.

    ``name`` is the class of the model, and ``wanted`` says that the user wants a decoder of `inputs_embeds`. Raises
    `RefusedError` for a class whose decoder cannot be exported so.
    """
    cls = getattr(need("transformers", "onnx,torch", "exporting"), name, None)
    if cls is None or not hasattr(cls, "forward"):
        return None
    images = bool(modality_input(cls))
    if not wanted and (not images or reads_features(cls, kind)):
        return None
    if kind is Kind.SEQ2SEQ and reads_features(cls, encoder_decoder_kind(cls, one_graph=False)):
        raise RefusedError(
            f"{shown(name)} reads {modality_input(cls)}: --quantise supports only encoder-decoders of token ids",
            "export without --quantise",
            "export.quantise",
        )
    if kind is not Kind.CACHED or not reads_embeddings(cls):
        check_inputs(cls)
        raise refused(name, "is not a decoder that takes inputs_embeds")
    return left_out_parts(cls, checkpoint.root, checkpoint.tensors, images=images)


def check_options(layout: str, quantise: Scheme | None) -> None:
    """Check that no option asks for one graph. Raises `RefusedError`."""
    if layout == "plain" and quantise is None:
        return
    option = "--layout" if layout != "plain" else "--quantise"
    raise RefusedError(
        f"{option} supports only one graph, but this export writes a decoder of inputs_embeds and its embedding",
        f"export without {option}",
        "export.embeds",
    )
