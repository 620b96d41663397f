"""Read the shards of a model whose index is missing or wrong, by their names and headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from tieconv.checkpoint.model_files import (
    BLOCKING,
    NUMBERED,
    OPENED,
    SEVERAL,
    TRAINING,
    TWO_FORMATS,
    Adapter,
    Caution,
    Checkpoint,
    Document,
    Files,
    FileState,
    Layout,
    Listing,
    weight_map,
)
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.errors import RefusedError, TieconvError, UnreadableError
from tieconv.formats import GGUF_SUFFIX, directory
from tieconv.formats.directory import CONFIG_LIMIT, Format, Model, Naming, checkpoint_of, not_alone, read_bytes
from tieconv.formats.gguf import GGUF
from tieconv.formats.limits import INDEX_SUFFIX
from tieconv.formats.safetensors import SAFETENSORS, read_weight_file
from tieconv.formats.strict_json import loads, read
from tieconv.formats.torch import TORCH
from tieconv.text import Hint, call, count, shown

INDEX_ODD = "index.odd"
"""Caution: the index is not strict JSON, but tieconv could read it."""
INDEX_UNREADABLE = "index.unreadable"
"""Caution: the index could not be read."""

ONE_FILE = "reindex.one-file"
"""The code of the refusal to index a model of one file."""

_INDEXED: tuple[Model, ...] = (SAFETENSORS, TORCH)
"""Formats with shards and an index, in the order in which loaders look for them."""
_DIFFUSERS = "diffusion_pytorch_model"
"""Prefix of diffusers shards. diffusers names the index after the shards; other loaders expect a fixed name."""


@record
class _Set:
    """Numbered shards that belong together: ``prefix``-NNNNN-of-``total``."""

    prefix: str
    total: int
    shards: Mapping[int, str]

    @property
    def missing(self) -> tuple[str, ...]:
        suffix = NUMBERED.fullmatch(next(iter(self.shards.values())))
        end = suffix["suffix"] if suffix else ""
        numbers = (number for number in range(1, self.total + 1) if number not in self.shards)
        return tuple(f"{self.prefix}-{number:05d}-of-{self.total:05d}{end}" for number in numbers)


def read_shards(listing: Listing, files: Files) -> Checkpoint:
    """Read the sharded model that ``listing`` names. ``index`` is ``None`` if no index parses.

    The shards are the numbered files, the shards that tieconv added, and the files that the index lists. Raises
    `RefusedError` for a model of one file, and if the set of shards is ambiguous. Raises `UnreadableError` for a
    malformed shard.
    """
    if PEFT.claims(listing):
        raise RefusedError(f"{shown(listing.source)} is a PEFT adapter and has no index", NEXT_STEP, ONE_FILE)
    model = next((model for model in _INDEXED if model.claims(listing)), SAFETENSORS)
    naming = model.naming
    name = _index_name(naming, listing)
    document, cautions = _read_index(files, name) if name in listing.top else (None, ())
    members, stale = _members(naming, listing, document)
    weights = tuple(_read_one(model, files, shard) for shard in members)
    stored = {tensor.name for file in weights for tensor in file.tensors}
    if any(tensor.name not in stored for shard in stale for tensor in _read_one(model, files, shard).tensors):
        _refuse_two_sets(listing)  # the stale set holds a tensor that the complete one lacks
    named = [*(file.name for file in weights), *([name] if name in listing.top else [])]
    read = checkpoint_of(listing, files, Layout.SHARDED, naming.format, weights, named)
    return replace(read, index=document, cautions=cautions, others=others(model, listing, files)[0])


def stale_index(listing: Listing, files: Files, error: UnreadableError) -> UnreadableError:
    """Return the error for an index that lists a missing shard, after a look at the shards beside it.

    A save that wrote other shards and no index leaves an index of an earlier save. If the stored shards hold every
    tensor of the index, the hint is reindex. If not, return ``error``.
    """
    try:
        stored = read_shards(listing, files)
    except TieconvError:
        return error
    tensors = weight_map(stored.index)
    if stored.index is None or not tensors or not tensors.keys() <= stored.tensors.keys():
        return error
    return UnreadableError(
        f"{shown(stored.index.name)} is stale: it lists shards that are missing. Other shards store all "
        f"{count(len(tensors), 'tensor')} of the index",
        Hint("rebuild the index from the shards: ", call("reindex", listing.source)),
        error.code,
    )


def is_one_file(listing: Listing, files: Files) -> bool:
    """Return whether MODEL is or holds one weight file, which needs no index. Reads no header."""
    naming = next((model for model in _INDEXED if model.claims(listing)), SAFETENSORS).naming
    try:
        name = _index_name(naming, listing)
        _members(naming, listing, _read_index(files, name)[0] if name in listing.top else None)
    except RefusedError as error:
        return error.code == ONE_FILE
    return False


def outside(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the weight files and indexes in the model's directory that the model does not use."""
    naming = _naming(checkpoint)
    return tuple(
        name for name in checkpoint.companions if "/" not in name and (naming.is_weights(name) or naming.is_index(name))
    )


