"""Make the inputs that a model is traced with.

All sizes differ and none is 1, because a tracer freezes a size of 1 and merges equal sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, assert_never

import onnx
import onnx_ir as ir
import torch

from tieconv.checkpoint.graph_plan import SessionProof, SharedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError, VerificationError
from tieconv.onnx.parity.bindings import Kind
from tieconv.onnx.parity.graph_file import BLOCKS, EMBEDDING
from tieconv.onnx.write.plan import split_at
from tieconv.onnx.write.session_proof import prove
from tieconv.reference import model as reference_model
from tieconv.reference.packages import BY_TRANSFORMERS, need, quiet
from tieconv.text import Hint, shown

BATCH, SEQUENCE, PAST, SOURCE = 2, 3, 7, 5
_MODALITY_INPUTS = ("pixel_values", "input_features", "input_values", "flattened_patches", "input_modes")


def kind_of(model: Any, *, embeds: bool = False, one_graph: bool = False) -> Kind:
    """Return what the graphs of the model compute. ``one_graph`` excludes an encoder-decoder with caches.

    ``embeds`` says that the graph reads `inputs_embeds`, so that the model may take images. Raises `RefusedError` for a
    model with other inputs or outputs than tokens and logits.
    """
    name = type(model).__name__
    pair = encoder_decoder_kind(type(model), one_graph=one_graph) if model.config.is_encoder_decoder else None
    if not embeds and not reads_features(type(model), pair):
        check_inputs(type(model))
    if model.get_output_embeddings() is None:
        raise _other_model(name, "has no head")
    if pair is not None:
        return pair
    if "MaskedLM" in name:
        return Kind.MASKED
    return causal_kind(type(model))


def causal_kind(cls: Any) -> Kind:
    """Return whether the class, which predicts the next token, can keep keys and values between passes."""
    return Kind.CACHED if reference_model.cache_argument(cls) else Kind.PLAIN


def encoder_decoder_kind(cls: Any, *, one_graph: bool) -> Kind:
    """Return whether the encoder-decoder class can run its two parts alone, with a cache between them."""
    parts = {"encoder_outputs", "decoder_input_ids"} <= _accepts(cls) and reference_model.cache_argument(cls)
    return Kind.PAIR if parts and not one_graph else Kind.SEQ2SEQ


def reads_features(cls: Any, kind: Kind | None) -> bool:
    """Return whether the class is exported as two graphs, of which the encoder reads images or sound."""
    return kind is Kind.PAIR and bool(reference_model.feature_argument(cls))


def check_inputs(cls: Any) -> None:
    """Check that the class takes tokens, without an instance. Raises `RefusedError` for images and sound."""
    input_name = modality_input(cls)
    if input_name:
        raise _other_model(cls.__name__, f"takes {input_name}")


def modality_input(cls: Any) -> str:
    """Return the argument of the class for images or sound; empty if it takes only tokens."""
    accepts = _accepts(cls)
    input_name = next((name for name in _MODALITY_INPUTS if name in accepts), "")
    return input_name or reference_model.feature_argument(cls)


def _other_model(name: str, why: str) -> RefusedError:
    problem = f"{shown(name)} {why}: export supports only language models from tokens to logits"
    return RefusedError(problem, "export only its language model, or use transformers.exporters", "export.kind")


def _accepts(model: Any) -> frozenset[str]:
    return frozenset(signature(model.forward).parameters)


def sample(reference: reference_model.Reference, kind: Kind, config: Any, reads: Reads | None = None) -> dict[str, Any]:
    """Return keyword arguments of the forward pass for tracing. With ``reads`` the model gets `inputs_embeds`.

    Raises `RefusedError` if the cache holds other states than keys and values.
    """
    batch = sample_batch(int(config.vocab_size), PAST + SEQUENCE)
    if kind is Kind.CACHED:
        return _cached(reference, batch, reads)
    encoder = batch.until(SOURCE)
    if kind is Kind.SEQ2SEQ or kind is Kind.PAIR:
        inputs = reference.inputs(reference_model.Batch(encoder.ids, encoder.mask, decoder_ids=batch.ids[:, :SEQUENCE]))
    elif kind is Kind.MASKED:
        types = int(getattr(config, "type_vocab_size", 0) or 0) > 1 and "token_type_ids" in _accepts(reference.model)
        kinds = torch.zeros_like(encoder.ids) if types else None
        inputs = reference.inputs(reference_model.Batch(encoder.ids, encoder.mask, types=kinds, placed=False))
    elif kind is Kind.PLAIN:
        inputs = reference.inputs(encoder)
    else:
        assert_never(kind)
    return inputs | ({"use_cache": False} if "use_cache" in _accepts(reference.model) else {})


def sample_batch(rows: int, length: int) -> reference_model.Batch:
    """Return random tokens below ``rows``. The first row has padding."""
    ids = torch.randint(0, rows, (BATCH, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return reference_model.Batch(ids, mask)


def _cached(reference: reference_model.Reference, batch: reference_model.Batch, reads: Reads | None) -> dict[str, Any]:
    """Return the inputs of a step of three tokens, with seven tokens in the cache.

    M-RoPE has three numbers for a position, so the step then has four tokens.
    """
    model, argument = reference.model, reference_model.cache_argument(type(reference.model))
    cache = need("transformers", "onnx,torch", "exporting").DynamicCache(config=model.config)
    past = PAST - (reads is not None and reads.axes > 1)
    before = reference_model.Batch(batch.ids[:, :past], batch.mask[:, :past])
    with torch.no_grad():
        output = reference.call(**reference.inputs(before), **{argument: cache}, use_cache=True)
    filled = reference_model.cache_in(output)
    layers = getattr(filled, "layers", None) or []
    if not layers or not all(keeps_keys_and_values(layer) for layer in layers):
        problem = f"{type(model).__name__} caches other states than keys and values, which export does not support"
        raise RefusedError(problem, Hint("export ", BY_TRANSFORMERS), "export.cache")
    inputs: dict[str, Any] = reference.inputs(batch, past)
    if reads is not None:  # rows in place of ids, and what else the decoder reads
        inputs = {EMBEDS: embedded(model, inputs.pop("input_ids"))} | inputs
        if reads.axes > 1:
            inputs["position_ids"] = torch.stack([inputs["position_ids"]] * reads.axes)
        if reads.blocks:
            inputs[reads.blocks] = torch.full_like(batch.ids, reads.causal)
    return inputs | {argument: filled, "use_cache": True}


def keeps_keys_and_values(layer: Any) -> bool:
    """Return whether a layer of a cache of transformers holds keys and values."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    return isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == values.ndim == 4


