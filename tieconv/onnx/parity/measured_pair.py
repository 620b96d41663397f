"""Define what parity measures: a graph, a checkpoint, and how the graph is fed."""

from __future__ import annotations

import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import BLOCKING, TWO_FORMATS, Checkpoint, Layout, way_out
from tieconv.checkpoint.results.parity import Parity, ProviderUse, Structure, Verdict
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, RefusedError, SettingsError, UnreadableError
from tieconv.onnx.child import available_memory
from tieconv.onnx.ort_session import device_id
from tieconv.onnx.parity.batches import BEYOND, FULL, LONG
from tieconv.onnx.parity.bindings import (
    Bindings,
    Padding,
    Pair,
    Role,
    as_one_graph,
    bind,
    faults,
    pair_faults,
    pair_files,
    read_pair,
    with_fixed_features,
)
from tieconv.onnx.parity.graph_file import DTYPES, Graph, parts, quantised_weights, read_graphs
from tieconv.onnx.parity.weight_identity import head_width
from tieconv.reference.model import CPU, Batch, architecture, check_no_adapter, free_memory, load_config, torch_device
from tieconv.sources.user_files import read_bytes
from tieconv.text import MODEL, OUT, Hint, call, option, shown, size


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

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that run: one, one behind the graph of its embedding, or those of an encoder-decoder."""
        return parts(self.graph) if self.pair is None else self.pair.graphs

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
        kind, graph = str(self.bindings.kind), self.graph
        inputs, outputs = (tuple(value.name for value in values) for values in (graph.inputs, graph.outputs))
        wrong = (*faults(self.bindings), *(pair_faults(self.pair) if self.pair is not None else ()))
        return Structure(kind, self.precision, graph.opset, inputs, outputs, wrong, self.bindings.notes)

    def report(self, verdict: Verdict, **more: Any) -> Parity:
        """Return a report on this graph and this checkpoint."""
        fields = {"provider": ProviderUse(self.provider), **more}
        return Parity(verdict, self.graph.path, self.evidence.checkpoint.source, **fields)

    def not_run(self, stop: NotRunError) -> Parity:
        """Return the report of a measurement that ``stop`` ended."""
        use = ProviderUse(self.provider, stop.active, len(stop.fallback), fallback=stop.fallback)
        return self.report(
            Verdict.NOT_RUN, provider=use, structure=self.structure, reason=stop.message, hint=stop.command_hint
        )


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
    config, bindings = bound(graph, checkpoint)
    return Subject(graph, evidence, provider, _precision(graph, parts(graph)), bindings, config)


def bound(graph: Graph, checkpoint: Checkpoint) -> tuple[Any, Bindings]:
    """Return the config of the model, and the roles of the graph's inputs. Raises what `bind` raises."""
    masked = "MaskedLM" in architecture(checkpoint.config_values, checkpoint.source)
    config = load_config(checkpoint.root)
    return config, bind(graph, masked=masked, width=head_width(config))


def graph_file(path: str) -> str:
    """Return the graph at ``path``: the path itself, or `model.onnx` in a directory.

    A directory with the graphs of an encoder-decoder is returned itself.
    """
    single = os.path.join(path, "model.onnx")
    if not os.path.isdir(path) or (pair_files(path) is not None and not os.path.exists(single)):
        return path
    return single


def check_model(checkpoint: Checkpoint) -> None:
    """Check that transformers can load the model from its directory. Raises `UnreadableError`.

    Raises `RefusedError` for an adapter beside the weights, because the reference would depend on PEFT.
    """
    source = checkpoint.source
    blocking = next((caution for caution in checkpoint.cautions if caution.code in BLOCKING), None)
    if blocking is not None:
        hint = way_out(blocking, checkpoint)
        if blocking.code == TWO_FORMATS:  # parity has no option that chooses one
            hint = Hint("leave one out first: ", call("dedup", source, drop_other_formats=True, out=OUT))
        raise UnreadableError(f"{shown(source)}: {blocking.message}", hint, blocking.code)
    lone = checkpoint.layout is Layout.FILE or checkpoint.adapter is not None
    if lone or checkpoint.headers_only or checkpoint.table or checkpoint.config is None:
        raise UnreadableError(
            f"transformers cannot load {shown(source)} as a torch model",
            "give a model directory with config.json and safetensors or torch weights; merge an adapter first",
            "parity.model",
        )
    check_no_adapter(checkpoint.root, checkpoint.config_values, source)


