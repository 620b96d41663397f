"""Trace an encoder-decoder as two graphs: the encoder, and a decoder with the caches of both attentions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tieconv.errors import RefusedError
from tieconv.onnx.export import adapter
from tieconv.onnx.export.sample_inputs import BATCH, PAST, SEQUENCE, SOURCE, keeps_keys_and_values, moved, sample_batch
from tieconv.onnx.parity.bindings import DECODER, ENCODER
from tieconv.onnx.write.data_placement import PAGE, SMALL
from tieconv.reference.model import EncoderInput, Reference, cache_argument, cache_in, encoder_input
from tieconv.reference.packages import BY_TRANSFORMERS, need
from tieconv.sources.user_files import new_file
from tieconv.text import Hint


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
        cache = cache_in(decoded(model, tokens[:, :PAST], hidden, mask, cache_of()))
        own, cross = named(cache, "decoder"), named(cache, "encoder")
        layers = {index: own[index] | cross[index] for index in own}
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


# Wrap an encoder-decoder as three modules that a tracer can follow: encoder, decoder, and keys of the encoder.
#
# Their arguments and results have the names that the tensors of the graphs get.

Layers = dict[str, dict[str, dict[str, torch.Tensor]]]
"""Keys and values by layer, by `decoder` (self-attention) or `encoder` (cross-attention), and by `key` or `value`."""


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """Return the encoder's last hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"last_hidden_state": self.encoder(**inputs).last_hidden_state}


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """Return the logits of some tokens after the past, and the self-attention's cache of past and tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: Layers,
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        cache = cache_of([past_key_values[str(index)] for index in range(len(past_key_values))])
        made = decoded(self.model, input_ids, encoder_hidden_states, encoder_attention_mask, cache)
        return {"logits": made.logits, "present": named(cache_in(made), "decoder")}


class CrossAttention(torch.nn.Module):  # type: ignore[misc]
    """Return the cross-attention's keys and values of the encoder's hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoder_hidden_states: torch.Tensor) -> dict[str, Any]:
        ids = torch.zeros_like(encoder_hidden_states[:, :1, 0], dtype=torch.int64)
        made = decoded(self.model, ids, encoder_hidden_states, None, cache_of())
        return {"present": named(cache_in(made), "encoder")}


