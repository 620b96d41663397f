"""Plan an export: a graph with the tied matrix stored once, measured before the final rename."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.graph_plan import ExportOptions, ExportOutcome, ExportPlan, HeadForm
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import Checkpoint, Layout
from tieconv.checkpoint.value_type import Printed, quoted, record
from tieconv.checkpoint.write_plan import LinkFile, Plan, Promises, plan_rows
from tieconv.errors import RefusedError
from tieconv.execute.staging import sweep
from tieconv.execute.target import Target, check_fresh, check_place, destination, removal_notes
from tieconv.execute.tree import free_bytes, no_space, writing
from tieconv.onnx.child import Progress
from tieconv.onnx.export import layouts, sample_inputs
from tieconv.onnx.export.carry_out import run, tied_names
from tieconv.onnx.export.layouts import LAYOUTS, STEM, published, read_model
from tieconv.onnx.parity.bindings import DECODER, ENCODER, Kind
from tieconv.onnx.parity.graph_file import EMBEDDING
from tieconv.onnx.parity.measured_pair import check_model
from tieconv.onnx.quantise import BLOCK, Scheme, check_scheme, head_note
from tieconv.onnx.write.plan import HELD_TWICE
from tieconv.reference.model import architecture, cache_argument, load_config, planned_encoder_input
from tieconv.reference.packages import BY_TRANSFORMERS, need
from tieconv.text import Hint, option, shown, size

_WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".data", ".onnx_data", ".gguf", ".h5", ".msgpack", ".npz",
    ".index.json", ".distcp", ".metadata", ".pkl", ".tflite", ".mlmodel", ".xml",
)  # fmt: skip
OURS = (EMBEDDING, "model.onnx", "model.onnx.data", "export.json", "parity.json", "parity.html")
"""Files that the export makes. A source file with such a name is not copied."""
_AXES = {
    Kind.CACHED: (
        "input_ids [batch, sequence]",
        "attention_mask [batch, past + sequence]",
        "position_ids [batch, sequence]",
        "past_key_values [batch, heads, past, width] of each layer",
    ),
    Kind.PLAIN: ("input_ids [batch, sequence]", "attention_mask [batch, sequence]"),
    Kind.MASKED: ("input_ids [batch, sequence]", "attention_mask [batch, sequence]"),
    Kind.SEQ2SEQ: (
        "input_ids [batch, sequence]",
        "attention_mask [batch, sequence]",
        "decoder_input_ids [batch, decoder sequence]",
    ),
}


@record
class PlannedExport(Printed):
    """A plan of an export. ``print`` shows it as the command does."""

    plan: ExportPlan
    evidence: Inspection
    layout: layouts.Layout

    def __str__(self) -> str:
        from tieconv.reporters.text.parity_text import render_export

        return render_export(self.outcome())

    def outcome(self, out: str | Path | None = None, *, overwrite: bool = False) -> ExportOutcome:
        """Return the plan without executing it. With ``overwrite`` its notes have the files that ``out`` loses."""
        removed = () if out is None else removal_notes(*self._final(out, overwrite)[:2])
        return ExportOutcome(replace(self.plan, notes=(*self.plan.notes, *removed)))

    def check(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Raise every refusal that is known before writing, as `execute` would."""
        final = self._check(out, overwrite)
        needed = self.plan.bytes_written + self.plan.bytes_linked
        with writing(final.name, final.parent, 0):
            if needed > (free := free_bytes(final.parent)):
                raise no_space(final.name, needed, free)

    def clear(self, out: str | Path) -> None:
        """Remove what a killed run left beside ``out``, so that `check` does not refuse it."""
        sweep(self._final(out, False)[2])

    def _final(self, out: str | Path, overwrite: bool) -> tuple[Plan, Target, Path]:
        """Return the plan in the form that the checks of OUT read, OUT, and its absolute path."""
        checkpoint = self.evidence.checkpoint
        links = tuple(LinkFile(name, self.plan.copied.get(name, 0)) for name in (*self.plan.copied, *self._made()))
        whole = replace(checkpoint, layout=Layout.SINGLE)
        plan = Plan("export", whole, checkpoint.states, (), (), (), links, (), Promises(None, ()), "")
        target = Target(Path(out), overwrite=overwrite)
        return plan, target, destination(plan, target)

    def _made(self) -> Iterator[str]:
        """Yield the files that the export makes."""
        stems = (ENCODER, DECODER) if self.plan.kind == Kind.PAIR else (STEM,)
        yield from map(str, published(self.layout, stems).values())
        yield from ("export.json", *self.layout.made, *((EMBEDDING,) if self.plan.options.inputs_embeds else ()))
        yield from ("parity.json", "parity.html") if self.plan.options.parity else ()

    def _check(self, out: str | Path, overwrite: bool) -> Path:
        """Return OUT as an absolute path. Raise if it cannot be written or the model has changed."""
        plan, target, final = self._final(out, overwrite)
        with writing(final.name, final.parent, 0):
            check_place(plan, target)
            check_fresh(plan)
        return final

    def execute(
        self, out: str | Path, *, overwrite: bool = False, progress: Progress = lambda stage, done, whole: None
    ) -> ExportOutcome:
        """Export beside ``out``, verify the graph, measure it, and rename it to ``out``.

        If parity fails or does not run, ``out`` is unchanged. The outcome is then not executed, and holds the report.
        On any other failure, raises a `TieconvError` and leaves ``out`` unchanged.
        """
        final, plan = self._final(out, overwrite)[2], self.outcome(out, overwrite=overwrite).plan

        def check(first: bool) -> None:
            self.check(out, overwrite=overwrite) if first else self._check(out, overwrite)

        outcome = run(plan, self.evidence, self.layout, final, check, overwrite=overwrite, progress=progress)
        return replace(outcome, output=str(out)) if outcome.executed else outcome

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.plan.source), "export", f"writes about {size(self.plan.bytes_written)}"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.plan.notes)