def index_name(checkpoint: Checkpoint) -> str:
    """Return the file name of the index, which may not exist yet."""
    naming = _naming(checkpoint)
    indices = [name for name in checkpoint.states if naming.is_index(name)]
    if indices:
        return indices[0]
    matches = (NUMBERED.fullmatch(file.name) for file in checkpoint.files)
    match = next((match for match in matches if match), None)
    if match is None or not match["prefix"].startswith(_DIFFUSERS):
        return naming.index
    return f"{match['prefix']}{match['suffix']}{INDEX_SUFFIX}"


def _naming(checkpoint: Checkpoint) -> Naming:
    return next(model.naming for model in _INDEXED if model.name == checkpoint.format)


def _read_one(model: Model, files: Files, name: str) -> WeightFile:
    """Read the header of a shard. Raises `RefusedError` for a torch file that is a training checkpoint."""
    file, cautions = model.read_one(files, name)
    for caution in cautions:
        if caution.code in (TRAINING, SEVERAL):
            raise RefusedError(f"{shown(name)}: {caution.message}", BLOCKING[SEVERAL], caution.code)
    return file


def _index_name(naming: Naming, listing: Listing) -> str:
    if listing.named and naming.is_index(listing.named):
        return listing.named
    if listing.named:
        problem = f"{shown(listing.named)} is a single file and has no index"
        raise RefusedError(problem, "give the model's directory", ONE_FILE)
    indexes = [entry for entry in listing.top if naming.is_index(entry)]
    return naming.index if naming.index in indexes or not indexes else indexes[0]


def _read_index(files: Files, name: str) -> tuple[Document | None, tuple[Caution, ...]]:
    """Read the index strictly, or leniently if that fails. Return ``None`` and a caution if both fail."""
    data = read_bytes(files, name, directory.LIMIT)
    try:
        value = directory.read_value(data, name)
    except UnreadableError as strict:
        try:
            value = read(data, name, limit=directory.LIMIT)
        except UnreadableError as error:
            return None, (Caution(INDEX_UNREADABLE, error.message),)
        return Document(name, data.decode("utf-8"), value), (Caution(INDEX_ODD, strict.message),)
    return Document(name, data.decode("utf-8"), value), ()


def _members(naming: Naming, listing: Listing, document: Document | None) -> tuple[list[str], list[str]]:
    """Return the shards of the model, and the shards of an older, incomplete set that they must replace."""
    stored = [entry for entry in listing.top if naming.is_weights(entry)]
    entries = set(weight_map(document).values())
    named = entries & set(stored)
    shards_of_set: dict[tuple[str, int, str], dict[int, str]] = {}
    for name in stored:
        if match := NUMBERED.fullmatch(name):
            key = (match["prefix"], int(match["total"]), match["suffix"])
            shards_of_set.setdefault(key, {})[int(match["number"])] = name
    sets = [_Set(prefix, total, shards) for (prefix, total, _), shards in shards_of_set.items()]
    numbered = _numbered_set(listing, sets, entries)
    if numbered is None:
        if not named or (naming.single in stored and not entries <= {naming.single}):
            _refuse_one_file(naming, listing, stored)
        return sorted(named), []
    stale: set[str] = set()
    if entries and not named & set(numbered.shards.values()):  # the index lists an stale set
        stale = {name for shards in sets if shards is not numbered for name in shards.shards.values()}
    else:
        # Refuse a set with missing shards. An index that parses may omit a shard, because a re-tie can empty it.
        for missing in numbered.missing:
            if missing in entries or not weight_map(document):
                who = f"{shown(listing.source)} needs the shard"
                raise directory.absent_shard(who, missing, "reindex.absent-shard")
    beside = re.compile(rf"{re.escape(numbered.prefix)}-head(-\d+)?\.\w+")
    members = named - stale | set(numbered.shards.values()) | {entry for entry in stored if beside.fullmatch(entry)}
    return sorted(members), sorted(stale)