def decoded(model: Any, ids: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> Any:
    """Return what the model's forward pass returns for decoder tokens. ``hidden`` are the encoder's states."""
    outputs = need("transformers.modeling_outputs", "onnx,torch", "exporting")
    masked = {} if mask is None else {"attention_mask": mask}
    return model(
        encoder_outputs=outputs.BaseModelOutput(last_hidden_state=hidden),
        decoder_input_ids=ids,
        use_cache=True,
        **{cache_argument(type(model)): cache},
        **masked,
    )


def named(cache: Any, side: str) -> Layers:
    """Return keys and values of one attention: ``decoder`` is the self-attention, ``encoder`` the cross-attention.

    Raises `RefusedError` if a layer holds other states.
    """
    layers = cache.self_attention_cache.layers if side == "decoder" else cache.cross_attention_cache.layers
    for layer in layers:
        if not keeps_keys_and_values(layer):
            problem = f"the cache layer {type(layer).__name__} holds other states than keys and values"
            raise RefusedError(problem, Hint("export ", BY_TRANSFORMERS), "export.cache")
    return {str(index): {side: {"key": layer.keys, "value": layer.values}} for index, layer in enumerate(layers)}


def cache_of(layers: Sequence[dict[str, dict[str, torch.Tensor]]] = ()) -> Any:
    """Return a cache of both attentions with the keys and values of ``layers``; empty without them."""
    transformers = need("transformers", "onnx,torch", "exporting")
    caches = {"decoder": transformers.DynamicCache(), "encoder": transformers.DynamicCache()}
    for side, cache in caches.items():
        for index, layer in enumerate(layers):
            cache.update(layer[side]["key"], layer[side]["value"], index)
    return transformers.EncoderDecoderCache(*caches.values())


# Merge the first pass and the later steps of a decoder into one graph, whose weights are stored once.
#
# The two differ only in the cross-attention's keys and values. The first pass computes them, and a step takes them
# from the cache. One `If` chooses, by the input `use_cache_branch`. optimum and transformers.js feed that input.

BRANCH = "use_cache_branch"
HIDDEN = "encoder_hidden_states"
_PREFIX = "cross_attention/"


def merge(decoder: ir.Model, cross: ir.Model) -> None:
    """Add to ``decoder`` the graph ``cross``, which computes keys and values of the encoder's hidden states.

    The decoder then returns them as `present.N.encoder.key` and `present.N.encoder.value`.
    """
    graph = decoder.graph
    for key, version in cross.graph.opset_imports.items():
        graph.opset_imports.setdefault(key, version)
    hidden = next(value for value in graph.inputs if value.name == HIDDEN)
    computed = _computed(graph, cross, hidden)
    branch = ir.Value(name=BRANCH, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(branch)
    pasts = [value for value in graph.inputs if ".encoder." in str(value.name)]
    node = ir.node("If", [branch], num_outputs=len(pasts), name="cross_attention_cache")
    for past, chosen in zip(pasts, node.outputs, strict=True):
        chosen.name = str(past.name).replace("past_key_values", "present")
        chosen.shape, chosen.type = past.shape, past.type
        past.replace_all_uses_with(chosen)
        assert past.shape is not None
        batch, heads, _, width = past.shape
        past.shape = ir.Shape([batch, heads, "past_encoder_sequence", width])
    node.attributes.add(ir.AttrGraph("then_branch", _from_cache(pasts)))
    node.attributes.add(ir.AttrGraph("else_branch", computed))
    graph.insert_before(graph[0], node)
    outputs = [*graph.outputs, *node.outputs]
    graph.outputs.clear()
    graph.outputs.extend(sorted(outputs, key=_layer))
    RemoveUnusedNodesPass()(decoder)


def _computed(graph: ir.Graph, cross: ir.Model, hidden: ir.Value) -> ir.Graph:
    """Move the graph of ``cross`` into a branch without inputs. Its weights become those of ``graph``."""
    (source,) = cross.graph.inputs
    hidden.shape, hidden.type = source.shape, source.type
    source.replace_all_uses_with(hidden)
    outputs = list(cross.graph.outputs)
    return ir.Graph([], outputs, nodes=moved(cross.graph, graph, _PREFIX), name="first_pass")


def _from_cache(pasts: list[ir.Value]) -> ir.Graph:
    nodes = [ir.node("Identity", [past], name=f"{_PREFIX}kept_{index}") for index, past in enumerate(pasts)]
    for past, node in zip(pasts, nodes, strict=True):
        value = node.outputs[0]
        value.name, value.shape, value.type = f"{_PREFIX}kept.{past.name}", past.shape, past.type
    return ir.Graph([], [node.outputs[0] for node in nodes], nodes=nodes, name="step")


def _layer(value: ir.Value) -> int:
    parts = str(value.name).split(".")
    return int(parts[1]) if parts[0] == "present" else -1


LEAST = 256
"""Bytes from which a tensor goes to the data file. Smaller ones stay in the graph."""


def write_data(graphs: Iterable[ir.Model], path: Path) -> None:
    """Write the tensors of ``graphs`` to ``path``. Tensors with the same bytes become one byte range.

    The graphs must be stored beside it.
    """
    placed: dict[bytes, list[tuple[int, ir.TensorProtocol]]] = {}
    with new_file(path) as data:
        for model in graphs:
            for graph in model.graphs():
                for value in graph.initializers.values():
                    tensor = value.const_value
                    if tensor is None or tensor.nbytes < LEAST or tensor.dtype == ir.DataType.STRING:
                        continue
                    content = tensor.tobytes()
                    alike = placed.setdefault(hashlib.sha256(content).digest(), [])
                    offset = next((start for start, earlier in alike if earlier.tobytes() == content), None)
                    if offset is None:
                        offset = data.tell() + -data.tell() % (PAGE if len(content) >= PAGE else SMALL)
                        data.write(bytes(offset - data.tell()) + content)
                        alike.append((offset, tensor))
                    stored, shape = (path.name, offset, tensor.nbytes, tensor.dtype), ir.Shape(tensor.shape.numpy())
                    name = str(tensor.name)
                    value.const_value = ir.ExternalTensor(*stored, shape=shape, name=name, base_dir=path.parent)
