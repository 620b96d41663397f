"""Measure a quantised graph: its weights, its computation on its own weights, and its loss."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.parity import Gate, Identity, Loss, Metrics, Parity, ProviderUse, Quantised, Verdict
from tieconv.checkpoint.value_type import record
from tieconv.errors import MALFORMED, NotRunError, RefusedError, UnreadableError
from tieconv.formats.strict_json import parse_json
from tieconv.onnx.parity.batches import SEEDS, Cell
from tieconv.onnx.parity.bindings import Kind, bind
from tieconv.onnx.parity.graph_file import DTYPES, read_graph
from tieconv.onnx.parity.graph_forward import GraphModel
from tieconv.onnx.parity.judge import Errors, Judged, identity_gates, judge, structure_gates
from tieconv.onnx.parity.measured_pair import Subject, check_model, graph_file, reference_dtype
from tieconv.onnx.parity.passes import LogitStore, Work, identity_of, make_work, run_floor, run_graph, run_reference
from tieconv.onnx.parity.quantised_matrices import activation_forms, exact_copy, matrices, unread
from tieconv.onnx.parity.quantised_weights import Compared, compare, put
from tieconv.onnx.parity.weight_identity import head_width
from tieconv.onnx.session.open_ import open_session
from tieconv.reference import Batch, Reference, architecture, load, load_config
from tieconv.reference.model import CPU
from tieconv.reference.windows import load_tokenizer
from tieconv.sources.temporary import temporary_directory
from tieconv.sources.user_files import decode, read_bytes
from tieconv.text import count, shown


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


# Define the conditions of the verdict on a quantised graph.


BLOCK_LIMIT = 2.5
"""Limit of a block's RMS error divided by that of round to nearest. A zero point that is off by one measures 3.5."""
KL_LIMIT = 2.0
"""Limit of the KL divergence divided by that of the known-good quantiser."""
LEAST_KL = 1e-4
"""A divergence up to which the ratio is not judged, in nats."""
LEAST_NATS = 0.02
"""Nats a token that the graph may lose in any case."""


def weight_gate(figures: Quantised) -> Gate:
    """Return the gate that every quantised matrix is a correct quantisation of a parameter."""
    if figures.unmatched:
        name = shown(figures.unmatched[0])
        explanation = f"the quantised matrix {name} is similar to no tensor of the checkpoint"
        return Gate("quantised_weights", math.inf, BLOCK_LIMIT, False, explanation)
    worst = max(figures.weights, key=lambda weight: weight.worst_block)
    weights = count(len(figures.weights), "quantised weight")
    explanation = f"largest error of a block of {weights} divided by that of round to nearest: {shown(worst.name)}"
    passed = worst.worst_block <= BLOCK_LIMIT
    return Gate("quantised_weights", worst.worst_block, BLOCK_LIMIT, passed, explanation)


def loss_gates(figures: Quantised, positions: int) -> Iterator[Gate]:
    """Yield the gates of top-1 agreement, KL divergence and perplexity, each beside the known-good quantiser's."""
    graph, good = figures.graph, figures.known_good
    assert graph is not None and good is not None
    changed, limit = 1 - graph.top1, _changes(1 - good.top1, positions)
    explanation = f"share of other top-1 tokens than the float reference's; known-good quantiser: {1 - good.top1:.3f}"
    yield Gate("top1", changed, limit, changed <= limit, explanation)
    limit = max(KL_LIMIT * good.kl, LEAST_KL)
    explanation = f"KL divergence from the float reference in nats; known-good quantiser: {good.kl:.2e}"
    yield Gate("kl", graph.kl, limit, graph.kl <= limit, explanation)
    if graph.perplexity is None or good.perplexity is None or figures.reference_perplexity is None:
        return
    ours, theirs = (math.log(loss / figures.reference_perplexity) for loss in (graph.perplexity, good.perplexity))
    limit = max(KL_LIMIT * theirs, LEAST_NATS)
    explanation = (
        f"nats lost a token on {count(figures.tokens, 'token')} ({shown(figures.text)}): "
        f"perplexity {graph.perplexity:.4g}, "
        f"known-good quantiser {good.perplexity:.4g}, float {figures.reference_perplexity:.4g}"
    )
    yield Gate("perplexity", ours, limit, ours <= limit, explanation)


def _changes(good: float, positions: int) -> float:
    """Return the largest share of changed tokens: twice the known-good share, or three standard deviations above it."""
    spread = 3 * math.sqrt(max(good * (1 - good), 1 / positions) / positions)
    return max(2 * good, good + spread)


_BLOCK, _LARGEST = 32, 127


