"""The whole measurement: graph, checkpoint and provider in, a verdict with its evidence out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import BLOCKING, TWO_FORMATS, Caution, Checkpoint, Layout, way_out
from tieconv.checkpoint.results.parity import Gate, Identity, Parity, ProviderUse, Structure, Verdict
from tieconv.errors import NotRunError, RefusedError, UnreadableError
from tieconv.onnx.parity.cells import SEEDS
from tieconv.onnx.parity.free_run import agreement, free_runs, reference_generate
from tieconv.onnx.parity.gates import identity_gates, structure_gates
from tieconv.onnx.parity.graph.bindings import Bindings, bind, faults
from tieconv.onnx.parity.graph.file import DTYPES, Graph, quantised_weights, read_graph
from tieconv.onnx.parity.graph.forward import GraphModel
from tieconv.onnx.parity.judge import Judged, judge
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.passes import GraphPass, Work, make_work, run_floor, run_graph, run_reference
from tieconv.onnx.parity.weights.folds import folds, head_width
from tieconv.onnx.parity.weights.identity import weight_identity
from tieconv.onnx.parity.weights.suspects import suspects, uncounted
from tieconv.onnx.session.open_ import open_session
from tieconv.onnx.session.provider import CUDA
from tieconv.reference import Reference, architecture, load, load_config
from tieconv.sources.local.files import open_files
from tieconv.text import command, shown, size


@dataclass(frozen=True)
class _Subject:
    """What is measured."""

    graph: Graph
    evidence: Inspection
    provider: str
    precision: str
    bindings: Bindings
    config: Any

    @property
    def root(self) -> str:
        return self.evidence.checkpoint.root

    @property
    def window(self) -> int:
        value = getattr(self.config, "sliding_window", None)
        return value if isinstance(value, int) else 0

    def report(self, verdict: Verdict, **more: Any) -> Parity:
        fields = {"provider": ProviderUse(self.provider), **more}
        return Parity(verdict, self.graph.path, self.evidence.checkpoint.source, **fields)


def run_parity(path: str, evidence: Inspection, provider: str = "auto", reference: str = "auto") -> Parity:
    """The parity of the graph at ``path`` with the checkpoint that ``evidence`` is about.

    ``provider`` is ``auto``, ``cpu`` or ``cuda``, ``reference`` ``auto``, ``float64`` or ``float32``. A provider that
    is missing, or that leaves heavy nodes on the CPU, gives the verdict ``not_run``, and so does a graph that is half
    of a model. Raises `UnreadableError` for a graph or checkpoint that cannot be read or fed.
    """
    try:
        subject = _subject(path, evidence, provider)
    except NotRunError as stop:
        graph, use = _file(path), ProviderUse(provider)
        model = evidence.checkpoint.source
        return Parity(Verdict.NOT_RUN, graph, model, use, reason=stop.message, hint=stop.hint)
    structure = _structure(subject)
    try:
        dtype = _reference_dtype(subject, reference)
        if structure.faults:
            return subject.report(Verdict.FAILED, structure=structure, gates=tuple(structure_gates(structure)))
        return _measured(subject, structure, dtype)
    except NotRunError as stop:
        use = ProviderUse(provider, stop.active, len(stop.fallback), fallback=stop.fallback)
        return subject.report(Verdict.NOT_RUN, provider=use, structure=structure, reason=stop.message, hint=stop.hint)


def stored_gates(path: str, evidence: Inspection, model: Reference) -> tuple[Identity, tuple[Gate, ...]]:
    """The gates of the graph at ``path`` that need no session: its axes, and its weights bit for bit.

    ``model`` is the checkpoint in the graph's precision, loaded. Raises what `run_parity` raises.
    """
    subject = _subject(path, evidence, "cpu")
    structure = _structure(subject)
    identity = _identity(subject, model.unused, model)
    return identity, (*structure_gates(structure), *identity_gates(identity))


def _way_out(blocking: Caution, checkpoint: Checkpoint) -> str:
    """Here two formats have no option: the one that is not meant is left out by a command that writes."""
    if blocking.code != TWO_FORMATS:
        return way_out(blocking.code, checkpoint.source)
    return f"leave one out first: {command('dedup', checkpoint.source, '--drop-other-formats', '-o', 'OUT')}"


def check_model(checkpoint: Checkpoint) -> None:
    """The model must be what transformers loads from its directory; raises `UnreadableError`."""
    blocking = next((caution for caution in checkpoint.cautions if caution.code in BLOCKING), None)
    if blocking is not None:
        raise UnreadableError(
            f"{shown(checkpoint.source)}: {blocking.message}", _way_out(blocking, checkpoint), blocking.code
        )
    lone = checkpoint.layout is Layout.FILE or checkpoint.adapter is not None
    if lone or checkpoint.headers_only or checkpoint.config is None:
        raise UnreadableError(
            f"{shown(checkpoint.source)} cannot be loaded as a torch model",
            "give a model directory with its config.json and safetensors or torch weights; merge an adapter first",
            "parity.model",
        )


def _subject(path: str, evidence: Inspection, provider: str) -> _Subject:
    checkpoint = evidence.checkpoint
    check_model(checkpoint)
    graph = read_graph(_file(path))
    masked = "MaskedLM" in architecture(checkpoint.config_values, checkpoint.source)
    config = load_config(checkpoint.root)
    bindings = bind(graph, masked=masked, width=head_width(config))
    return _Subject(graph, evidence, provider, _precision(graph), bindings, config)


def _file(path: str) -> str:
    return os.path.join(path, "model.onnx") if os.path.isdir(path) else path


_FLOATS = "parity measures fp32, fp16 and bf16 graphs: give the one that was quantised from"
_QUANTISED = "parity.quantised"


def _precision(graph: Graph) -> str:
    """The float type that holds most of the weights, as torch names it. Raises `RefusedError` for a quantised one."""
    quantised = next(quantised_weights(graph), None)
    if quantised is not None:
        raise RefusedError(f"{shown(graph.path)}: {shown(quantised)}: torch has no floor for that", _FLOATS, _QUANTISED)
    stored: Counter[str] = Counter()
    for weight in graph.weights:
        stored[weight.dtype] += weight.nbytes
    dtype = stored.most_common(1)[0][0] if stored else ""
    if dtype not in DTYPES:
        raise RefusedError(
            f"{shown(graph.path)}: most of its weights are {dtype.lower() or 'absent'}: torch has no floor for that",
            _FLOATS,
            _QUANTISED,
        )
    return DTYPES[dtype]


def _structure(subject: _Subject) -> Structure:
    graph = subject.graph
    return Structure(
        str(subject.bindings.kind),
        subject.precision,
        graph.opset,
        tuple(value.name for value in graph.inputs),
        tuple(value.name for value in graph.outputs),
        tuple(faults(subject.bindings)),
        subject.bindings.notes,
    )


def _reference_dtype(subject: _Subject, asked: str) -> str:
    """Float64 where it fits into memory, else float32, which cannot judge a float32 graph."""
    wanted = 8 * sum(record.elements for record in subject.evidence.checkpoint.tensors.values())
    room = available_memory()
    dtype = asked if asked != "auto" else "float64" if wanted < 0.8 * room else "float32"
    if dtype == "float32" and subject.precision in ("float32", "float64"):
        raise NotRunError(
            f"a {subject.precision} graph needs a float64 reference, which takes {size(wanted)} of memory"
            + (f", and {size(room)} are free" if asked == "auto" else ""),
            "run it where there is more memory, or measure the fp16 or bf16 export",
            "parity.memory",
        )
    return dtype


def available_memory() -> int:
    """Bytes that programs may still take."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _measured(subject: _Subject, structure: Structure, dtype: str) -> Parity:
    work = make_work(subject.bindings, subject.config)
    with LogitStore() as store:
        use, graph_pass, tokens = _run_graph(subject, work, store)
        plain = use.active == CUDA and subject.precision == "float32"
        rounded = _run_graph(subject, work, store, tf32=True)[1] if plain else None
        model = load(subject.root, subject.evidence.checkpoint.config_values, dtype)
        run_reference(model, work, store)
        free = agreement(tokens, free_runs(work, reference_generate(model)) if tokens is not None else None)
        unused = model.unused
        del model
        floor = load(subject.root, subject.evidence.checkpoint.config_values, subject.precision)
        run_floor(floor, work, store)
        identity, epsilons = _identity(subject, unused, floor), floor.epsilons
        del floor
        judged = judge(work, store, graph_pass.errors, subject.precision)
        tf32 = judge(work, store, rounded.errors, subject.precision, "tf32") if rounded else None
    gates = (*structure_gates(structure), *identity_gates(identity), *judged.gates())
    passed = _all_passed(gates)
    likely = () if passed else _likely(subject, judged, epsilons)
    return subject.report(
        Verdict.PASSED if passed else Verdict.FAILED,
        reason="; ".join(likely),
        provider=use,
        structure=structure,
        identity=identity,
        gates=gates,
        cases=tuple(judged.cases),
        metrics=_metrics(subject, judged, tf32, dtype) | {"free_run": free},
        histograms=tuple(judged.histograms()),
    )


