"""Inspect a module in memory: its parameters become a checkpoint once, which is then inspected as every other.

Findings are about the file that `save_pretrained` of transformers 5 would write. It is predicted without writing it.
Source: transformers 5.23, `PreTrainedModel.save_pretrained`, `remove_tied_weights_from_state_dict` and
`revert_weight_conversion`. The tests save real models of many classes and compare the names.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import prod
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
from tieconv.live import is_peft, live_tensors, unwrapped
from tieconv.text import listed, shown

if TYPE_CHECKING:
    from tieconv.loaders.interface import Consumer

READ_ONLY = "call save_pretrained, then give the directory"
"""The hint of a refusal to write a model in memory."""
_FILE = "model.safetensors"


@record
class Captured:
    """A module as a checkpoint. ``tensors`` are those in memory, by their names in the checkpoint.

    ``accessors`` are the names of input embedding and output head that the module's own methods give.
    """

    checkpoint: Checkpoint
    tensors: Mapping[str, live_tensors.LiveTensor]
    reader: live_tensors.StorageReader
    accessors: tuple[str | None, str | None]


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
    evidence_of = partial(_evidence, depth=depth, embed=embed, head=head)
    if is_peft(model):
        base = _judged(model.get_base_model(), base_tensors(model), evidence_of)
        # The tensors that PEFT saves for the active adapter, under their names in the file.
        from peft import get_peft_model_state_dict

        whole = model.get_base_model()
        tables = () if adapter(model).token_rows else (whole.get_input_embeddings(), whole.get_output_embeddings())
        with warnings.catch_warnings():  # PEFT reports what it adds to the file; the names show it
            warnings.simplefilter("ignore")
            state = get_peft_model_state_dict(
                model,
                state_dict=model.state_dict(keep_vars=True),
                adapter_name=model.active_adapter,
                save_embedding_layers=any(hasattr(table, "base_layer") for table in tables),
            )
        parts = live_tensors.capture_state(model, state)
        file, reader = live_tensors.lay_out(parts)
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
        of_base = (finding for finding in base.findings if finding.rule.startswith("TIE"))
        return replace(evidence, live=live, findings=_in_memory((*run_checks(evidence), *of_base), evidence))
    return _judged(model, live_tensors.capture(model), evidence_of, chosen)


def _judged(
    model: Any,
    tensors: tuple[live_tensors.LiveTensor, ...],
    evidence_of: Callable[[Captured], Inspection],
    chosen: tuple[Consumer, ...] = (),
) -> Inspection:
    """Return the evidence about the captured ``tensors`` of a model, with what loaders make of the file of a save."""
    memory, saved, live = captured(model, tensors)
    evidence = evidence_of(memory)
    judged = evidence if saved is None else evidence_of(saved)
    if not chosen:
        return replace(evidence, live=live, findings=_in_memory(run_checks(replace(judged, live=live)), evidence))
    from tieconv.loader_remedies import helpful  # imports the planners
    from tieconv.loaders import predict

    judged = replace(judged, consumers=predict(judged, chosen))
    findings = _in_memory(helpful(judged, chosen, run_checks(replace(judged, live=live))), evidence)
    return replace(evidence, live=live, consumers=judged.consumers, findings=findings)


def _evidence(view: Captured, depth: Depth, embed: str | None, head: str | None) -> Inspection:
    """Return the evidence. If a tied name has no values to read, no values are compared."""
    checkpoint, tensors = view.checkpoint, view.tensors
    evidence = inspect_checkpoint(checkpoint, view.reader, Depth.HEADER, embed=embed, head=head)
    if evidence.family.knowledge is not Knowledge.TABLE and not (embed or head) and all(view.accessors):
        embed, head = view.accessors
        evidence = inspect_checkpoint(checkpoint, view.reader, Depth.HEADER, embed=embed, head=head)
    played = {*known_names(evidence.family), *(member.name for tie in evidence.ties for member in tie.members)}
    unread = {name for name in checkpoint.tensors if name not in tensors or tensors[name].unread}
    depth = Depth.CANDIDATES if unread and depth is Depth.FULL else depth
    shapes = {checkpoint.tensors[name].shape for name in played if name in checkpoint.tensors}
    alike = {name for name in unread if checkpoint.tensors[name].shape in shapes}
    if depth is not Depth.HEADER and not alike and unread.isdisjoint(played):
        evidence = inspect_checkpoint(checkpoint, view.reader, depth, embed=embed, head=head)
    return live_tensors.with_local_shards(evidence, tensors)


# Turn a module into checkpoints: one of its tensors in memory, and one of the file that a save writes.


def captured(model: Any, tensors: tuple[live_tensors.LiveTensor, ...]) -> tuple[Captured, Captured | None, LiveModel]:
    """Return the model in memory, the same as it would be saved (``None``: no save), and what a save does."""
    quantised = getattr(model, "hf_quantizer", None) is not None
    has_method = hasattr(model, "save_pretrained") and hasattr(getattr(model, "config", None), "to_diff_dict")
    saves, by_name = has_method and not quantised, {entry.name: entry for entry in tensors}
    file, reader = live_tensors.lay_out(tensors)
    accessors = _accessors(model, tensors)

    def view(names: Iterable[FileTensor], **saved: Any) -> Captured:
        checkpoint = _checkpoint(model, _renamed(file, names))
        if saved:  # a save writes one file without shared storages
            only = replace(checkpoint.files[0], name=_FILE, metadata={"format": "pt"}, storages=())
            checkpoint = replace(checkpoint, files=(only,), **saved)
        sources = {entry.name: by_name[entry.source] for entry in names if entry.source}
        return Captured(checkpoint, sources, reader, accessors)

    memory = view(file_names(model, tensors) if saves else tuple(FileTensor(name, name) for name in by_name))
    saved_names = keep_names(model, tensors) if saves else SavedNames(tuple(by_name))
    written: tuple[FileTensor, ...] | None = None
    if saves and not saved_names.refusal:
        names = frozenset(saved_names.names)
        written = file_names(model, [entry for entry in tensors if entry.name in names])
    live = LiveModel(
        class_name=type(model).__name__,
        one_object=live_tensors.shared_objects(tensors),
        one_storage=live_tensors.shared_elements(tensors),
        unread=tuple((entry.name, entry.unread) for entry in tensors if entry.unread),
        saves=saves,
        written=tuple(sorted(entry.name for entry in written or ())),
        left_out=saved_names.left_out,
        refusal=saved_names.refusal,
    )
    if written is None:
        return memory, None, live
    states = {_FILE: FileState(0, 0, file.size, 0)}
    return memory, view(written, source="DIR", format="safetensors", read_only="", states=states), live


def _checkpoint(model: Any, file: WeightFile) -> Checkpoint:
    """Return the file as the only one of a model, with the config as `save_pretrained` writes it."""
    config: Any = getattr(model, "config", None)
    document = None
    if hasattr(config, "to_json_string"):
        value = json.loads(config.to_json_string(use_diff=True))
        value["architectures"] = [type(model).__name__.removeprefix("FSDP")]
        document = Document("config.json", json.dumps(value, indent=2), value)
    source = f"{type(model).__name__} in memory"
    return Checkpoint(source, "", Layout.SINGLE, LIVE, (file,), config=document, read_only=READ_ONLY)


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
        span = ByteRange(file.name, end, end + prod(name.shape) * name.width)
        records.append(TensorRecord(name.name, live_tensors.dtype_name(name.dtype), name.shape, span))
        end = span.end
    return replace(file, tensors=tuple(sorted(records, key=lambda entry: entry.range.start)), size=end)


def _accessors(model: Any, tensors: Iterable[live_tensors.LiveTensor]) -> tuple[str | None, str | None]:
    """Return the names of input embedding and output head that the module's own methods give."""
    names = {entry.name for entry in tensors}
    tables: list[str | None] = []
    for method in ("get_input_embeddings", "get_output_embeddings"):
        try:
            part = getattr(model, method)()
        except (AttributeError, NotImplementedError, TypeError):
            part = None
        paths = (path for path, submodule in model.named_modules(remove_duplicate=False) if submodule is part)
        tables.append(next((f"{path}.weight" for path in paths if f"{path}.weight" in names), None))
    return tables[0], tables[1]


