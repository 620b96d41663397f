"""Measure a quantised graph: its weights, its computation on its own weights, and its loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.parity import Gate, Identity, Parity, ProviderUse, Verdict
from tieconv.checkpoint.results.parity_metrics import Metrics
from tieconv.checkpoint.results.quantised import Loss, Quantised
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, RefusedError
from tieconv.onnx.parity.batches.batch_shapes import SEEDS
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.free_memory import reference_dtype
from tieconv.onnx.parity.gates import identity_gates, structure_gates
from tieconv.onnx.parity.graph.bindings import Kind, bind
from tieconv.onnx.parity.graph.file import DTYPES, read_graph
from tieconv.onnx.parity.graph.forward import GraphModel
from tieconv.onnx.parity.judge import Judged, judge
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.measure import Errors
from tieconv.onnx.parity.measured_pair import Subject, check_model, graph_file
from tieconv.onnx.parity.passes import Work, make_work, run_floor, run_graph, run_reference
from tieconv.onnx.parity.quantised.activations import rounded_activations
from tieconv.onnx.parity.quantised.exact_graph import activation_forms, exact_copy
from tieconv.onnx.parity.quantised.float_identity import float_identity
from tieconv.onnx.parity.quantised.loss_gates import loss_gates, weight_gate
from tieconv.onnx.parity.quantised.matrices import matrices, unread
from tieconv.onnx.parity.quantised.perplexity_tokens import Tokens, batches, nats, read_tokens, sample_tokens
from tieconv.onnx.parity.quantised.weights import Compared, compare, put
from tieconv.onnx.parity.weights.folds import head_width
from tieconv.onnx.session.open_ import open_session
from tieconv.reference import Reference, architecture, load, load_config
from tieconv.reference.model import CPU
from tieconv.sources.temporary import temporary_directory
from tieconv.text import shown


@record
class Runs:
    """Where the graph ran, the cells that failed, and its nats a token if it predicts tokens."""

    use: ProviderUse
    errors: Mapping[Cell, str]
    nats: float | None


def run_quantised_parity(
    path: str,
    evidence: Inspection,
    provider: str = "auto",
    reference: str = "auto",
    text: str | None = None,
    reference_device: str = "cpu",
) -> Parity:
    """Return the parity of the quantised graph at ``path`` with the checkpoint of ``evidence``.

    ``text`` is a file of text or token ids for the perplexity. The other arguments and errors are those of
    `run_parity`. Raises `RefusedError` for a graph without quantised weights, or with operators that tieconv cannot
    dequantise.
    """
    subject, dequantised = _open(path, evidence, provider)
    try:
        subject = subject.with_reference_on(reference_device)
        dtype = reference_dtype(subject, reference)
        structure = subject.structure
        if structure.faults:
            return subject.report(Verdict.FAILED, structure=structure, gates=tuple(structure_gates(structure)))
        with LogitStore() as store, temporary_directory() as folder:
            return _Job(subject, dequantised, dtype, text, store, Path(folder)).run()
    except NotRunError as stop:
        use = ProviderUse(provider, stop.active, len(stop.fallback), fallback=stop.fallback)
        return subject.report(
            Verdict.NOT_RUN, provider=use, structure=subject.structure, reason=stop.message, hint=stop.command_hint
        )


def stored_quantised_gates(path: str, evidence: Inspection, model: Reference) -> tuple[Identity, tuple[Gate, ...]]:
    """Return the gates of a quantised graph that need no session. ``model`` is the loaded checkpoint."""
    subject, dequantised = _open(path, evidence, "cpu")
    compared = compare(dequantised, model)
    identity = float_identity(subject, model, compared)
    weights = Quantised(compared.weights, compared.unmatched)
    return identity, (*structure_gates(subject.structure), weight_gate(weights), *identity_gates(identity))


def _open(path: str, evidence: Inspection, provider: str) -> tuple[Subject, list[Any]]:
    checkpoint = evidence.checkpoint
    check_model(checkpoint)
    graph = read_graph(graph_file(path))
    unknown = next(unread(graph.model), "")
    dequantised = list(matrices(graph.model))
    if unknown or not dequantised:
        why = unknown or "it has no quantised weight"
        hint = f"measure it without --quantised: tieconv parity {shown(path)} {shown(checkpoint.source)}"
        raise RefusedError(
            f"parity --quantised cannot measure {shown(graph.path)}: {shown(why)}",
            "give a graph with MatMulNBits, MatMulInteger or DequantizeLinear" if unknown else hint,
            "parity.quantised",
        )
    masked = "MaskedLM" in architecture(checkpoint.config_values, checkpoint.source)
    config = load_config(checkpoint.root)
    bindings = bind(graph, masked=masked, width=head_width(config))
    logits = graph.output(bindings.logits)
    precision = DTYPES.get(logits.dtype if logits is not None else "", "float32")  # in which the graph computes
    return Subject(graph, evidence, provider, precision, bindings, config), dequantised


class _Job:
    """One measurement. Only one model is in memory at a time."""

    def __init__(
        self, subject: Subject, dequantised: list[Any], dtype: str, text: str | None, store: LogitStore, folder: Path
    ) -> None:
        self.subject, self.dequantised, self.dtype, self.store, self.folder = subject, dequantised, dtype, store, folder
        self.work: Work = make_work(subject.bindings, subject.config)
        self.text = text
        self.tokens: Tokens | None = None

    def run(self) -> Parity:
        identity, compared, loss = self._reference()
        graph = self._graph(self.subject.graph.path, "as it runs")
        exact = exact_copy(self.subject.graph.path, self.folder)
        errors = graph.errors if exact is None else self._graph(exact, "graph").errors
        name = "as it runs" if exact is None else "graph"
        self._own(compared)
        judged = judge(self.work, self.store, errors, self.subject.precision, name)
        quantised = self._losses(compared, loss, graph)
        structure = self.subject.structure
        gates = (
            *structure_gates(structure),
            weight_gate(quantised),
            *identity_gates(identity),
            *judged.gates(),
            *self._loss_gates(quantised, judged),
        )
        passed = all(gate.passed for gate in gates) and any(gate.name == "kl" for gate in gates)
        precisions = self.subject.torch_precision(self.dtype), self.subject.torch_precision(self.subject.precision)
        return self.subject.report(
            Verdict.PASSED if passed else Verdict.FAILED,
            provider=graph.use,
            structure=structure,
            identity=identity,
            gates=gates,
            cases=judged.cases,
            metrics=Metrics(*precisions, SEEDS, judged.pools()),
            histograms=tuple(judged.histograms()),
            quantised=quantised,
        )

    def _load(self, dtype: str) -> Reference:
        return load(self.subject.root, self.subject.evidence.checkpoint.config_values, dtype)

    def _reference(self) -> tuple[Identity, Compared, dict[str, float | None]]:
        """Run the float reference, then the same with the weights of the known-good quantiser."""
        model = self._load("float32")  # the loss is far larger than the rounding of float32
        compared = compare(self.dequantised, model)
        identity = float_identity(self.subject, model, compared)
        self.tokens = self._text(model)
        model.move(self.subject.torch_device)
        loss = {"float": self._nats(model.logits)}
        self._store(model, "float")
        model.move(CPU)
        put(model, compared.replaced, good=True)
        model.move(self.subject.torch_device)
        forms = activation_forms(self.subject.graph.path)
        with rounded_activations(model.model, compared.parameters, forms):
            loss["good"] = self._nats(model.logits)
            self._store(model, "good")
        return identity, compared, loss

    def _store(self, model: Reference, name: str) -> None:
        for cell in self.work.cells:
            self.store.put((name, cell), self.work.judged(cell, model.logits(self.work.batch(cell), cell.judged)))

    def _own(self, compared: Compared) -> None:
        """Run torch on the graph's dequantised weights: the reference and the floor of the usual gates."""
        for dtype, run in ((self.dtype, run_reference), (self.subject.precision, run_floor)):
            model = self._load(dtype)
            put(model, compared.replaced)
            model.move(self.subject.torch_device)
            run(model, self.work, self.store)

    def _graph(self, path: str, name: str) -> Runs:
        session = open_session(path, self.subject.provider, precision=self.subject.precision)
        model = GraphModel(session, self.subject.bindings, self.subject.window)
        errors = run_graph(model, self.work, self.store, name)
        return Runs(session.use, errors, None if errors or name == "graph" else self._nats(model.logits))

    def _text(self, model: Reference) -> Tokens | None:
        """Return the tokens for the perplexity, or ``None`` if the model does not predict the next token."""
        config = self.subject.config
        causal = self.work.kind in (Kind.CACHED, Kind.PLAIN)
        if not causal:
            if self.text is not None:
                raise RefusedError(
                    f"{shown(self.subject.evidence.checkpoint.source)} does not predict the next token of a text",
                    "leave out --text",
                    "parity.text",
                )
            return None
        longest = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        if self.text is not None:
            return read_tokens(self.text, self.subject.root, int(config.vocab_size), longest)
        return sample_tokens(model, int(config.vocab_size), longest)

    def _nats(self, logits: Callable[[Any], Any]) -> float | None:
        """Return the mean negative log-likelihood of the tokens."""
        if self.tokens is None:
            return None
        return sum(nats(batch, logits(batch)) for batch in batches(self.tokens)) / self.tokens.predicted

    def _losses(self, compared: Compared, loss: Mapping[str, float | None], graph: Runs) -> Quantised:
        return Quantised(
            compared.weights,
            compared.unmatched,
            self._loss("as it runs", graph.nats),
            self._loss("good", loss["good"]),
            _perplexity(loss["float"]),
            0 if self.tokens is None else self.tokens.predicted,
            "" if self.tokens is None else self.tokens.source,
        )

    def _loss(self, name: str, lost: float | None) -> Loss | None:
        errors = self._errors(name)
        if not errors.positions:
            return None
        figures = errors.figures()
        return Loss(figures.top1, figures.kl, _perplexity(lost))

    def _errors(self, name: str) -> Errors:
        errors = Errors()
        for cell in self.work.cells:
            float_, logits = self.store.get(("float", cell)), self.store.get((name, cell))
            if float_ is not None and logits is not None and float_.shape == logits.shape:
                errors.add(float_, logits)
        return errors

    def _loss_gates(self, quantised: Quantised, judged: Judged) -> tuple[Gate, ...]:
        if quantised.graph is None or quantised.known_good is None:
            return ()
        return tuple(loss_gates(quantised, self._errors("good").positions))


def _perplexity(lost: float | None) -> float | None:
    return None if lost is None else math.exp(min(lost, 700.0))
