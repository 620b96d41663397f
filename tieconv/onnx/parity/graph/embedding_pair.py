"""Read a decoder of `inputs_embeds` together with the graph of its embedding in the same directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from tieconv.onnx.parity.graph.file import Graph, Initializer, read_graph

EMBEDDING = "embed_tokens.onnx"
EMBEDS = "inputs_embeds"
BLOCKS = ("token_type_ids", "mm_token_type_ids")
"""Inputs of a decoder that mark the tokens of an image."""
CAUSAL = "tieconv.causal_token_type"
"""Metadata of a decoder: the token type with which a token attends only to earlier ones."""


def read_graphs(path: str) -> Graph:
    """Return the graph at ``path``. A decoder of `inputs_embeds` has its embedding's graph as ``embedding``.

    Its inputs and weights then include those of the embedding; a weight that both read is there once. Raises what
    `read_graph` raises.
    """
    graph = read_graph(path)
    before = os.path.join(os.path.dirname(path), EMBEDDING)
    if not any(value.name == EMBEDS for value in graph.inputs) or not os.path.lexists(before):
        return graph
    embedding = read_graph(before)
    return replace(
        graph,
        inputs=(*embedding.inputs, *graph.inputs),
        weights=tuple(_once([*graph.weights, *embedding.weights])),
        embedding=embedding,
    )


def parts(graph: Graph) -> tuple[Graph, ...]:
    """Return the graphs that run, the embedding first."""
    return (graph,) if graph.embedding is None else (graph.embedding, graph)


def _once(weights: list[Initializer]) -> Iterator[Initializer]:
    """Yield each weight once. Weights of two graphs are one if they have one byte range."""
    seen: dict[object, None] = {}
    names: set[str] = set()
    for weight in weights:
        key = _byte_range(weight)
        if key in seen:
            continue
        seen[key] = None
        own = f"{EMBEDDING}:{weight.name}" if weight.name in names else weight.name
        names.add(own)
        yield replace(weight, name=own)


def _byte_range(weight: Initializer) -> object:
    """Return the byte range of a weight in a data file; the weight itself if its graph holds it."""
    tensor = weight.tensor
    path = getattr(tensor, "path", None)
    return weight if path is None else (os.path.realpath(path), tensor.offset or 0, weight.nbytes)
