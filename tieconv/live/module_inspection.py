"""Inspect a module in memory: the report of its parameters, and the findings about the file that a save writes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tieconv.architectures.stored_names import known_names
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Finding, Remedy
from tieconv.checkpoint.inspection import LIVE, Depth, Inspection, LiveModel, State
from tieconv.checkpoint.model_files import Adapter, Checkpoint, Document, FileState, Layout
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.checks import run_checks
from tieconv.checks.adapters import WRAPPER, part_of
from tieconv.formats.shards import adapter_of
from tieconv.inspection import inspect_checkpoint
from tieconv.live import is_peft, unwrapped
from tieconv.live.live_tensors import (
    LiveTensor,
    StorageReader,
    capture,
    capture_state,
    lay_out,
    shared_elements,
    shared_objects,
    with_local_shards,
)
from tieconv.live.save_pretrained import FileTensor, SavedNames, can_save, file_names, keep_names

if TYPE_CHECKING:
    from tieconv.loaders.interface import Consumer

DIRECTORY = "DIR"
"""The placeholder in commands for the directory that `save_pretrained` writes."""
_FILE = "model.safetensors"
READ_ONLY = "call save_pretrained, then give the directory"
"""The hint of a refusal to write a model in memory."""


@record
class Names:
    """The names that the user gave for the input embedding and the output head, and the depth."""

    depth: Depth
    embed: str | None
    head: str | None


def inspect_module(
    module: Any,
    depth: Depth = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
    chosen: tuple[Consumer, ...] = (),
) -> Inspection:
    """Return the evidence about a module in memory. Reads no values on the meta device, and gathers no shards.

    Findings and predictions are about the file that `save_pretrained` would write. For a module that it cannot save,
    they are about the tensors in memory. Raises `RefusedError` for a module whose parameters FSDP1 flattened.
    """
    model = unwrapped(module)
    names = Names(depth, embed, head)
    if is_peft(model):
        return _with_adapter(model, names, chosen)
    return inspect_tensors(model, capture(model), names, chosen)


def inspect_tensors(
    model: Any, tensors: tuple[LiveTensor, ...], names: Names, chosen: tuple[Consumer, ...] = ()
) -> Inspection:
    """Return the evidence about the captured ``tensors`` of a model."""
    saves = can_save(model)
    in_file = file_names(model, tensors) if saves else tuple(FileTensor(entry.name, entry.name) for entry in tensors)
    file, reader = lay_out(tensors)
    checkpoint = _checkpoint(model, _renamed(file, in_file))
    by_name = {entry.name: entry for entry in tensors}
    in_memory_by_name = {entry.name: by_name[entry.source] for entry in in_file if entry.source}
    evidence = _inspected(checkpoint, reader, names, in_memory_by_name, _accessors(model, tensors))
    saved_names = keep_names(model, tensors) if saves else SavedNames(tuple(by_name))
    written = _written(model, tensors, saved_names) if saves and not saved_names.refusal else None
    live = _live(model, tensors, saved_names, written)
    judged = evidence
    if written is not None:
        saved = replace(
            checkpoint,
            source=DIRECTORY,
            format="safetensors",
            read_only="",
            files=(replace(_renamed(file, written), name=_FILE, metadata={"format": "pt"}, storages=()),),
            states={_FILE: FileState(0, 0, file.size, 0)},
        )
        sources = {entry.name: by_name[entry.source] for entry in written if entry.source}
        judged = _inspected(saved, reader, names, sources, _accessors(model, tensors))
    if not chosen:
        return replace(evidence, live=live, findings=_in_memory(run_checks(replace(judged, live=live)), evidence))
    from tieconv.loader_remedies import helpful  # imports the planners
    from tieconv.loaders import predict

    judged = replace(judged, consumers=predict(judged, chosen))
    findings = _in_memory(helpful(judged, chosen, run_checks(replace(judged, live=live))), evidence)
    return replace(evidence, live=live, consumers=judged.consumers, findings=findings)


def _inspected(
    checkpoint: Checkpoint,
    reader: StorageReader,
    names: Names,
    tensors: Mapping[str, LiveTensor],
    accessors: tuple[str | None, str | None],
) -> Inspection:
    """Return the evidence. If a tied name has no values to read, no values are compared."""
    embed, head = names.embed, names.head
    evidence = inspect_checkpoint(checkpoint, reader, Depth.HEADER, embed=embed, head=head)
    if evidence.family.knowledge is not Knowledge.TABLE and not (embed or head) and all(accessors):
        embed, head = accessors
        evidence = inspect_checkpoint(checkpoint, reader, Depth.HEADER, embed=embed, head=head)
    played = {*known_names(evidence.family), *(member.name for tie in evidence.ties for member in tie.members)}
    unread = {name for name in checkpoint.tensors if name not in tensors or tensors[name].unread}
    depth = Depth.CANDIDATES if unread and names.depth is Depth.FULL else names.depth
    shapes = {checkpoint.tensors[name].shape for name in played if name in checkpoint.tensors}
    alike = {name for name in unread if checkpoint.tensors[name].shape in shapes}
    if depth is not Depth.HEADER and not alike and unread.isdisjoint(played):
        evidence = inspect_checkpoint(checkpoint, reader, depth, embed=embed, head=head)
    return with_local_shards(evidence, tensors)


def _checkpoint(model: Any, file: WeightFile) -> Checkpoint:
    return Checkpoint(
        source=f"{type(model).__name__} in memory",
        root="",
        layout=Layout.SINGLE,
        format=LIVE,
        files=(file,),
        config=_config(model),
        read_only=READ_ONLY,
    )


def _config(model: Any) -> Document | None:
    """Return the config as `save_pretrained` writes it."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_json_string"):
        return None
    value = json.loads(config.to_json_string(use_diff=True))
    value["architectures"] = [type(model).__name__.removeprefix("FSDP")]
    return Document("config.json", json.dumps(value, indent=2), value)