def plan_export(evidence: Inspection, options: ExportOptions) -> PlannedExport:
    """Return the plan that exports the model of ``evidence``.

    With ``options.inputs_embeds``, the graphs are an embedding and a decoder of its rows. A decoder of images or sound
    is always exported so.

    Raises `UnreadableError` if transformers cannot load the model. Raises `RefusedError` for a finding of level error,
    because loaders then disagree on the model. Raises `RefusedError` if the cache holds other states than keys and
    values. Raises `RefusedError` if a tied matrix is too small, or if the program of ``options.layout`` cannot load the
    graph.
    """
    checkpoint = evidence.checkpoint
    check_model(checkpoint)
    _check_consistent(evidence)
    name = architecture(checkpoint.config_values, checkpoint.source)
    kind = _kind(name, checkpoint.config_values, one_graph=options.quantise is not None)
    parts = rows_only(name, checkpoint, kind, wanted=options.inputs_embeds)
    check_cache(name, checkpoint.root, checkpoint.source)
    # Fused operators include the head's FusedMatMul.
    form = HeadForm.FUSED if options.fuse else options.head_form
    options = replace(options, head_form=form, inputs_embeds=parts is not None)
    precision, scheme = options.precision, None if options.quantise is None else Scheme(options.quantise)
    made = LAYOUTS[options.layout]
    layout = made(read_model(checkpoint, name, made), precision, scheme)
    if parts is not None:
        check_options(options.layout, scheme)
    layout.check(kind)
    inputs = pair_inputs(name, checkpoint.root) if kind is Kind.PAIR else AXES if parts else _AXES[kind]
    if kind is Kind.PLAIN and "position_ids" in signature(_class(name).forward).parameters:
        inputs += ("position_ids [batch, sequence]",)
    if not layout.renames and kind is Kind.CACHED:  # the exporter's names
        inputs = tuple(text.replace("past_key_values", cache_argument(_class(name))) for text in inputs)
    # All files are copied but weights, and files with a name that the export writes.
    document = checkpoint.config
    companions = {**checkpoint.companions, **({document.name: len(document.text.encode())} if document else {})}
    unwanted = {*OURS, *layout.made, *checkpoint.others}
    copied = {n: size for n, size in companions.items() if not n.lower().endswith(_WEIGHTS) and n not in unwanted}
    tied = tied_names(evidence)
    shared = form if tied and not scheme else None
    for names in tied if shared else ():
        _check_large(names, checkpoint)
    notes = [*_notes(options, shared), *layout.notes(kind)]
    if scheme is not None:
        check_scheme(scheme, precision, options.fuse, checkpoint.source)
        notes.append(head_note(scheme))
    plan = ExportPlan(
        source=checkpoint.source,
        architecture=name,
        kind=str(kind),
        options=options,
        inputs=inputs,
        tied=tied,
        copied=copied,
        bytes_read=sum(record.nbytes for record in checkpoint.tensors.values()),
        bytes_written=estimated_bytes(evidence, precision, scheme, parts.tensors if parts else ()),
        notes=tuple(notes),
        left_out=parts.modules if parts else (),
    )
    return PlannedExport(plan, evidence, layout)