# Export a graph that takes embeddings, and the graph that looks them up.

# Find the language model of a class by transformers' own accessors, and the parts that are not exported.

EMBEDS = "inputs_embeds"
_PARTS = 3
"""Decoder, input embedding and head."""
_ROWS = frozenset({EMBEDS, "attention_mask"})
_TEXT = _ROWS | {
    "input_ids", "position_ids", "cache_position", "past_key_values", "cache", "use_cache", "return_dict", "args",
    "kwargs",
}  # fmt: skip
"""Arguments of a decoder whose inputs are `inputs_embeds` alone. `output_attentions` and the like are ignored too."""


@record
class LeftOut:
    """The modules of a model that are not exported, and the stored tensors of these modules."""

    modules: tuple[str, ...]
    tensors: tuple[str, ...]


def reads_embeddings(cls: Any) -> bool:
    """Return whether the class is a decoder with a cache that takes `inputs_embeds` in place of token ids."""
    return _accepts(cls) >= _ROWS and causal_kind(cls) is Kind.CACHED


def left_out_parts(cls: Any, directory: str, stored: Iterable[str], *, images: bool) -> LeftOut:
    """Return what is not part of the class's language model, from a model without weights.

    ``directory`` holds its config, and ``stored`` are the names of its tensors. ``images`` says whether the class takes
    images or sound. Raises `RefusedError` if transformers' accessors do not separate the language model. Raises it also
    if the language model reads more of an image than `inputs_embeds`.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    config = reference_model.load_whole_config(directory)
    try:
        with quiet(transformers), torch.device("meta"):
            model = cls(config)
        modules, parts = (
            reference_model.language_modules(model),
            LeftOut(tuple(reference_model.left_out(model)), reference_model.stored_outside(model, stored)),
        )
        head = model.get_output_embeddings()
    except Exception as error:
        # a class's constructor and its accessors raise any exception
        raise refused(cls.__name__, f"cannot be built without weights ({shown(error, 200)})") from error
    if head is None:
        raise refused(cls.__name__, "has no head")
    if len(modules) < _PARTS or (images and not parts.modules):
        raise refused(cls.__name__, "does not say which of its modules is the language model")
    if images:
        accepted = _accepts(model.get_decoder())
        more = sorted(entry for entry in accepted - _TEXT if not entry.startswith("output_"))
        if more:
            raise refused(cls.__name__, f"passes {shown(', '.join(more), 200)} to its decoder besides inputs_embeds")
    return parts


def refused(name: str, why: str) -> RefusedError:
    """Return the error of a class whose language model cannot be exported alone."""
    problem = f"{shown(name)} {why}: export cannot write its language model as a decoder of inputs_embeds"
    return RefusedError(problem, Hint("export it ", BY_TRANSFORMERS), "export.kind")


# Run a loaded model on a few tokens to see what its decoder reads besides `inputs_embeds`.

_TYPES = (0, 1)
"""The values of `token_type_ids`."""


@record
class Reads:
    """What a decoder reads besides the rows.

    ``axes`` is 3 if a position has three numbers (M-RoPE), else 1. ``blocks`` is the argument that lets tokens attend
    to later ones, or empty. ``causal`` is its value for a token that does not.
    """

    axes: int = 1
    blocks: str = ""
    causal: int = 0


def probe(reference: reference_model.Reference, rows: int) -> Reads:
    """Return what the model reads. ``rows`` is the size of the vocabulary.

    Raises `RefusedError` if the model computes something else from the rows of token ids than from the ids.
    """
    name = type(reference.model).__name__
    ids = torch.randint(0, rows, (2, 9), generator=torch.Generator().manual_seed(1))
    inputs = reference.inputs(reference_model.Batch(ids, torch.ones_like(ids)))
    by_ids = _logits(reference, inputs)
    if by_ids is None:
        raise refused(name, "does not run on text alone")
    inputs[EMBEDS] = embedded(reference.model, inputs.pop("input_ids"))
    by_rows = _logits(reference, inputs)
    if by_rows is None or not torch.equal(by_ids, by_rows):
        raise refused(name, "computes other logits from the rows of its embedding than from token ids")
    return Reads(_axes(reference, inputs, by_rows), *_blocks(reference, inputs))


def embedded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows that the model's embedding gives for the ids, scaled as its module scales them."""
    with torch.no_grad():
        rows: torch.Tensor = model.get_input_embeddings()(ids)
    return rows