def _renamed(file: WeightFile, names: Iterable[FileTensor]) -> WeightFile:
    """Return the weight file with its tensors under the names of ``names``. Computed tensors have no bytes yet."""
    by_name = {entry.name: entry for entry in file.tensors}
    end = file.size
    records: list[TensorRecord] = []
    for name in names:
        stored = by_name.get(name.source)
        if stored is not None:
            records.append(replace(stored, name=name.name))
            continue
        span = ByteRange(file.name, end, end + _size(name))
        records.append(TensorRecord(name.name, _dtype_name(name), name.shape, span))
        end = span.end
    return replace(file, tensors=tuple(sorted(records, key=lambda entry: entry.range.start)), size=end)


def _size(tensor: FileTensor) -> int:
    elements = 1
    for side in tensor.shape:
        elements *= side
    return elements * tensor.width


def _dtype_name(tensor: FileTensor) -> str:
    from tieconv.formats.torch.pickle_stack import DTYPES

    name = str(tensor.dtype).removeprefix("torch.")
    return DTYPES[name].name if name in DTYPES else name.upper()


def _written(model: Any, tensors: Sequence[LiveTensor], saved_names: SavedNames) -> tuple[FileTensor, ...]:
    names = frozenset(saved_names.names)
    return file_names(model, [entry for entry in tensors if entry.name in names])


def _live(
    model: Any, tensors: tuple[LiveTensor, ...], saved_names: SavedNames, written: tuple[FileTensor, ...] | None
) -> LiveModel:
    return LiveModel(
        class_name=type(model).__name__,
        one_object=shared_objects(tensors),
        one_storage=shared_elements(tensors),
        unread=tuple((entry.name, entry.unread) for entry in tensors if entry.unread),
        saves=can_save(model),
        written=tuple(sorted(entry.name for entry in written or ())),
        left_out=saved_names.left_out,
        refusal=saved_names.refusal,
    )


def _accessors(model: Any, tensors: Iterable[LiveTensor]) -> tuple[str | None, str | None]:
    """Return the names of input embedding and output head that the module's own methods give."""
    return tuple(_weight_name(model, method, tensors) for method in _METHODS)  # type: ignore[return-value]  # two methods


_METHODS = ("get_input_embeddings", "get_output_embeddings")


def _weight_name(model: Any, method: str, tensors: Iterable[LiveTensor]) -> str | None:
    try:
        part = getattr(model, method)()
    except (AttributeError, NotImplementedError, TypeError):
        return None
    paths = (path for path, submodule in model.named_modules(remove_duplicate=False) if submodule is part)
    names = {entry.name for entry in tensors}
    return next((f"{path}.weight" for path in paths if f"{path}.weight" in names), None) if part is not None else None


