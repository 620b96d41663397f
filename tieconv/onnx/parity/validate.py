"""Run the whole measurement: from graph, checkpoint and provider to a verdict with its evidence."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.parity import (
    Gate,
    Identity,
    Loss,
    Metrics,
    Parity,
    Precision,
    ProviderUse,
    Quantised,
    Verdict,
    limited,
)
from tieconv.checkpoint.value_type import identity_record
from tieconv.errors import MALFORMED, NotRunError, RefusedError, UnreadableError
from tieconv.formats.strict_json import parse_json
from tieconv.onnx.ort_session import open_session
from tieconv.onnx.parity import measured_pair, passes, quantised_weights
from tieconv.onnx.parity.batches import SEEDS, spread_ids
from tieconv.onnx.parity.bindings import Kind, Role
from tieconv.onnx.parity.causes import uncounted, wrong_constant
from tieconv.onnx.parity.graph_file import DTYPES, read_graph
from tieconv.onnx.parity.graph_forward import GraphModel
from tieconv.onnx.parity.judge import Errors, Judged, identity_gates, judge, lookup_gates, structure_gates
from tieconv.onnx.parity.lookups import embedding_gates, every_lookup
from tieconv.reference.model import CPU, Batch, Reference, load
from tieconv.reference.windows import load_tokenizer, position_limit
from tieconv.sources.temporary import temporary_directory
from tieconv.sources.user_files import decode, read_bytes
from tieconv.text import FILE, OUT, Hint, call, count, option, shown


def run_parity(
    path: str,
    evidence: Inspection,
    provider: str = "auto",
    reference: str = "auto",
    wishes: measured_pair.Wishes = measured_pair.Wishes(),
    reference_device: str = "cpu",
) -> Parity:
    """Return the parity of the graph at ``path`` with the checkpoint of ``evidence``.

    ``provider`` is ``auto``, ``cpu`` or ``cuda``; ``reference`` is ``auto``, ``float64`` or ``float32``. ``wishes``
    are more batches. ``reference_device`` is ``cpu``, or ``cuda`` for the GPU of ``provider``. The verdict is
    ``not_run`` if a provider is missing or leaves heavy nodes on the CPU. It is also ``not_run`` for a graph that is
    half of a model. Raises `UnreadableError` for a graph or checkpoint that cannot be read or fed.
    """
    try:
        subject = measured_pair.open_subject(path, evidence, provider)
    except NotRunError as stop:
        graph, use = measured_pair.graph_file(path), ProviderUse(provider)
        model = evidence.checkpoint.source
        return Parity(Verdict.NOT_RUN, graph, model, use, reason=stop.message, hint=stop.command_hint)
    try:
        subject = subject.with_reference_on(reference_device)
        dtype = measured_pair.reference_dtype(subject, reference)
        whole = not subject.structure.faults or subject.bindings.own_shape is not None
        return _measured(subject, dtype, wishes) if whole else _unmeasured(subject)
    except NotRunError as stop:
        return subject.not_run(stop)


def _unmeasured(subject: measured_pair.Subject) -> Parity:
    """Return the report on a graph that cannot run at every shape."""
    structure = subject.structure
    return subject.report(Verdict.FAILED, structure=structure, gates=tuple(structure_gates(structure)))


def _measured(subject: measured_pair.Subject, dtype: str, wishes: measured_pair.Wishes) -> Parity:
    longest = passes.longest_sequence(subject.config)
    measured_pair.check_length(subject, wishes.length, longest)
    own = measured_pair.read_inputs(wishes.inputs, subject.bindings, subject.config, longest) if wishes.inputs else None
    window, note = measured_pair.planned_window(subject)
    prompt, too_long = measured_pair.planned_prompt(subject, longest)
    seen = every_lookup(subject)
    vocabulary = int(subject.config.vocab_size)
    work = passes.make_work(subject.bindings, subject.config, window)
    if own is not None:
        own = replace(own, placed=work.placed or own.given_positions is not None)
    spread, few = (spread_ids(vocabulary, subject.elements, seen, few=few) for few in (False, True))
    work = replace(work, length=wishes.length, rows=wishes.batch, own=own, ids=spread, first_ids=few)
    work = replace(work, seconds=wishes.seconds(subject.elements), weights=subject.elements)
    work = replace(work, full=wishes.budget == math.inf, prompt=prompt)
    ids = {token for cell in work.cells for token in cell.tokens}
    fed = ""
    if len(ids) < vocabulary:
        fed = f"{len(ids)} of {vocabulary} ids went through the whole graph"
        fed += "" if seen is not None else ": no direct lookup of words is visible in the graph"
    structure, only = subject.structure, ""
    if structure.faults and subject.bindings.own_shape is not None:
        rows, tokens = subject.bindings.own_shape
        work = replace(
            work, own_shape=(rows, tokens, min(2, tokens - 1) if Role.MASK in subject.bindings.inputs else 0)
        )
        only, fed = f"only batches of {count(rows, 'row')} with {count(tokens, 'token')} were run", ""
    structure = replace(structure, notes=(*structure.notes, *filter(None, [note, too_long, fed, only])))
    with passes.LogitStore() as store:
        use, failed, tf32_failed = passes.run_sessions(subject, work, store)
        identity, numbers, embedding = passes.run_torch(subject, dtype, work, store)
        judged = judge(work, store, failed, subject.precision)
        tf32 = judge(work, store, tf32_failed, subject.precision, "tf32") if tf32_failed is not None else None
        stored = [*structure_gates(structure), *identity_gates(identity), *lookup_gates(seen), *embedding]
        gates = (*stored, *judged.gates())
        verdict, why = judged.verdict(gates, "rms_ratio")
        if only and all(gate.passed for gate in gates if gate.name != "structure"):
            structure = replace(structure, notes=(*structure.notes, "at this shape every other gate passed"))
        if verdict is Verdict.FAILED:
            likely = list(uncounted(judged.cases, subject.bindings))
            if not likely and all(gate.passed for gate in stored):
                likely = list(wrong_constant(subject, numbers))
            why = "; ".join(likely)
    rounded = None if tf32 is None else tf32.pools()
    seeds = tuple(sorted({cell.seed for cell in work.cells}))
    looked_up = None if seen is None else replace(seen, whole=len(ids))
    metrics = Metrics(*_precisions(subject, dtype), seeds, judged.pools(), rounded, looked_up)
    compared = {"structure": structure, "identity": identity, "gates": gates, "metrics": metrics}
    return _report(subject, use, work, judged, verdict, why, **compared)


def _precisions(subject: measured_pair.Subject, dtype: str) -> tuple[Precision, Precision]:
    """Return what computed the reference and the floor."""
    device = subject.torch_device
    return Precision(dtype, device=device), Precision(subject.precision, device=device)


def _report(
    subject: measured_pair.Subject, use: ProviderUse, work: passes.Work, judged: Judged, verdict: Verdict, reason: str,
    **more: Any,
) -> Parity:  # fmt: skip
    """Return the report: the verdict with its reason, the cases, what was fed, and ``more``."""
    if verdict is Verdict.NOT_RUN:
        source = subject.evidence.checkpoint.source
        again = call("export", source, out=OUT, precision="fp32")
        wider = Hint("export with a precision of a wider range: ", again, " or bf16")
        more["hint"] = wider if subject.precision == "float16" else call("inspect", source, depth="full")
    more |= {"cases": judged.cases, "histograms": tuple(judged.histograms()), "fed": judged.fed(work)}
    return subject.report(verdict, provider=use, reason=reason, **more)


def stored_gates(path: str, evidence: Inspection, model: Reference) -> tuple[Identity, tuple[Gate, ...]]:
    """Return the gates that need no session: the graph's axes, and its weights bit for bit.

    ``model`` is the loaded checkpoint in the graph's precision. Raises what `run_parity` raises.
    """
    subject = measured_pair.open_subject(path, evidence, "cpu")
    identity = passes.identity_of(subject, model.unused, model)
    gates = (*structure_gates(subject.structure), *identity_gates(identity))
    return identity, (*gates, *embedding_gates(subject, model))


# Measure a quantised graph: its weights, its computation on its own weights, and its loss.


def run_quantised_parity(
    path: str,
    evidence: Inspection,
    provider: str = "auto",
    reference: str = "auto",
    text: str | None = None,
    reference_device: str = "cpu",
    budget: float | None = None,
) -> Parity:
    """Return the parity of the quantised graph at ``path`` with the checkpoint of ``evidence``.

    ``text`` is a file of text or token ids for the perplexity. ``budget`` is in seconds, for the batches. The other
    arguments and errors are those of `run_parity`. Raises `RefusedError` for a graph without quantised weights, or with
    operators that tieconv cannot dequantise.
    """
    subject, dequantised = _open_quantised(path, evidence, provider)
    try:
        subject = subject.with_reference_on(reference_device)
        dtype = measured_pair.reference_dtype(subject, reference)
        if subject.structure.faults:
            return _unmeasured(subject)
        with passes.LogitStore() as store, temporary_directory() as folder:
            work = passes.make_work(subject.bindings, subject.config)
            work = replace(work, seconds=math.inf if budget is None else budget, weights=subject.elements)
            prompt, _ = measured_pair.planned_prompt(subject, passes.longest_sequence(subject.config))
            work = replace(work, full=budget == math.inf, prompt=prompt)
            return _measured_quantised(subject, dequantised, dtype, text, work, store, Path(folder))
    except NotRunError as stop:
        return subject.not_run(stop)


def stored_quantised_gates(path: str, evidence: Inspection, model: Reference) -> tuple[Identity, tuple[Gate, ...]]:
    """Return the gates of a quantised graph that need no session. ``model`` is the loaded checkpoint."""
    subject, dequantised = _open_quantised(path, evidence, "cpu")
    compared = quantised_weights.compare(dequantised, model)
    identity = float_identity(subject, model, compared)
    weights = Quantised(compared.weights, compared.unmatched)
    return identity, (*structure_gates(subject.structure), weight_gate(weights), *identity_gates(identity))


def _open_quantised(
    path: str, evidence: Inspection, provider: str
) -> tuple[measured_pair.Subject, list[quantised_weights.Matrix]]:
    measured_pair.check_model(evidence.checkpoint)
    graph = read_graph(measured_pair.graph_file(path))
    unknown = next(quantised_weights.unread(graph.model), "")
    dequantised = list(quantised_weights.matrices(graph.model))
    if unknown or not dequantised:
        why = unknown or "it has no quantised weight"
        hint = Hint("measure it without ", option("quantised"), ": ", call("parity", path, evidence.checkpoint.source))
        raise RefusedError(
            f"parity --quantised cannot measure {shown(graph.path)}: {shown(why)}",
            "give a graph with MatMulNBits, MatMulInteger or DequantizeLinear" if unknown else hint,
            "parity.quantised",
        )
    config, bindings = measured_pair.bound(graph, evidence.checkpoint)
    logits = graph.output(bindings.logits)
    precision = DTYPES.get(logits.dtype if logits is not None else "", "float32")  # in which the graph computes
    return measured_pair.Subject(graph, evidence, provider, precision, bindings, config), dequantised


def _measured_quantised(
    subject: measured_pair.Subject,
    dequantised: Sequence[quantised_weights.Matrix],
    dtype: str,
    text: str | None,
    work: passes.Work,
    store: passes.LogitStore,
    folder: Path,
) -> Parity:
    """Run the float reference, the graph, and torch on the graph's own weights. One model is in memory at a time."""
    identity, compared, tokens, nats, good_nats = _float_runs(subject, dequantised, text, work, store)
    model, use = _graph(subject, subject.graph.path)
    errors = passes.run_graph(model, work, store, "as it runs")
    lost = None if errors else mean_nats(tokens, model.logits)
    del model
    exact, name = quantised_weights.exact_copy(subject.graph.path, folder), "as it runs"
    if exact is not None:
        name = "graph"
        errors = passes.run_graph(_graph(subject, exact)[0], work, store, name)
    # Torch on the graph's dequantised weights is the reference and the floor of the usual gates.
    for precision, side in ((dtype, "reference"), (subject.precision, "floor")):
        torch_model = _loaded(subject, precision)
        quantised_weights.put(torch_model, compared.replaced)
        torch_model.move(subject.torch_device)
        passes.run_model(torch_model, work, store, side)
        del torch_model
    judged = judge(work, store, errors, subject.precision, name)
    ours, good = (_float_errors(work, store, name) for name in ("as it runs", "good"))
    quantised = Quantised(
        compared.weights,
        compared.unmatched,
        _loss(ours, lost),
        _loss(good, good_nats),
        _perplexity(nats),
        0 if tokens is None else tokens.predicted,
        "" if tokens is None else tokens.source,
    )
    stored = (*structure_gates(subject.structure), weight_gate(quantised), *identity_gates(identity))
    gates = (*stored, *judged.gates(), *loss_gates(quantised, good.positions))
    verdict, why = judged.verdict(gates, "kl")
    metrics = Metrics(*_precisions(subject, dtype), SEEDS, judged.pools())
    stated = {"structure": subject.structure, "identity": identity, "gates": gates, "metrics": metrics}
    return _report(subject, use, work, judged, verdict, why, quantised=quantised, **stated)