# Say a remedy as statements about the model, not as commands on files.

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
        # `tie_weights` needs the flag; a shared parameter needs only the flag.
        tie = evidence.word_tie
        shared = tie is not None and all(member.state in (State.CANONICAL, State.ALIASED) for member in tie.members)
        flags = [] if tie is not None and tie.declared else [*_flags(evidence, "True")]
        calls = [] if shared else ["model.tie_weights()"]
        return Remedy("; ".join([*flags, *calls]), remedy.safe or shared)
    if verb.startswith("set-tie ") and verb.split()[1] in ("true", "false"):
        return Remedy("; ".join(_flags(evidence, verb.split()[1].title())), remedy.safe)
    return Remedy(f"{_AFTER}{remedy.command}", remedy.safe)


def _flags(evidence: Inspection, value: str) -> Iterator[str]:
    paths = [entry.path for entry in evidence.config.declared] or ["tie_word_embeddings"]
    return (f"model.config.{path} = {value}" for path in paths)


# Separate a model of PEFT: the tensors of its base model, and those of its adapter.

_LAYERS = (".token_adapter.base_layer.", ".base_layer.", ".original_module.")
_OF_ADAPTER = (".modules_to_save.", ".trainable_tokens_")


def base_tensors(model: Any) -> tuple[live_tensors.LiveTensor, ...]:
    """Return the tensors of the base model under their names without PEFT's layers."""
    # prompt and prefix tuning leave the modules of the base model as they are
    wrapper = "base_model." if model.get_base_model() is model.base_model else WRAPPER
    tensors = live_tensors.capture_state(model, model.state_dict(keep_vars=True))
    return tuple(replace(tensor, name=name) for tensor in tensors if (name := _base_name(tensor.name, wrapper)))