def _check_large(names: Collection[str], checkpoint: Checkpoint) -> None:
    records = [checkpoint.tensors[name] for name in names if name in checkpoint.tensors]
    if all(len(record.shape) == 1 or record.elements >= MIN_ELEMENTS for record in records):
        return
    # onnxscript folds the transpose of a small head into a second matrix.
    problem = f"{shown(records[0].name)} has {records[0].elements:,} numbers; export stores a tied matrix once from "
    hint = "export a model with a larger vocabulary or hidden size"
    raise RefusedError(f"{problem}{MIN_ELEMENTS:,} numbers on", hint, "export.small")


def _notes(options: ExportOptions, shared: HeadForm | None) -> list[str]:
    """Return what the user should know before the export. ``shared`` is the form of a tied head."""
    notes = [HELD_TWICE] if shared is HeadForm.TRANSPOSE else []
    if options.precision == "bf16" and options.parity and not options.provider.startswith("cuda"):
        notes.append("ONNX Runtime's CPU provider cannot run bf16: without a GPU use --no-parity")
    if not options.parity:
        notes.append("the logits will not be measured; the weights are still compared bit for bit")
    return notes


def _check_consistent(evidence: Inspection) -> None:
    fault = next((finding for finding in evidence.findings if finding.level is Level.ERROR), None)
    if fault is None:
        return
    remedy = fault.remedy.command if fault.remedy else f"tieconv explain {fault.rule}"
    problem = f"{shown(evidence.checkpoint.source)} must be repaired before the export: {fault.rule}: {fault.message}"
    raise RefusedError(problem, Hint("repair it first: ", remedy), "export.finding")


def _kind(name: str, config: Mapping[str, object], *, one_graph: bool) -> Kind:
    """Return what the graph will compute according to the config. The loaded class decides later."""
    cls = _class(name)
    if config.get("is_encoder_decoder") is True:
        return sample_inputs.encoder_decoder_kind(cls, one_graph=one_graph) if cls is not None else Kind.SEQ2SEQ
    if "MaskedLM" in name:
        return Kind.MASKED
    return sample_inputs.causal_kind(cls) if cls is not None else Kind.CACHED


def _class(name: str) -> Any:
    """Return the class of the installed transformers, or ``None``."""
    return getattr(need("transformers", "onnx,torch", "exporting"), name, None)


def estimated_bytes(
    evidence: Inspection, precision: str, quantise: Scheme | None, left_out: Collection[str] = ()
) -> int:
    """Return the bytes of the graph's data: every tensor once in the precision, tied ones together.

    The tensors ``left_out`` are not exported. A quantised matrix has ``bits`` for an element, and a scale for each
    block.
    """
    tensors = evidence.checkpoint.tensors
    again = {name for names in tied_names(evidence) for name in [n for n in names if n in tensors][1:]}
    width = 4 if precision == "fp32" else 2
    once = [record for name, record in tensors.items() if name not in again and name not in left_out]
    if quantise is None:
        return sum(record.elements * width for record in once)
    coded = quantise.bits / 8 + (width / BLOCK if quantise is not Scheme.DYNAMIC else 0)
    return sum(int(record.elements * (coded if len(record.shape) > 1 else width)) for record in once)


_STATES = "decoder: encoder_hidden_states [batch, encoder sequence, width]"
_DECODER = "decoder: input_ids [batch, sequence]"
_MORE = (
    "decoder: past_key_values [batch, heads, past, width] of each layer, for decoder and encoder",
    "decoder: use_cache_branch [1], false for the first tokens",
)


def pair_inputs(name: str, directory: str) -> tuple[str, ...]:
    """Return the inputs of the class ``name``, whose config is in ``directory``.

    Raises `RefusedError` if the encoder reads images or sound in a shape that the config does not fix.
    """
    cls = _class(name)
    reads = planned_encoder_input(cls, directory) if sample_inputs.reads_features(cls, Kind.PAIR) else None
    if reads is None:
        encoder = "encoder: input_ids and attention_mask [batch, encoder sequence]"
        return encoder, _DECODER, f"{_STATES}, encoder_attention_mask", *_MORE
    axes = ", ".join(map(str, ("batch", *reads.shape)))
    return f"encoder: {reads.name} [{axes}]", _DECODER, _STATES, *_MORE