def _float_runs(
    subject: measured_pair.Subject,
    dequantised: Sequence[quantised_weights.Matrix],
    text: str | None,
    work: passes.Work,
    store: passes.LogitStore,
) -> tuple[Identity, quantised_weights.Compared, Tokens | None, float | None, float | None]:
    """Run the float reference, then the same with the weights of the known-good quantiser.

    Returns its weights beside the graph's, the tokens of the text, and nats a token of both.
    """
    model = _loaded(subject, "float32")  # the loss is far larger than the rounding of float32
    compared = quantised_weights.compare(dequantised, model)
    identity = float_identity(subject, model, compared)
    tokens = _tokens(subject, model, work.kind, text)
    model.move(subject.torch_device)
    nats = mean_nats(tokens, model.logits)
    passes.run_model(model, work, store, "float")
    model.move(CPU)
    quantised_weights.put(model, compared.replaced, good=True)
    model.move(subject.torch_device)
    with rounded_activations(model.model, compared.parameters, quantised_weights.activation_forms(subject.graph.path)):
        good = mean_nats(tokens, model.logits)
        passes.run_model(model, work, store, "good")
    return identity, compared, tokens, nats, good


def _loaded(subject: measured_pair.Subject, dtype: str) -> Reference:
    return load(subject.root, subject.evidence.checkpoint.config_values, dtype)