def _base_name(name: str, wrapper: str) -> str:
    """Return a parameter's name in the base model; empty for a part of the adapter."""
    if part_of(name) or any(word in name for word in _OF_ADAPTER) or not name.startswith(wrapper):
        return ""
    for layer in _LAYERS:
        name = name.replace(layer, ".")
    return name.removeprefix(wrapper)


def adapter(model: Any) -> Adapter:
    """Return the config of the active adapter."""
    config = model.peft_config[model.active_adapter].to_dict()
    values = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    return adapter_of({**values, "peft_type": str(getattr(values.get("peft_type"), "value", values.get("peft_type")))})


# Predict what `save_pretrained` writes and leaves out.


@record
class SavedNames:
    """The names that a save keeps, those that it drops with the name that stays, and why it would fail."""

    names: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    refusal: str = ""


@record
class FileTensor:
    """A tensor under its name in the file. ``source`` is its name in memory, empty if the save computes it."""

    name: str
    source: str
    shape: tuple[int, ...] = ()
    dtype: object = None
    width: int = 0


def keep_names(module: Any, tensors: Sequence[live_tensors.LiveTensor]) -> SavedNames:
    """Return which of the names `save_pretrained` keeps: of names with one storage, one."""
    ignored = set(getattr(module, "_keys_to_ignore_on_save", None) or ())
    left_out = [(tensor.name, "") for tensor in tensors if tensor.name in ignored]
    saved = {tensor.name: tensor for tensor in tensors if tensor.name not in ignored}
    tied_keys = tuple(_tied_keys(module))
    for sharing in live_tensors.grouped((tensor.saved_storage, name) for name, tensor in saved.items()):
        tied = [name for name in sorted(sharing) if any(re.search(key, name) for key in tied_keys)]
        droppable = tied[: len(sharing) - 1]  # if the class lists all names of a storage, the final one stays
        for cluster in _clusters(saved[name] for name in sharing):
            names = sorted(tensor.name for tensor in cluster)
            rest = [name for name in names if name not in droppable]
            if len({(tensor.offset, live_tensors.extent(tensor)) for tensor in cluster}) > 1 or len(rest) > 1:
                reason = f"{listed(names)} share memory, and the class does not list them as tied"
                return SavedNames(tuple(saved), tuple(left_out), reason)
            left_out += [(name, rest[0] if rest else "") for name in names if name in droppable]
    dropped = {name for name, _ in left_out}
    written = [tensor for tensor in saved.values() if tensor.name not in dropped]
    refusal = _refused_config(module)
    # safetensors refuses tensors that are separate on the meta device and one in the offload storage.
    for sharing in live_tensors.grouped(
        (tensor.storage, tensor.name) for tensor in written if tensor.on_meta and not tensor.unread
    ):
        refusal = refusal or f"{listed(sorted(sharing))} are offloaded and share memory"
    return SavedNames(tuple(tensor.name for tensor in written), tuple(left_out), refusal)