def _likely(subject: _Subject, judged: Judged, epsilons: frozenset[float]) -> Iterator[str]:
    yield from suspects(subject.graph, subject.config, epsilons, subject.precision)
    yield from uncounted(judged.cases, subject.bindings)


def _all_passed(gates: tuple[Gate, ...]) -> bool:
    """Every gate, and logits were measured: no measurement is no agreement."""
    return all(gate.passed for gate in gates) and any(gate.name == "rms_ratio" for gate in gates)


def _run_graph(
    subject: _Subject, work: Work, store: LogitStore, *, tf32: bool = False
) -> tuple[ProviderUse, GraphPass, Any]:
    session = open_session(
        subject.graph.path,
        subject.provider,
        precision=subject.precision,
        tf32=tf32,
        weight_gathers=_weight_gathers(subject.graph),
    )
    graph = GraphModel(session, subject.bindings, subject.window)
    graph_pass = run_graph(graph, work, store, "tf32" if tf32 else "graph")
    tokens = free_runs(work, graph.generate) if not tf32 and not graph_pass.errors else None
    return session.use, graph_pass, tokens


def _weight_gathers(graph: Graph) -> frozenset[str]:
    """Names of the `Gather` nodes that look rows up in a float weight."""
    floats = {weight.name for weight in graph.weights if weight.dtype in DTYPES and prod(weight.shape) > 1}
    return frozenset(
        node.name or ""
        for node in graph.model.graph.all_nodes()
        if node.op_type == "Gather" and node.inputs[0] is not None and node.inputs[0].name in floats
    )


def _identity(subject: _Subject, unused: tuple[str, ...], model: Reference) -> Identity:
    checkpoint = subject.evidence.checkpoint
    embedding = subject.evidence.head.input_embedding
    with open_files(checkpoint.root) as files:
        files.expect(checkpoint.files)
        return weight_identity(
            subject.graph,
            checkpoint,
            files,
            subject.precision,
            tuple(folds(subject.config)),
            unused,
            embedding.name if embedding else None,
            model.matrices,
            model.offsets,
        )


def _metrics(subject: _Subject, judged: Judged, tf32: Judged | None, dtype: str) -> dict[str, object]:
    return {
        "reference": {"library": "torch", "device": "cpu", "dtype": dtype},
        "floor": {"library": "torch", "device": "cpu", "dtype": subject.precision},
        "seeds": list(SEEDS),
        "logits": judged.metrics(steps=False),
        "steps": judged.metrics(steps=True),
        "tf32": None if tf32 is None else {"logits": tf32.metrics(steps=False), "steps": tf32.metrics(steps=True)},
    }