def _graph(subject: measured_pair.Subject, path: str) -> tuple[GraphModel, ProviderUse]:
    session = open_session(path, subject.provider, precision=subject.precision)
    return GraphModel(session, subject.bindings, subject.window), session.use


def _float_errors(work: passes.Work, store: passes.LogitStore, name: str) -> Errors:
    """Return the errors of the logits stored as ``name`` against those of the float reference."""
    errors = Errors()
    for cell in work.cells:
        reference, logits = store.get(("float", cell)), store.get((name, cell))
        if reference is not None and logits is not None and reference.shape == logits.shape:
            errors.add(reference, logits)
    return errors


def _loss(errors: Errors, lost: float | None) -> Loss | None:
    figures = errors.figures()
    return Loss(figures.top1, figures.kl, _perplexity(lost)) if errors.positions else None


def _perplexity(lost: float | None) -> float | None:
    return None if lost is None else math.exp(lost) if lost < _MOST_NATS else math.inf


# Define the conditions of the verdict on a quantised graph.

BLOCK_LIMIT = 2.5
"""Limit of a block's RMS error divided by that of round to nearest. A zero point that is off by one measures 3.5."""
KL_LIMIT = 2.0
"""Limit of the KL divergence divided by that of the known-good quantiser."""
LEAST_KL = 1e-4
"""A divergence up to which the ratio is not judged, in nats."""
LEAST_NATS = 0.02
"""Nats a token that the graph may lose in any case."""
_MOST_NATS = 700.0
"""Nats a token from which a perplexity is infinite and passes no gate; NaN is too."""