def _numbered_set(listing: Listing, sets: list[_Set], entries: set[str]) -> _Set | None:
    """Return the set that the index ``entries`` list, or the only complete one if the listed one lacks a shard."""
    if len(sets) < 2:
        return next(iter(sets), None)
    listed = [shards for shards in sets if entries & set(shards.shards.values())]
    if len(listed) == 1 and not entries.intersection(listed[0].missing):
        return listed[0]
    complete = [shards for shards in sets if not shards.missing]
    if len(listed) == 1 and not complete:
        return listed[0]
    if len(listed) > 1 or len(complete) != 1:
        _refuse_two_sets(listing)
    return complete[0]


def _refuse_two_sets(listing: Listing) -> NoReturn:
    problem = f"{shown(listing.source)} holds shards of more than one model"
    raise RefusedError(problem, "move the shards of the other model to another directory", "reindex.two-sets")


def _refuse_one_file(naming: Naming, listing: Listing, stored: list[str]) -> NoReturn:
    reason = f"{shown(stored[0])} is a single file and needs no index" if stored else f"it holds no {naming.noun}"
    hint = Hint("split it into shards: ", call("convert", listing.source, to=naming.format, max_shard_size="5GB"))
    raise RefusedError(f"{shown(listing.source)} has no shards to index: {reason}", hint, ONE_FILE)


# Handle a directory with weights in several formats: which one loaders prefer, and which files remain.

_WHOLE_MODELS: tuple[Format, ...] = (SAFETENSORS, TORCH, GGUF)
"""Formats that hold a whole model, in the order in which transformers prefers them."""


def preferred(claims: Sequence[Format], listing: Listing) -> Format:
    """Return the format of ``claims`` to read.

    That is the first one, unless only the torch files have names that transformers looks for.
    """
    first = claims[0]
    if first not in _WHOLE_MODELS or listing.named or _is_found(first, listing):
        return first
    held = TORCH in claims and holds_model(TORCH, listing) and any(map(TORCH.naming.is_weights, listing.top))
    return TORCH if held else first


def _is_found(candidate: Format, listing: Listing) -> bool:
    """Return whether transformers finds the files by their names."""
    naming = candidate.naming if isinstance(candidate, Model) else None
    return naming is not None and not {naming.single, naming.index}.isdisjoint(listing.top)


def others(chosen: Format, listing: Listing, files: Files) -> tuple[dict[str, FileState], tuple[Caution, ...]]:
    """Return the files of other formats that hold a whole model, with their states, and a caution about them."""
    if chosen not in _WHOLE_MODELS:
        return {}, ()
    whole = replace(listing, named=None)
    if listing.named and not listing.named.endswith(INDEX_SUFFIX):
        # A caution if the directory of the file ``listing.named`` may hold another model.
        again = any(kind is not chosen and holds_model(kind, whole) for kind in _WHOLE_MODELS)
        return {}, ((not_alone(listing.named),) if again else ())
    present = [kind for kind in _WHOLE_MODELS if kind is chosen or holds_model(kind, whole)]
    taken = preferred(present, whole)
    present.sort(key=lambda kind: kind is not taken)
    names = sorted(name for kind in present if kind is not chosen for name in _files(kind, whole, files))
    return {name: files.state(name) for name in names}, (_caution(chosen, present),) if names else ()


def twins(chosen: Format, listing: Listing, files: Files) -> tuple[WeightFile, ...]:
    """Return the headers of the torch files beside safetensors. Empty if they are remote or unreadable."""
    whole = replace(listing, named=None)
    if chosen is not SAFETENSORS or not holds_model(TORCH, whole) or hasattr(files, "client"):
        return ()
    try:
        return TORCH.read(whole, files).files
    except UnreadableError:
        return ()


def holds_model(candidate: Format, listing: Listing) -> bool:
    """Return whether MODEL holds files of this format that loaders look for. A stray `.pt` file does not count."""
    if candidate is TORCH:
        return not {TORCH.naming.single, TORCH.naming.index}.isdisjoint(listing.top)
    return candidate.claims(listing)


def _caution(chosen: Format, present: Sequence[Format]) -> Caution:
    """Return the caution that the weights of two formats may be two models."""
    rest = " and ".join(kind.name for kind in present if kind is not chosen)
    first, *later = (kind.name for kind in present)
    return Caution(
        TWO_FORMATS,
        f"the directory holds weights as {chosen.name} and as {rest}: transformers loads {first}. "
        f"Other loaders may load {' and '.join(later)}, which may be a different model",
    )


def _files(candidate: Format, listing: Listing, files: Files) -> set[str]:
    if candidate is TORCH:
        return _named(TORCH.naming, listing, files)
    if candidate is SAFETENSORS:
        naming = SAFETENSORS.naming
        return {name for name in listing.top if naming.is_weights(name) or naming.is_index(name)}
    return {name for name in listing.top if name.endswith(GGUF_SUFFIX)}