def _logits(reference: reference_model.Reference, inputs: dict[str, Any]) -> Any:
    """Return the logits, or ``None`` if the model does not take these inputs."""
    try:
        with torch.no_grad():
            return reference.model(**inputs, use_cache=False).logits
    except Exception:  # noqa: BLE001 - a class raises any exception on an argument that it does not take
        return None


def _axes(reference: reference_model.Reference, inputs: dict[str, Any], before: torch.Tensor) -> int:
    """Return 3 if three equal axes of positions change nothing and three different ones do."""
    positions = inputs.get("position_ids")
    if positions is None:
        return 1
    same = _logits(reference, inputs | {"position_ids": torch.stack([positions] * 3)})
    apart = _logits(reference, inputs | {"position_ids": torch.stack([positions, positions * 2, positions * 3])})
    if same is None or apart is None or not torch.equal(same, before):
        return 1
    return 1 if torch.equal(apart, before) else 3


def _blocks(reference: reference_model.Reference, inputs: dict[str, Any]) -> tuple[str, int]:
    """Return the argument that changes what a token attends to, and its value for causal attention.

    Without types, some models drop the mask of a batch that has no padding. So both values are tried.
    """
    for name in (name for name in BLOCKS if reference.accepts(name)):
        zeros = torch.zeros(inputs[EMBEDS].shape[:2], dtype=torch.int64)
        made = [_logits(reference, inputs | {name: zeros + value}) for value in _TYPES]
        if any(logits is None for logits in made) or torch.equal(*made):
            continue
        later = inputs | {EMBEDS: torch.cat([inputs[EMBEDS][:, :-1], inputs[EMBEDS][:, :1]], 1)}
        again = [_logits(reference, later | {name: zeros + value}) for value in _TYPES]
        causal = [value for value in _TYPES if torch.equal(made[value][:, 0], again[value][:, 0])]
        if causal == list(_TYPES):  # it changes no mask: GPT-2 adds a row of its embedding for the type
            continue
        if len(causal) == 1:
            return name, causal[0]
        raise refused(type(reference.model).__name__, f"reads {name} in a way that tieconv does not know")
    return "", 0