def weight_gate(figures: Quantised) -> Gate:
    """Return the gate that every quantised matrix is a correct quantisation of a parameter."""
    if figures.unmatched:
        name = shown(figures.unmatched[0])
        explanation = f"the quantised matrix {name} is similar to no tensor of the checkpoint"
        return Gate("quantised_weights", math.inf, BLOCK_LIMIT, False, explanation)
    worst = max(figures.weights, key=lambda weight: math.inf if math.isnan(weight.worst_block) else weight.worst_block)
    weights = count(len(figures.weights), "quantised weight")
    explanation = f"largest error of a block of {weights} divided by that of round to nearest: {shown(worst.name)}"
    return limited("quantised_weights", worst.worst_block, BLOCK_LIMIT, explanation)


def loss_gates(figures: Quantised, positions: int) -> Iterator[Gate]:
    """Yield the gates of top-1 agreement, KL divergence and perplexity, each beside the known-good quantiser's.

    Yields nothing if one of the two was not measured.
    """
    graph, good = figures.graph, figures.known_good
    if graph is None or good is None:
        return
    changed, of_good = 1 - graph.top1, 1 - good.top1
    # At most twice the known-good share of changed tokens, or three standard deviations above it.
    spread = 3 * math.sqrt(max(of_good * (1 - of_good), 1 / positions) / positions)
    limit = max(2 * of_good, of_good + spread)
    explanation = f"share of other top-1 tokens than the float reference's; known-good quantiser: {of_good:.3f}"
    yield limited("top1", changed, limit, explanation)
    limit = max(KL_LIMIT * good.kl, LEAST_KL)
    explanation = f"KL divergence from the float reference in nats; known-good quantiser: {good.kl:.2e}"
    yield limited("kl", graph.kl, limit, explanation)
    if graph.perplexity is None or good.perplexity is None or figures.reference_perplexity is None:
        return
    float_nats = math.log(figures.reference_perplexity)
    ours, theirs = (math.log(loss) - float_nats for loss in (graph.perplexity, good.perplexity))
    limit = max(KL_LIMIT * theirs, LEAST_NATS)
    explanation = (
        f"nats lost a token on {count(figures.tokens, 'token')} ({shown(figures.text)}): "
        f"perplexity {graph.perplexity:.4g}, "
        f"known-good quantiser {good.perplexity:.4g}, float {figures.reference_perplexity:.4g}"
    )
    yield limited("perplexity", ours, limit, explanation)


