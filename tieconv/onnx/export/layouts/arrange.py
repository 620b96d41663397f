"""Give the exporter's files the names of a layout: cache tensors, the data file, and the graph in OUT."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from tieconv.onnx.export.layouts.interface import Layout, Model
from tieconv.onnx.quantise.scheme import Scheme

GRAPH = "model.onnx"
"""The name of the graph until it is in OUT."""
_CACHE = re.compile(r"(?P<side>input\.|output\.)?past_key_values\.(?:layers\.)?(?P<layer>\d+)\.(?P<part>key|value)s?")


def arrange(raw: Path, layout: Layout, model: Model, data: str) -> None:
    """Rename the cache tensors of the graph in the directory ``raw``, and its data file to ``data``.

    The weights are not read. Raises `RefusedError` if the program would feed a cache of another shape.
    """
    if not layout.renames and data == f"{GRAPH}.data":
        return
    graph = ir.load(raw / GRAPH)
    if layout.renames:
        for cache in _rename_caches(graph):
            layout.check_cache(model, cache)
    if (raw / f"{GRAPH}.data").exists():
        os.rename(raw / f"{GRAPH}.data", raw / data)
        _move_data(graph, data)
    ir.save(graph, raw / GRAPH)


def arrange_pair(decoder: Path, layout: Layout, model: Model) -> None:
    """Give the axes of the decoder's caches the names and sizes that the program reads.

    If the program feeds an empty cache with other heads or another width, these two axes are open. ONNX Runtime ignores
    the shape of an empty tensor when it joins tensors.
    """
    graph = ir.load(decoder)
    fed = layout.empty_cache(model)
    for value in graph.graph.inputs:
        if value.shape is not None and str(value.name).startswith("past_key_values."):
            _, heads, past, width = value.shape
            sides = (heads, width) if fed in (None, (heads, width)) else ("heads", "width")
            value.shape = ir.Shape([layout.batch_axis, sides[0], past, sides[1]])
    ir.save(graph, decoder)


def published(layout: Layout, precision: str, stems: Iterable[str], scheme: Scheme | None) -> dict[str, Path]:
    """Return the paths in OUT of the graphs and their data, by their names until then."""
    paths = {}
    for stem in stems:
        final = Path(layout.graph(precision, stem, scheme))
        paths[f"{stem}.onnx"] = final
        data = layout.data_of(precision, stem, scheme)
        paths[data] = final.parent / data
    return paths


def publish_names(new: Path, paths: Mapping[str, Path]) -> None:
    """Move the graphs and their data to their paths in OUT (`published`), relative to the directory ``new``."""
    for name, path in paths.items():
        if (new / name).exists() and new / name != new / path:
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            os.rename(new / name, new / path)


def _rename_caches(model: ir.Model) -> Iterator[tuple[int, int]]:
    """Name the cache tensors, and yield heads and width of each input."""
    for values, prefix in ((model.graph.inputs, "past_key_values"), (model.graph.outputs, "present")):
        for value in values:
            match = _CACHE.fullmatch(value.name or "")
            if match is None:
                continue
            value.name = f"{prefix}.{match['layer']}.{match['part']}"
            shape = value.shape
            if prefix == "past_key_values" and shape is not None:
                heads, width = shape[1], shape[3]
                if isinstance(heads, int) and isinstance(width, int):
                    yield heads, width


def _move_data(model: ir.Model, name: str) -> None:
    """Make every external tensor refer to the file ``name``."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.ExternalTensor(
                    name,
                    tensor.offset,
                    tensor.length,
                    tensor.dtype,
                    shape=tensor.shape,
                    name=tensor.name,
                    base_dir=tensor.base_dir,
                )