# Decide whether a model is exported as an embedding and a decoder of `inputs_embeds`.

AXES = (
    "embed_tokens.onnx: input_ids [batch, sequence]",
    "model.onnx: inputs_embeds [batch, sequence, width]",
    "attention_mask [batch, past + sequence]",
    "position_ids [batch, sequence], with M-RoPE [3, batch, sequence]",
    "past_key_values [batch, heads, past, width] of each layer",
)


def rows_only(name: str, checkpoint: Checkpoint, kind: Kind, *, wanted: bool) -> sample_inputs.LeftOut | None:
    """Return what is not exported, or ``None`` if one graph reads token ids.

    ``name`` is the class of the model, and ``wanted`` says that the user wants a decoder of `inputs_embeds`. Raises
    `RefusedError` for a class whose decoder cannot be exported so.
    """
    cls = _class(name)
    if cls is None or not hasattr(cls, "forward"):
        return None
    images = bool(sample_inputs.modality_input(cls))
    if not wanted and (not images or sample_inputs.reads_features(cls, kind)):
        return None
    pair = sample_inputs.encoder_decoder_kind(cls, one_graph=False) if kind is Kind.SEQ2SEQ else kind
    if kind is Kind.SEQ2SEQ and sample_inputs.reads_features(cls, pair):
        read = sample_inputs.modality_input(cls)
        problem = f"{shown(name)} reads {read}: --quantise supports only encoder-decoders of token ids"
        raise RefusedError(problem, Hint("export without ", option("quantise")), "export.quantise")
    if kind is not Kind.CACHED or not sample_inputs.reads_embeddings(cls):
        sample_inputs.check_inputs(cls)
        raise sample_inputs.refused(name, "is not a decoder that takes inputs_embeds")
    return sample_inputs.left_out_parts(cls, checkpoint.root, checkpoint.tensors, images=images)


def check_options(layout: str, quantise: Scheme | None) -> None:
    """Check that no option asks for one graph. Raises `RefusedError`."""
    if layout == "plain" and quantise is None:
        return
    name = option("layout" if layout != "plain" else "quantise")
    problem = f"{name} supports only one graph, but this export writes a decoder of inputs_embeds and its embedding"
    raise RefusedError(problem, Hint("export without ", name), "export.embeds")


_STATE_INPUTS = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "recurrent"})
"""Names of layers with a separate state in transformers' configs (`cache_utils`, and older configs)."""
_LAYERS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer"})
"""transformers' cache layers that hold keys and values, and nothing else."""


def check_cache(name: str, directory: str, source: str) -> None:
    """Refuse the class ``name`` if it keeps a state between tokens that a graph has no input for.

    ``directory`` holds its config; ``source`` is the model as the user wrote it. Raises `RefusedError` with code
    ``export.cache``, which says the layer and its kind.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    where = _other_state(transformers, load_config(directory), _class(name))
    if where:
        problem = f"{shown(source)}: {shown(name)} keeps another state than keys and values {where}"
        hint = Hint("export ", BY_TRANSFORMERS)
        raise RefusedError(f"{problem}, which export does not support", hint, "export.cache")


def _other_state(transformers: Any, config: Any, cls: Any) -> str:
    """Return the first layer with another state, with its kind and cache class; or the argument of a whole class."""
    try:
        caches = [type(layer).__name__ for layer in transformers.DynamicCache(config=config).layers]
    except (AttributeError, TypeError, ValueError):
        caches = []  # transformers builds no cache for this config: the loaded model decides
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    for index, (kind, layer) in enumerate(zip_longest(kinds, caches, fillvalue="")):
        cache = "" if layer in _LAYERS else layer
        if cache or kind in _STATE_INPUTS:
            return f"in layer {index} ({', '.join(filter(None, (kind, cache)))})"
    if getattr(cls, "_is_stateful", False) is not True:
        return ""
    # The class cannot go back to an earlier token.
    accepted = signature(cls.forward).parameters
    argument = next((name for name in ("cache_params", "state") if name in accepted), cache_argument(cls))
    return f"in every layer (argument {argument})"
