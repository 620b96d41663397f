"""Define a layout. This one is `plain`: the names of transformers' exporter, for any program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.onnx.parity.encoder_decoder.pair_files import DECODER, ENCODER
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.quantise.scheme import Scheme
from tieconv.text import shown


@record
class Model:
    """What a layout reads: the config as JSON and as transformers loads it, and the generation config as JSON."""

    source: str
    architecture: str
    values: Mapping[str, Any]
    config: Any
    generation: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        return str(self.values.get("model_type", ""))

    def whole(self, *names: str) -> int:
        """Return the first of these entries of the config that is a positive integer; 0 if none is."""
        entries = (getattr(self.config, name, None) for name in names)
        return next((value for value in entries if isinstance(value, int) and value > 0), 0)


STEM = "model"
"""The name of a single graph, without the extension."""


class Layout:
    """What one program loads. The base class is the layout `plain`, which every kind of graph has."""

    name = "plain"
    program = ""
    """The program with the release that was tried, for messages."""
    kinds: frozenset[Kind] = frozenset(Kind)
    precisions: tuple[str, ...] = ("fp32", "fp16", "bf16")
    data = "model.onnx.data"
    renames = False
    """Whether cache tensors are named `past_key_values.N.key` and `present.N.key`."""
    reads_generation = False
    """Whether `documents` reads the generation config."""
    batch_axis = "batch"
    """The name of the batch axis of an encoder-decoder's caches."""
    made: frozenset[str] = frozenset()
    """Documents that this layout writes; the model's own files with these names are not copied."""

    def graph(self, precision: str, stem: str = STEM, scheme: Scheme | None = None) -> str:
        """Return the path of a graph in OUT.

        ``stem`` is its name until then, without the extension. ``scheme`` is that of a quantised graph.
        """
        return f"{stem}.onnx"

    def data_of(self, precision: str, stem: str = STEM, scheme: Scheme | None = None) -> str:
        """Return the name of the graph's data file, which is beside it. Graphs may share one."""
        return self.data

    def notes(self, kind: Kind, precision: str) -> tuple[str, ...]:
        """Return what the user should know of the files."""
        if kind is not Kind.PAIR or self.data_of(precision, ENCODER) == self.data_of(precision, DECODER):
            return ()
        return (f"{self.program} loads a data file for each graph, so encoder and decoder each store the tied matrix",)

    def documents(self, model: Model, precision: str, kind: Kind, scheme: Scheme | None = None) -> dict[str, str]:
        """Return further files by name."""
        return {}

    def cache_shape(self, model: Model) -> tuple[int, int] | None:
        """Return heads and width of the empty cache that the program feeds; None if it reads them from the graph."""
        return None

    def empty_cache(self, model: Model) -> tuple[int, int] | None:
        """Return heads and width of the empty cache of an encoder-decoder; None if read from the graph."""
        return None

    def check(self, model: Model, kind: Kind, precision: str, scheme: Scheme | None = None) -> None:
        """Check that the program can load such a graph. Raises `RefusedError`."""
        if kind not in self.kinds:
            raise self.refused(model, f"the layout {self.name} does not support this kind of graph ({kind})")
        if precision not in self.precisions:
            raise self.refused(model, f"the layout {self.name} does not support {precision}")
        if scheme is not None and self.name != Layout.name and precision != "fp32":
            raise self.refused(model, f"the layout {self.name} was tried with quantised graphs in fp32 only")
        if kind is Kind.CACHED:
            self.check_cache(model, (model.whole("num_key_value_heads", "num_attention_heads"), _width(model)))

    def check_cache(self, model: Model, cache: tuple[int, int]) -> None:
        """Check the heads and the width of the model's cache. Raises `RefusedError` if the program feeds others."""
        fed = self.cache_shape(model)
        if fed is not None and fed != cache:
            feeds = f"{self.program} feeds {model.model_type} a cache of {_shape(fed)}"
            raise self.refused(model, f"{feeds}, but the model has {_shape(cache)}")

    def refused(self, model: Model, why: str) -> RefusedError:
        """Return the error of a model that this layout cannot express."""
        return RefusedError(
            f"{shown(model.source)}: {shown(model.architecture)}: {shown(why, 300)}",
            "export without --layout, or with another layout",
            "export.layout",
        )


def _width(model: Model) -> int:
    heads = model.whole("num_attention_heads")
    return model.whole("head_dim") or (model.whole("hidden_size") // heads if heads else 0)


def _shape(shape: tuple[int, int]) -> str:
    return f"{shape[0]} heads (width {shape[1]})"