def _named(naming: Naming, listing: Listing, files: Files) -> set[str]:
    """Return the usual file names, the numbered shards and the shards of the index. Stray files are left out."""
    stem, _, suffix = naming.single.rpartition(".")
    shard = re.compile(rf"{re.escape(stem)}-(\d{{5}}-of-\d{{5}}|head(-\d+)?)\.{suffix}")
    usual = {name for name in listing.top if name in (naming.single, naming.index) or shard.fullmatch(name)}
    entries = weight_map(_read_index(files, naming.index)[0] if naming.index in usual else None).values()
    return usual | {name for name in listing.top if name in entries and naming.is_weights(name)}


# Read a PEFT adapter: `adapter_config.json` and the tensors that it adds to a base model. Read only.
#
# For a module that the adapter changes, it stores tensors such as `base_model.model.<module>.lora_A.weight`. A module
# that the adapter replaces is stored whole, under its usual name. Source: peft 0.21 (`PeftConfigMixin`,
# `save_peft_model_state_dict`).

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
OTHER_WEIGHTS = "adapter_model.bin"
NEXT_STEP = "untie or retie the base model, then load the adapter on it"


def _claims_adapter(listing: Listing) -> bool:
    if CONFIG not in listing.top:
        return False
    if listing.named:
        return listing.named in (CONFIG, WEIGHTS, OTHER_WEIGHTS)
    # A model with an adapter beside it counts as a model. Trainer files beside an adapter do not.
    if WEIGHTS in listing.top or OTHER_WEIGHTS in listing.top:
        sharded = (n.is_weights(name) and re.search(n.shard, name) for n in _NAMINGS for name in listing.top)
        return not {*OPENED} & {*listing.top} and not any(sharded)
    return not any(naming.is_weights(name) or naming.is_index(name) for naming in _NAMINGS for name in listing.top)


def _read_adapter(listing: Listing, files: Files) -> Checkpoint:
    name = _weights(listing)
    value = loads(read_bytes(files, CONFIG, CONFIG_LIMIT), CONFIG, limit=CONFIG_LIMIT, lenient=True)
    weights, cautions = _read(files, name)
    read = checkpoint_of(listing, files, Layout.SINGLE, "peft", (weights,), (CONFIG, name))
    cautions = (*_two_formats(listing), *cautions)
    return replace(read, cautions=cautions, adapter=adapter_of(value), read_only=NEXT_STEP)


_NAMINGS = (SAFETENSORS.naming, TORCH.naming)


def _weights(listing: Listing) -> str:
    """Return the weight file that PEFT loads, or that MODEL names."""
    if listing.named in (WEIGHTS, OTHER_WEIGHTS):
        return listing.named
    for name in (WEIGHTS, OTHER_WEIGHTS):
        if name in listing.top:
            return name
    problem = f"{shown(listing.source)} is a PEFT adapter without {WEIGHTS} or {OTHER_WEIGHTS}"
    raise UnreadableError(problem, "save it again with save_pretrained", "peft.no-weights")


def _two_formats(listing: Listing) -> tuple[Caution, ...]:
    if listing.named in (WEIGHTS, OTHER_WEIGHTS) or not {WEIGHTS, OTHER_WEIGHTS} <= set(listing.top):
        return ()
    message = f"the directory holds {WEIGHTS} and {OTHER_WEIGHTS}, which may differ: PEFT loads the first"
    return (Caution("layout.two-formats", message),)


def _read(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    size = files.state(name).size
    if name == WEIGHTS:
        return read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name), ()
    from tieconv.formats.torch.reader import read_torch_file  # few adapters are pickles

    return read_torch_file(lambda count, offset: files.pread(name, count, offset), size, name)


def adapter_of(value: Mapping[str, object]) -> Adapter:
    """Return what the content of `adapter_config.json` says about the adapter."""
    mapping = value.get("auto_mapping")
    base_class = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    base = _text(value.get("base_model_name_or_path"))
    targets, saved = _texts(value.get("target_modules")), _texts(value.get("modules_to_save"))
    # PEFT takes one list of rows for the embedding, or a list for each module.
    indices = value.get("trainable_token_indices") or value.get("token_indices")
    by_module = indices if isinstance(indices, Mapping) else {"": indices}
    rows = {
        module: tuple(row for row in entries if isinstance(row, int) and not isinstance(row, bool))
        for module, entries in by_module.items()
        if isinstance(entries, list)
    }
    trained = tuple((module, ids) for module, ids in rows.items() if ids)
    tied = value.get("ensure_weight_tying") is True
    return Adapter(_text(value.get("peft_type")), base, _text(base_class), targets, saved, tied, trained)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


PEFT = Format("peft", _claims_adapter, _read_adapter)
