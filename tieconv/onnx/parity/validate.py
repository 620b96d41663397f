"""Run the whole measurement: from graph, checkpoint and provider to a verdict with its evidence."""

from __future__ import annotations

from dataclasses import replace

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.parity import (
    Gate,
    Identity,
    Metrics,
    Parity,
    ProviderUse,
    Structure,
    Verdict,
    Vocabulary,
)
from tieconv.errors import NotRunError
from tieconv.onnx.parity.batches import SEEDS, spread_ids
from tieconv.onnx.parity.causes import uncounted, wrong_constant
from tieconv.onnx.parity.judge import identity_gates, judge, lookup_gates, structure_gates
from tieconv.onnx.parity.lookups import embedding_gates, every_lookup
from tieconv.onnx.parity.measured_pair import (
    Subject,
    Wishes,
    check_length,
    graph_file,
    open_subject,
    planned_window,
    read_inputs,
    reference_dtype,
)
from tieconv.onnx.parity.passes import LogitStore, identity_of, longest_sequence, make_work, run_sessions, run_torch
from tieconv.reference import Reference


def run_parity(
    path: str,
    evidence: Inspection,
    provider: str = "auto",
    reference: str = "auto",
    wishes: Wishes = Wishes(),
    reference_device: str = "cpu",
) -> Parity:
    """Return the parity of the graph at ``path`` with the checkpoint of ``evidence``.

    ``provider`` is ``auto``, ``cpu`` or ``cuda``; ``reference`` is ``auto``, ``float64`` or ``float32``. ``wishes``
    are more batches. ``reference_device`` is ``cpu``, or ``cuda`` for the GPU of ``provider``. The verdict is
    ``not_run`` if a provider is missing or leaves heavy nodes on the CPU. It is also ``not_run`` for a graph that is
    half of a model. Raises `UnreadableError` for a graph or checkpoint that cannot be read or fed.
    """
    try:
        subject = open_subject(path, evidence, provider)
    except NotRunError as stop:
        graph, use = graph_file(path), ProviderUse(provider)
        model = evidence.checkpoint.source
        return Parity(Verdict.NOT_RUN, graph, model, use, reason=stop.message, hint=stop.command_hint)
    structure = subject.structure
    try:
        subject = subject.with_reference_on(reference_device)
        dtype = reference_dtype(subject, reference)
        if structure.faults:
            return subject.report(Verdict.FAILED, structure=structure, gates=tuple(structure_gates(structure)))
        return _measured(subject, structure, dtype, wishes)
    except NotRunError as stop:
        use = ProviderUse(provider, stop.active, len(stop.fallback), fallback=stop.fallback)
        return subject.report(
            Verdict.NOT_RUN, provider=use, structure=structure, reason=stop.message, hint=stop.command_hint
        )


def _measured(subject: Subject, structure: Structure, dtype: str, wishes: Wishes) -> Parity:
    longest = longest_sequence(subject.config)
    check_length(subject, wishes.length, longest)
    own = read_inputs(wishes.inputs, subject.bindings, subject.config, longest) if wishes.inputs else None
    window, note = planned_window(subject)
    seen = every_lookup(subject)
    ids = spread_ids(int(subject.config.vocab_size), subject.elements, seen)
    structure = replace(structure, notes=(*structure.notes, *filter(None, [note, _fed_ids(subject, seen, ids)])))
    work = make_work(subject.bindings, subject.config, window, ids)
    if own is not None:
        own = replace(own, placed=work.placed or own.given_positions is not None)
    work = replace(work, length=wishes.length, rows=wishes.batch, own=own)
    with LogitStore() as store:
        sessions = run_sessions(subject, work, store)
        torch_runs = run_torch(subject, dtype, sessions.tokens, work, store)
        judged = judge(work, store, sessions.graph, subject.precision)
        tf32 = judge(work, store, sessions.tf32, subject.precision, "tf32") if sessions.tf32 is not None else None
        stored = (*structure_gates(structure), *identity_gates(torch_runs.identity), *lookup_gates(seen))
        stored = (*stored, *torch_runs.gates)
        gates = (*stored, *judged.gates())
        passed = _all_passed(gates)
        likely = list(uncounted(judged.cases, subject.bindings)) if not passed else []
        if not passed and not likely and all(gate.passed for gate in stored):
            likely = list(wrong_constant(subject, work, store, judged, torch_runs.numbers))
    return subject.report(
        Verdict.PASSED if passed else Verdict.FAILED,
        reason="; ".join(likely),
        provider=sessions.use,
        structure=structure,
        identity=torch_runs.identity,
        gates=gates,
        cases=judged.cases,
        metrics=Metrics(
            subject.torch_precision(dtype),
            subject.torch_precision(subject.precision),
            SEEDS,
            judged.pools(),
            None if tf32 is None else tf32.pools(),
            torch_runs.free,
            None if seen is None else replace(seen, whole=len(ids)),
        ),
        histograms=tuple(judged.histograms()),
    )


def _fed_ids(subject: Subject, seen: Vocabulary | None, ids: tuple[int, ...]) -> str:
    """Return a note if not every id went through the whole graph."""
    if len(ids) >= subject.config.vocab_size:
        return ""
    through = f"{len(ids)} of {subject.config.vocab_size} ids went through the whole graph"
    return through if seen is not None else f"{through}: no direct lookup of words is visible in the graph"


def stored_gates(path: str, evidence: Inspection, model: Reference) -> tuple[Identity, tuple[Gate, ...]]:
    """Return the gates that need no session: the graph's axes, and its weights bit for bit.

    ``model`` is the loaded checkpoint in the graph's precision. Raises what `run_parity` raises.
    """
    subject = open_subject(path, evidence, "cpu")
    identity = identity_of(subject, model.unused, model)
    gates = (*structure_gates(subject.structure), *identity_gates(identity))
    return identity, (*gates, *embedding_gates(subject, model))


def _all_passed(gates: tuple[Gate, ...]) -> bool:
    """Return whether every gate passed and logits were measured. Without a measurement there is no agreement."""
    return all(gate.passed for gate in gates) and any(gate.name == "rms_ratio" for gate in gates)