_NAME = "is_initialized"


@contextmanager
def first_pass(active: bool) -> Iterator[None]:
    """Make a cache look empty to the model's code while ``active``, although it holds tokens.

    Some models (PaliGemma) read token types only if the cache's ``is_initialized`` is false. The graph gets types
    for past and new tokens. A token of a closed block then attends to no later token, as in a step of the model.
    """
    cache = need("transformers", "onnx,torch", "exporting").Cache
    before = cache.__dict__.get(_NAME)
    if not active or before is None:
        yield
        return
    setattr(cache, _NAME, property(lambda self: False))
    try:
        yield
    finally:
        setattr(cache, _NAME, before)


IDS = "input_ids"


def moved(source: ir.Graph, graph: ir.Graph, prefix: str) -> list[ir.Node]:
    """Move the weights of ``source`` to ``graph``, and return its nodes, now of no graph. All get the prefix."""
    nodes, weights = list(source), list(source.initializers.values())
    source.outputs.clear()
    source.initializers.clear()
    source.remove(nodes)
    for value in (*weights, *(output for node in nodes for output in node.outputs)):
        value.name = f"{prefix}{value.name}"
    for weight in weights:
        graph.register_initializer(weight)
    for index, node in enumerate(nodes):
        node.name = f"{prefix}{node.name or index}"
    return nodes


def join_embedding(decoder: ir.Model, embedding: ir.Model) -> None:
    """Make ``decoder`` read token ids: move the nodes and weights of ``embedding`` to it.

    The value between the two has the name `inputs_embeds`.
    """
    graph, before = decoder.graph, embedding.graph
    (ids,), (rows,) = list(before.inputs), list(before.outputs)
    fed = next(value for value in graph.inputs if value.name == EMBEDS)
    before.inputs.clear()
    graph.insert_before(graph[0], moved(before, graph, "embed_tokens."))
    fed.replace_all_uses_with(rows)
    graph.inputs.remove(fed)
    graph.inputs.insert(0, ids)
    rows.name, rows.shape, rows.type = EMBEDS, fed.shape, fed.type
    ids.name = IDS
    if fed.shape is not None:
        ids.shape = ir.Shape(list(fed.shape)[:2])


def separate(directory: Path, name: str, matrices: Sequence[SharedMatrix]) -> tuple[SessionProof, ...]:
    """Leave the decoder in the graph ``name``, and write its embedding beside it. Both read one data file.

    ``matrices`` are those that the graph stores once. Raises `VerificationError` if the decoder still reads token ids.
    Raises it also if a session of a part holds a matrix more often than promised.
    """
    split_at(directory, name, [EMBEDS], EMBEDDING)
    proofs = []
    for part in (name, EMBEDDING):
        graph = onnx.load(str(directory / part), load_external_data=False).graph
        if part == name and any(value.name == IDS for value in graph.input):
            hint = "nothing was written; report this with the model's class"
            raise VerificationError("the decoder reads input_ids besides inputs_embeds", hint, "export.embeds")
        weights = {tensor.name for tensor in graph.initializer}
        held = [replace(m, graph=part) for m in matrices if m.done and m.initializer in weights]
        proofs.append(prove(directory, directory / part, part, held))
    return tuple(proofs)