@contextmanager
def rounded_activations(model: Any, parameters: Collection[str], forms: Collection[str]) -> Iterator[None]:
    """Round the inputs of the modules whose weights are ``parameters``, for the duration of the context.

    ``forms`` has ``tensor`` for the rounding of DynamicQuantizeLinear, and ``block`` for that of MatMulNBits with int8
    activations.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    round_ = _by_tensor if "tensor" in forms else _by_block
    modules = [
        module
        for module in model.modules()
        if names.get(id(getattr(module, "weight", None))) in parameters and not hasattr(module, "embedding_dim")
    ]
    hooks = [module.register_forward_pre_hook(_hook(round_)) for module in modules] if forms else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(round_: Any) -> Any:
    def hook(_module: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (round_(inputs[0]), *inputs[1:])

    return hook


def _by_tensor(values: torch.Tensor) -> torch.Tensor:
    """Round to 256 levels between the smallest and the largest element, and zero."""
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = (high - low) / 255
    zero = (-low / scale).round()
    return (((values / scale).round() + zero).clamp(0, 255) - zero) * scale


def _by_block(values: torch.Tensor) -> torch.Tensor:
    """Round each 32 elements to 255 levels around zero."""
    width = values.shape[-1]
    filled = torch.nn.functional.pad(values, (0, -width % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    scale = filled.abs().amax(-1, keepdim=True) / _LARGEST
    codes = torch.where(scale > 0, filled / scale, torch.zeros_like(filled)).round()
    return (codes * scale).flatten(-2)[..., :width]


def float_identity(subject: Subject, model: Reference, compared: Compared) -> Identity:
    """Compare the float weights bit for bit. Quantised tensors and their scales are left out."""
    identity = identity_of(subject, model.unused, model)
    quantised = compared.parameters
    sides = {id(parameter): name for name, parameter in model.model.named_parameters(remove_duplicate=False)}
    tied = {
        name
        for name, parameter in model.model.named_parameters(remove_duplicate=False)
        if sides[id(parameter)] in quantised or name in quantised
    }
    scales = {str(value.name) for node in subject.graph.model.graph.all_nodes() for value in _scales(node)}
    lost = tuple(entry for entry in identity.lost if not any(_is(entry.name, name) for name in quantised | tied))
    unexplained = tuple(entry for entry in identity.unexplained if entry.name not in scales)
    return replace(identity, lost=lost, unexplained=unexplained)


def _is(stored: str, parameter: str) -> bool:
    """Return whether a stored name is a parameter's. A checkpoint of the base model lacks the first part."""
    return stored == parameter or parameter.endswith(f".{stored}") or stored.endswith(f".{parameter}")


def _scales(node: Any) -> list[Any]:
    """Return the scales that a quantised node reads, also through a Gather."""
    known = {"MatMulNBits": 2, "GatherBlockQuantized": 2, "DequantizeLinear": 1}
    index = known.get(node.op_type)
    return [] if index is None else [value for value in node.inputs[index : index + 1] if value is not None]


# Get the tokens on which perplexity is measured: of a file that the user gives, else sampled from the reference.


WINDOW = 64
"""Most tokens that the model reads at once."""
WINDOWS = 16
"""Most windows of a file. They are taken at even distances."""
_SAMPLES, _SAMPLED = 8, 32


@record
class Tokens:
    """Windows of token ids (n × length), and a phrase that says where they are from."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    ids: torch.Tensor
    source: str

    @property
    def predicted(self) -> int:
        """The number of tokens that are predicted."""
        return int(self.ids.shape[0] * (self.ids.shape[1] - 1))


def read_tokens(path: str, directory: str, rows: int, longest: int) -> Tokens:
    """Return windows of the text or token file ``path``.

    A `.npy` or `.json` file holds ids; any other file is a text for the tokenizer in ``directory``. ``rows`` is the
    size of the vocabulary, ``longest`` the model's limit. Raises `UnreadableError` if the file holds too few ids, or an
    id that the model does not have.
    """
    ids = _ids(path, directory)
    length = min(WINDOW, longest)
    whole = len(ids) // length
    if not whole:
        raise _unreadable(path, f"holds {count(len(ids), 'token')}, but at least {length} are needed")
    if ids.min() < 0 or ids.max() >= rows:
        raise _unreadable(path, f"holds the id {int(ids.max())}, but the model has {rows:,} tokens")
    windows = torch.from_numpy(ids[: whole * length].astype(np.int64)).reshape(whole, length)
    chosen = torch.linspace(0, whole - 1, min(WINDOWS, whole)).long()
    return Tokens(windows[chosen], os.path.basename(path))


def sample_tokens(reference: Reference, rows: int, longest: int) -> Tokens:
    """Return sequences that the reference itself generates at random, with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, rows, (_SAMPLES, 1), generator=generator)
    for _ in range(min(_SAMPLED, longest) - 1):
        logits = reference.logits(Batch(ids, torch.ones_like(ids)))[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.double().softmax(-1), 1, generator=generator)], 1)
    return Tokens(ids, "tokens sampled from the reference")


def batches(tokens: Tokens) -> list[Batch]:
    """Return a batch for each window."""
    return [Batch(window[None], torch.ones_like(window)[None]) for window in tokens.ids]


def nats(batch: Batch, logits: torch.Tensor) -> float:
    """Return the summed negative log-likelihood of the batch's tokens after the first."""
    log = logits[:, :-1].double().log_softmax(-1)
    return float(-log.gather(-1, batch.ids[:, 1:, None]).sum())


def _ids(path: str, directory: str) -> Any:
    data = read_bytes(path)
    try:
        if path.endswith(".npy"):
            return np.load(io.BytesIO(data), allow_pickle=False).astype(np.int64).reshape(-1)
        if path.endswith(".json"):
            ids = parse_json(data, len(data))
        else:
            text = decode(data, path)
            ids = load_tokenizer(directory)(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.asarray(ids, dtype=np.int64).reshape(-1)
    except (*MALFORMED, EOFError, MemoryError) as error:
        raise _unreadable(path, f"cannot be read as tokens: {shown(str(error), 200)}") from error


def _unreadable(path: str, why: str) -> UnreadableError:
    return UnreadableError(f"{shown(path)} {why}", "give a text, or ids as .npy or .json: --text FILE", "parity.text")