_FLOATS = Hint(
    "measure the loss of a quantised graph with ", option(quantised=True), ", or give the graph before quantization"
)
_FLOAT_PAIR = Hint(
    "give the pair before quantization, or quantise the model as one graph: ",
    call("export", MODEL, out=OUT, quantise="int8"),
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
        problem = f"parity cannot measure {shown(graph.path)}: most of its weights are {dtype.lower() or 'absent'}"
        raise RefusedError(problem, hint, _QUANTISED)
    return DTYPES[dtype]


_LIMIT = 100_000_000
"""Bytes of all arrays: 12 million token ids."""
_ENCODER = (Role.MASK, Role.POSITIONS, Role.TYPES)


def read_inputs(path: str, bindings: Bindings, config: Any, longest: int) -> Batch:
    """Return the batch in the npz file at ``path``: integer arrays (batch × sequence) by the graph's input names.

    `input_ids` is required, and `decoder_input_ids` for an encoder-decoder. Without the others, all tokens count, their
    type is 0, and positions are counted from the mask. Raises `UnreadableError`, which names the file and the array.
    """
    if bindings.features is not None:
        _refuse(
            path, f"cannot be used: --inputs takes token ids, but the encoder reads {shown(bindings.features.name)}"
        )
    arrays = _arrays(path)
    roles = {value.name: role for role, value in bindings.inputs.items()}
    unknown = next((name for name in arrays if name not in roles), None)
    if unknown is not None:
        _refuse(path, f"has an array {shown(unknown)}, but parity takes arrays only for {', '.join(roles)}")
    arrays_by_role = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "iub" or array.ndim != 2 or not array.size:
            form = f"{array.dtype} {list(array.shape)}"
            _refuse(path, f"has an array {shown(name)} of {form} instead of integers [batch, sequence]")
        arrays_by_role[roles[name]] = torch.from_numpy(array.astype(np.int64))
    for role in (Role.IDS, Role.DECODER_IDS):
        if role in bindings.inputs and role not in arrays_by_role:
            _refuse(path, f"has no array {bindings.inputs[role].name}")
    ids, decoder = arrays_by_role[Role.IDS], arrays_by_role.get(Role.DECODER_IDS)
    for role, values in arrays_by_role.items():
        like = ids if decoder is None or role in (Role.IDS, *_ENCODER) else decoder
        if values.shape != like.shape or len(values) != len(ids):
            own, wanted = (" × ".join(map(str, array.shape)) for array in (values, like))
            _refuse(path, f"has an array {role} of {own} beside token ids of {wanted}")
    kinds = int(getattr(config, "type_vocab_size", 0) or 1)
    rows = int(config.vocab_size)
    ends = {Role.MASK: 2, Role.DECODER_MASK: 2, Role.TYPES: kinds, Role.POSITIONS: longest}
    for role, values in arrays_by_role.items():
        low, high, end = int(values.min()), int(values.max()), ends.get(role, rows)
        if low < 0 or high >= end:
            _refuse(path, f"has the value {low if low < 0 else high} in {role}, outside of 0 to {end - 1}")
        if values.shape[1] > longest:
            _refuse(path, f"has sequences of {values.shape[1]} tokens, but the model has {longest} positions")
    mask = arrays_by_role.get(Role.MASK, torch.ones_like(ids))
    behind = arrays_by_role.get(Role.DECODER_MASK)
    if not all(made.any(1).all() for made in (mask, behind) if made is not None):
        _refuse(path, "has a row without a token: its mask is 0 everywhere")
    if bindings.padding is Padding.NONE and not mask.all():
        _refuse(path, "has padding, which this graph does not take")
    if behind is None and decoder is not None and Role.DECODER_MASK in bindings.inputs:
        behind = torch.ones_like(decoder)
    types = arrays_by_role.get(Role.TYPES, torch.zeros_like(ids)) if Role.TYPES in bindings.inputs else None
    return Batch(ids, mask, decoder, types, decoder_mask=behind, given_positions=arrays_by_role.get(Role.POSITIONS))


def _arrays(path: str) -> dict[str, np.ndarray]:
    """Return the arrays. numpy never unpickles them, and no size that the file states is believed."""
    try:
        content = io.BytesIO(read_bytes(path, _LIMIT))
        with zipfile.ZipFile(content) as archive:
            stored = sum(entry.file_size for entry in archive.infolist())
        if stored > _LIMIT:
            _refuse(path, f"has arrays of {size(stored)}, and parity takes at most {size(_LIMIT)}")
        content.seek(0)
        with np.load(content, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except MemoryError:
        _refuse(path, "has an array that states more values than the file holds")
    except (SettingsError, UnreadableError):
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise many classes on a file that is not an archive
        _refuse(path, f"is not an npz file of number arrays: {shown(error, 200)}")


def _refuse(path: str, why: str) -> NoReturn:
    problem = f"{shown(path)} {why}"
    raise UnreadableError(problem, Hint("list the graph's inputs: ", call("inspect", Hint("ONNX"))), "parity.inputs")


# Define what a user wants to be measured, and check that the model can run it.


@record
class Wishes:
    """More batches: the arrays of the file ``inputs``, a sequence of ``length`` tokens, and ``batch`` rows.

    ``budget`` is about how many seconds of computing the batches may take. Without it, the measurement takes about
    as long as an export of the model, or less. Infinity feeds all batches.
    """

    inputs: str = ""
    length: int = 0
    batch: int = 0
    budget: float | None = None

    def seconds(self, weights: int) -> float:
        """Return the budget for a model of so many ``weights``."""
        return 4 + 6e-8 * weights if self.budget is None else self.budget


def check_length(subject: Subject, length: int, longest: int) -> None:
    """Check a sequence of ``length`` tokens.

    Raises `RefusedError` if the model has fewer positions, and `NotRunError` if the memory is too small.
    """
    if length > longest:
        problem = f"--length {length} is more than the {longest} positions of the model"
        raise RefusedError(problem, option(length=longest), "parity.length")
    wanted, room = reference_bytes(subject, length), available_memory()
    if length and wanted > room:
        problem = f"a sequence of {length} tokens needs {size(wanted)} of memory, but only {size(room)} is free"
        hint = Hint("give a shorter ", option("length"), ", or use a machine with more memory")
        raise NotRunError(problem, hint, "parity.memory")


# Choose the precision of the torch reference by the free memory.

WIDEST = 4096
"""The largest sliding window that is measured, in tokens."""
_SHARE = 0.8
"""The share of the free memory that the reference may use."""


def reference_dtype(subject: Subject, asked: str) -> str:
    """Return float64 if it fits into memory, else float32. float32 cannot judge a float32 graph."""
    wanted = reference_bytes(subject, LONG)
    room = _room(subject)
    dtype = asked if asked != "auto" else "float64" if wanted < _SHARE * room else "float32"
    if dtype == "float32" and subject.precision in ("float32", "float64"):
        raise NotRunError(
            f"a {subject.precision} graph needs a float64 reference with {size(wanted)} of memory"
            + (f", but only {size(room)} is free" if asked == "auto" else ""),
            "use a machine with more memory, or measure the fp16 or bf16 export",
            "parity.memory",
        )
    return dtype


def planned_window(subject: Subject) -> tuple[int, str]:
    """Return the sliding window to measure, and a note if the window of the config is not measured."""
    window = subject.window
    if window > WIDEST:
        return 0, f"parity measures windows of up to {WIDEST} tokens: the window of {window} tokens was not measured"
    wanted, room = reference_bytes(subject, window + BEYOND), _room(subject)
    if window and wanted > _SHARE * room:
        note = f"the window of {window} tokens was not measured: a longer sequence needs {size(wanted)} of memory"
        return 0, f"{note}, but only {size(room)} is free"
    return window, ""


def planned_prompt(subject: Subject, longest: int) -> tuple[int, str]:
    """Return the length of a prompt that fills all positions, and a note if it does not fit into memory.

    The length is 0 for a model whose usual batches fill them, and for one with more than `FULL`.
    """
    if not LONG < longest <= FULL:
        return 0, ""
    wanted, room = reference_bytes(subject, longest), _room(subject)
    if wanted <= _SHARE * room:
        return longest, ""
    note = f"a prompt of {longest:,} tokens needs {size(wanted)} of memory, but only {size(room)} is free"
    return 0, f"{note}: it is not fed"


def _room(subject: Subject) -> int:
    """Return the memory for the reference. transformers loads it into main memory first."""
    room = available_memory()
    return room if subject.torch_device == CPU else min(room, free_memory(subject.torch_device))


def reference_bytes(subject: Subject, length: int) -> int:
    """Return the memory of a float32 model that computes in float64, with logits and scores of ``length`` tokens."""
    heads = int(getattr(subject.config, "num_attention_heads", 0) or 1)
    rows = int(getattr(subject.config, "vocab_size", 0) or 0)
    return 4 * subject.elements + 8 * (length * rows + 2 * heads * length * length)
