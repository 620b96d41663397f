"""Define what parity measures: a graph, a checkpoint, and how the graph is fed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.files.cautions import BLOCKING, TWO_FORMATS, Caution, way_out
from tieconv.checkpoint.files.model_files import Checkpoint, Layout
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.parity import Parity, ProviderUse, Structure, Verdict
from tieconv.checkpoint.results.parity_metrics import Precision
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError, UnreadableError
from tieconv.onnx.parity.encoder_decoder.feature_axes import with_fixed_features
from tieconv.onnx.parity.encoder_decoder.pair_files import pair_files
from tieconv.onnx.parity.encoder_decoder.pair_roles import Pair, pair_faults, read_pair
from tieconv.onnx.parity.encoder_decoder.pair_weights import as_one_graph
from tieconv.onnx.parity.graph.axis_faults import faults
from tieconv.onnx.parity.graph.bindings import Bindings, bind
from tieconv.onnx.parity.graph.embedding_pair import parts, read_graphs
from tieconv.onnx.parity.graph.file import DTYPES, Graph, quantised_weights
from tieconv.onnx.parity.weights.folds import head_width
from tieconv.onnx.session.provider import device_id
from tieconv.reference import architecture, load_config
from tieconv.reference.model import torch_device
from tieconv.text import command, shown


@record
class Subject:
    """The graph, the checkpoint and the settings of a measurement.

    With a ``pair``, ``graph`` has the weights of all its graphs.
    """

    graph: Graph
    evidence: Inspection
    provider: str
    precision: str
    bindings: Bindings
    config: Any
    pair: Pair | None = None
    torch_device: str = "cpu"

    def with_reference_on(self, device: str) -> Subject:
        """Return this subject, with the torch runs on ``cpu``, or on the GPU of its provider for ``cuda``.

        Raises `NotRunError` if torch does not find the GPU.
        """
        return replace(self, torch_device=torch_device(device, device_id(self.provider)))

    def torch_precision(self, dtype: str) -> Precision:
        """Return what computes the reference or the floor, in this type."""
        return Precision(dtype, device=self.torch_device)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that run: one, or those of an encoder-decoder."""
        return (self.graph,) if self.pair is None else self.pair.graphs

    @property
    def parts(self) -> Iterator[Subject]:
        """Each graph as a separate subject."""
        for graph, bindings in ((self.graph, self.bindings),) if self.pair is None else self.pair.parts:
            yield replace(self, graph=graph, bindings=bindings, pair=None)

    @property
    def root(self) -> str:
        return self.evidence.checkpoint.root

    @property
    def elements(self) -> int:
        """The number of the checkpoint's weights."""
        return sum(record.elements for record in self.evidence.checkpoint.tensors.values())

    @property
    def window(self) -> int:
        value = getattr(self.config, "sliding_window", None)
        return value if isinstance(value, int) else 0

    @property
    def structure(self) -> Structure:
        """The graph's axes and names, and their faults."""
        return Structure(
            str(self.bindings.kind),
            self.precision,
            self.graph.opset,
            tuple(value.name for value in self.graph.inputs),
            tuple(value.name for value in self.graph.outputs),
            (*faults(self.bindings), *(pair_faults(self.pair) if self.pair is not None else ())),
            self.bindings.notes,
        )

    def report(self, verdict: Verdict, **more: Any) -> Parity:
        """Return a report on this graph and this checkpoint."""
        fields = {"provider": ProviderUse(self.provider), **more}
        return Parity(verdict, self.graph.path, self.evidence.checkpoint.source, **fields)


def open_subject(path: str, evidence: Inspection, provider: str) -> Subject:
    """Read the graph at ``path`` and the config of the model.

    Raises `UnreadableError` for a graph or checkpoint that cannot be read or fed. Raises `RefusedError` for a quantized
    graph, and `NotRunError` for a graph that is half of a model.
    """
    checkpoint = evidence.checkpoint
    check_model(checkpoint)
    files = pair_files(path) if graph_file(path) == path else None
    if files is not None:
        pair = with_fixed_features(read_pair(files), checkpoint)
        graph = as_one_graph(path, pair)
        precision = _precision(graph, pair.graphs, _FLOAT_PAIR)
        return Subject(graph, evidence, provider, precision, pair.bindings, load_config(checkpoint.root), pair)
    graph = read_graphs(graph_file(path))
    masked = "MaskedLM" in architecture(checkpoint.config_values, checkpoint.source)
    config = load_config(checkpoint.root)
    bindings = bind(graph, masked=masked, width=head_width(config))
    return Subject(graph, evidence, provider, _precision(graph, parts(graph)), bindings, config)


def graph_file(path: str) -> str:
    """Return the graph at ``path``: the path itself, or `model.onnx` in a directory.

    A directory with the graphs of an encoder-decoder is returned itself.
    """
    single = os.path.join(path, "model.onnx")
    if not os.path.isdir(path) or (pair_files(path) is not None and not os.path.exists(single)):
        return path
    return single


def _way_out(blocking: Caution, checkpoint: Checkpoint) -> str:
    """Return the hint.

    With two formats, the hint is a command that writes one of them, because parity has no option for it.
    """
    if blocking.code != TWO_FORMATS:
        return way_out(blocking.code, checkpoint.source)
    return f"leave one out first: {command('dedup', checkpoint.source, '--drop-other-formats', '-o', 'OUT')}"


def check_model(checkpoint: Checkpoint) -> None:
    """Check that transformers can load the model from its directory. Raises `UnreadableError`."""
    blocking = next((caution for caution in checkpoint.cautions if caution.code in BLOCKING), None)
    if blocking is not None:
        raise UnreadableError(
            f"{shown(checkpoint.source)}: {blocking.message}", _way_out(blocking, checkpoint), blocking.code
        )
    lone = checkpoint.layout is Layout.FILE or checkpoint.adapter is not None
    if lone or checkpoint.headers_only or checkpoint.table or checkpoint.config is None:
        raise UnreadableError(
            f"transformers cannot load {shown(checkpoint.source)} as a torch model",
            "give a model directory with config.json and safetensors or torch weights; merge an adapter first",
            "parity.model",
        )


_FLOATS = "measure the loss of a quantised graph with --quantised, or give the graph before quantization"
_FLOAT_PAIR = (
    "give the pair before quantization, or quantise the model as one graph: tieconv export MODEL -o OUT --quantise int8"
)
_QUANTISED = "parity.quantised"


def _precision(graph: Graph, graphs: Iterable[Graph], hint: str = _FLOATS) -> str:
    """Return the float type of most weights, as torch names it. Raises `RefusedError` for a quantized graph."""
    quantised = next((clause for part in graphs for clause in quantised_weights(part)), None)
    if quantised is not None:
        raise RefusedError(f"parity cannot measure {shown(graph.path)}: {shown(quantised)}", hint, _QUANTISED)
    stored: Counter[str] = Counter()
    for weight in graph.weights:
        stored[weight.dtype] += weight.nbytes
    dtype = stored.most_common(1)[0][0] if stored else ""
    if dtype not in DTYPES:
        raise RefusedError(
            f"parity cannot measure {shown(graph.path)}: most of its weights are {dtype.lower() or 'absent'}",
            hint,
            _QUANTISED,
        )
    return DTYPES[dtype]