def _refused_config(module: Any) -> str:
    """Return why the config refuses to be saved: `DbrxConfig` refuses a true flag."""
    validate = getattr(getattr(module, "config", None), "validate", None)
    if not callable(validate):
        return ""
    try:
        validate()
    except Exception as error:  # noqa: BLE001 - validators of configs raise any class
        lines = str(error).strip().splitlines()
        return f"the config is not valid: {shown(lines[-1].strip() if lines else type(error).__name__, 200)}"
    return ""


def _tied_keys(module: Any) -> Iterator[str]:
    """Yield the patterns of `_tied_weights_keys`, those of submodules with their path."""
    for path, submodule in module.named_modules():
        for key in getattr(submodule, "_tied_weights_keys", None) or ():
            yield f"{path}.{key}" if path else key


def _clusters(sharing: Iterable[live_tensors.LiveTensor]) -> Iterator[list[live_tensors.LiveTensor]]:
    """Yield the tensors of one storage whose bytes touch the same bytes: groups of two and more."""
    clusters: list[list[live_tensors.LiveTensor]] = []
    end = 0
    for tensor in sorted(sharing, key=lambda entry: (entry.offset, entry.offset + live_tensors.extent(entry))):
        if tensor.offset >= end:
            clusters.append([])
        clusters[-1].append(tensor)
        end = max(end, tensor.offset + live_tensors.extent(tensor))
    return (cluster for cluster in clusters if len(cluster) > 1)


def file_names(module: Any, tensors: Sequence[live_tensors.LiveTensor]) -> tuple[FileTensor, ...]:
    """Return the tensors under the names that the file gets: transformers 5 renames and splits some of them.

    The conversion runs on tensors without values. Where transformers cannot run it, the names stay.
    """
    import torch

    from tieconv.formats.torch.pickle_stack import TORCH_NAMES

    dtypes = {tensor.name: getattr(torch, TORCH_NAMES.get(tensor.dtype, ""), torch.uint8) for tensor in tensors}
    try:
        revert = import_module("transformers.core_model_loading").revert_weight_conversion
        blank = {t.name: torch.empty(t.shape, dtype=dtypes[t.name], device="meta") for t in tensors}
        sources = {id(value): name for name, value in blank.items()}
        renamed: Mapping[str, Any] = revert(module, dict(blank))
    except Exception:  # noqa: BLE001 - an older release, or operations of any model class; the names then stay
        return tuple(FileTensor(tensor.name, tensor.name) for tensor in tensors)
    return tuple(
        FileTensor(name, sources.get(id(value), ""), tuple(value.shape), value.dtype, value.element_size())
        for name, value in renamed.items()
    )