def _with_adapter(model: Any, names: Names, chosen: tuple[Consumer, ...]) -> Inspection:
    """Return the evidence about the adapter of a model of PEFT, with that about its base model in memory."""

    base_model = model.get_base_model()
    base = inspect_tensors(base_model, base_tensors(model), names)
    parts = adapter_tensors(model)
    file, reader = lay_out(parts)
    checkpoint = replace(_checkpoint(model, file), adapter=adapter(model), config=None)
    evidence = replace(inspect_checkpoint(checkpoint, reader, Depth.HEADER), base=base)
    if chosen:
        from tieconv.loaders import predict

        evidence = replace(evidence, consumers=predict(evidence, chosen))
    live = LiveModel(
        class_name=type(model).__name__,
        one_object=base.live.one_object if base.live else (),
        one_storage=base.live.one_storage if base.live else (),
        saves=True,
        written=tuple(sorted(entry.name for entry in parts)),
    )
    findings = tuple(_all_findings(evidence, base))
    return replace(evidence, live=live, findings=_in_memory(findings, evidence))


def _all_findings(evidence: Inspection, base: Inspection) -> Iterator[Any]:
    yield from run_checks(evidence)
    yield from (finding for finding in base.findings if finding.rule.startswith("TIE"))


_AFTER = 'model.save_pretrained("DIR"), then: '


def _in_memory(findings: Iterable[Finding], evidence: Inspection) -> tuple[Finding, ...]:
    """Return the findings with remedies that are statements about the model, not commands on files."""
    return tuple(replace(finding, remedy=_statement(finding, evidence)) for finding in findings)


def _statement(finding: Finding, evidence: Inspection) -> Remedy | None:
    remedy = finding.remedy
    if remedy is None:
        return None
    verb = remedy.action.verb if remedy.action is not None else ""
    if verb == "retie":
        return _retie(evidence, remedy)
    if verb.startswith("set-tie ") and verb.split()[1] in ("true", "false"):
        return Remedy("; ".join(_flags(evidence, verb.split()[1].title())), remedy.safe)
    return Remedy(f"{_AFTER}{remedy.command}", remedy.safe)


def _retie(evidence: Inspection, remedy: Remedy) -> Remedy:
    """Return the calls that tie the pair. `tie_weights` needs the flag; a shared parameter needs only the flag."""
    tie = evidence.word_tie
    shared = tie is not None and all(member.state in _SHARED for member in tie.members)
    flags = [] if tie is not None and tie.declared else [*_flags(evidence, "True")]
    calls = [] if shared else ["model.tie_weights()"]
    return Remedy("; ".join([*flags, *calls]), remedy.safe or shared)


_SHARED = (State.CANONICAL, State.ALIASED)


def _flags(evidence: Inspection, value: str) -> Iterator[str]:
    """Yield an assignment for each level of the config with the tie flag."""
    paths = [entry.path for entry in evidence.config.declared] or ["tie_word_embeddings"]
    return (f"model.config.{path} = {value}" for path in paths)


_REPLACED = ".modules_to_save."
_LAYERS = (".base_layer.", ".original_module.")
_DELTAS = (".trainable_tokens_", ".token_adapter.")


def base_tensors(model: Any) -> tuple[LiveTensor, ...]:
    """Return the tensors of the base model under their names without PEFT's layers."""
    state = model.state_dict(keep_vars=True)
    tensors = capture_state(model, state)
    return tuple(replace(tensor, name=name) for tensor in tensors if (name := _base_name(tensor.name)))


def _base_name(name: str) -> str:
    """Return a parameter's name in the base model; empty for a part of the adapter."""
    if part_of(name) or _REPLACED in name or any(word in name for word in _DELTAS):
        return ""
    for layer in _LAYERS:
        name = name.replace(layer, ".")
    return name.removeprefix(WRAPPER)


def adapter_tensors(model: Any) -> tuple[LiveTensor, ...]:
    """Return the tensors that PEFT saves for the active adapter, under their names in the file."""
    from peft import get_peft_model_state_dict

    base = model.get_base_model()
    tables = (base.get_input_embeddings(), base.get_output_embeddings())
    with warnings.catch_warnings():  # PEFT reports what it adds to the file; the names show it
        warnings.simplefilter("ignore")
        state = get_peft_model_state_dict(
            model,
            state_dict=model.state_dict(keep_vars=True),
            adapter_name=model.active_adapter,
            save_embedding_layers=any(hasattr(table, "base_layer") for table in tables),
        )
    return capture_state(model, state)


def adapter(model: Any) -> Adapter:
    """Return the config of the active adapter."""
    config = model.peft_config[model.active_adapter].to_dict()
    values = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    return adapter_of({**values, "peft_type": str(getattr(values.get("peft_type"), "value", values.get("peft_type")))})