_BLOCK, _LARGEST = 32, 127


@contextmanager
def rounded_activations(model: Any, parameters: Collection[str], forms: Collection[str]) -> Iterator[None]:
    """Round the inputs of the modules whose weights are ``parameters``, for the duration of the context.

    ``forms`` has ``tensor`` for the rounding of DynamicQuantizeLinear, and ``block`` for that of MatMulNBits with int8
    activations.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    rounded = _by_tensor if "tensor" in forms else _by_block

    def hook(_module: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (rounded(inputs[0]), *inputs[1:])

    hooks = [
        module.register_forward_pre_hook(hook)
        for module in (model.modules() if forms else ())
        if names.get(id(getattr(module, "weight", None))) in parameters and not hasattr(module, "embedding_dim")
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


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


def float_identity(subject: measured_pair.Subject, model: Reference, compared: quantised_weights.Compared) -> Identity:
    """Compare the float weights bit for bit. Quantised tensors and their scales are left out."""
    identity = passes.identity_of(subject, model.unused, model)
    quantised = compared.parameters
    named = list(model.model.named_parameters(remove_duplicate=False))
    sides = {id(parameter): name for name, parameter in named}
    left_out = quantised | {name for name, parameter in named if sides[id(parameter)] in quantised}
    scales: set[str] = set()
    for node in subject.graph.model.graph.all_nodes():
        index = _SCALE_INPUTS.get(node.op_type)
        if index is not None:
            scales |= {str(value.name) for value in node.inputs[index : index + 1] if value is not None}
    lost = tuple(
        entry
        for entry in identity.lost
        # a checkpoint of the base model lacks the first part of a name
        if not any(f".{name}".endswith(f".{entry.name}") or entry.name.endswith(f".{name}") for name in left_out)
    )
    unexplained = tuple(entry for entry in identity.unexplained if entry.name not in scales)
    return replace(identity, lost=lost, unexplained=unexplained)


_SCALE_INPUTS = {"MatMulNBits": 2, "GatherBlockQuantized": 2, "DequantizeLinear": 1}

# Get the tokens on which perplexity is measured: of a file that the user gives, else sampled from the reference.

WINDOW = 64
"""Most tokens that the model reads at once."""
WINDOWS = 16
"""Most windows of a file. They are taken at even distances."""
_SAMPLES, _SAMPLED = 8, 32


@identity_record
class Tokens:
    """Windows of token ids (n × length), and a phrase that says where they are from."""

    ids: torch.Tensor
    source: str

    @property
    def predicted(self) -> int:
        """The number of tokens that are predicted."""
        return int(self.ids.shape[0] * (self.ids.shape[1] - 1))


def _tokens(subject: measured_pair.Subject, model: Reference, kind: Kind, text: str | None) -> Tokens | None:
    """Return the tokens for the perplexity, or ``None`` if the model does not predict the next token."""
    config = subject.config
    if kind not in (Kind.CACHED, Kind.PLAIN):
        if text is not None:
            problem = f"{shown(subject.evidence.checkpoint.source)} does not predict the next token of a text"
            raise RefusedError(problem, Hint("leave out ", option("text")), "parity.text")
        return None
    longest = position_limit(config) or 1 << 30
    if text is not None:
        return read_tokens(text, subject.root, int(config.vocab_size), longest)
    # Without a text, the reference itself generates sequences at random, with a fixed seed.
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, int(config.vocab_size), (_SAMPLES, 1), generator=generator)
    for _ in range(min(_SAMPLED, longest) - 1):
        logits = model.logits(Batch(ids, torch.ones_like(ids)))[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.double().softmax(-1), 1, generator=generator)], 1)
    return Tokens(ids, "tokens sampled from the reference")


def mean_nats(tokens: Tokens | None, logits: Callable[[Batch], Any]) -> float | None:
    """Return the mean negative log-likelihood of the tokens after the first of each window, in nats."""
    if tokens is None:
        return None
    nats = 0.0
    for window in tokens.ids[:, None]:
        log = logits(Batch(window, torch.ones_like(window)))[:, :-1].double().log_softmax(-1)
        nats += float(-log.gather(-1, window[:, 1:, None]).sum())
    return nats / tokens.predicted


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
    problem = f"{shown(path)} {why}"
    return UnreadableError(problem, Hint("give a text, or ids as .npy or .json: ", option(text=FILE)), "parity.text")
