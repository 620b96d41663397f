"""Read a model from its directory: one weight file, or shards and their index. All formats share this code."""

from __future__ import annotations

import ast
import json
import os
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from io import StringIO
from itertools import islice, takewhile

from tieconv.checkpoint.model_files import NOT_ALONE, Caution, Checkpoint, Document, Files, Layout, Listing
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats.json_text import BEHIND_STRINGS, LARGEST_MEMBER, Members
from tieconv.formats.limits import INDEX_SUFFIX, WINDOW, NameCount
from tieconv.formats.strict_json import collector_paused, loads, refuse
from tieconv.text import Hint, call, count, listed, path_word, shown

ReadOne = Callable[["Files", str], tuple[WeightFile, tuple[Caution, ...]]]
"""Reads the header of one weight file; returns it with cautions."""


@record
class Format:
    """One way to store a checkpoint.

    ``name`` is what `inspect` prints. ``claims`` returns whether MODEL has this format, judged by file names alone.
    ``read`` reads the checkpoint from its headers and documents, and raises `UnreadableError` for malformed input.
    """

    name: str
    claims: Callable[[Listing], bool]
    read: Callable[[Listing, Files], Checkpoint]


@record
class Model(Format):
    """A format of one or more weight files: their names, and the reader of one."""

    naming: Naming
    read_one: ReadOne

    @classmethod
    def of(cls, naming: Naming, read_one: ReadOne) -> Model:
        def read(listing: Listing, files: Files) -> Checkpoint:
            return read_model(naming, listing, files, read_one)

        return cls(naming.format, naming.claims, read, naming, read_one)


def read_model(naming: Naming, listing: Listing, files: Files, read_one: ReadOne) -> Checkpoint:
    """Read the checkpoint that ``listing`` names. Raises `UnreadableError` for malformed or ambiguous input."""
    weight_set = _find_weights(naming, listing, files)
    if hasattr(files, "prepare"):  # a remote source fetches the headers ahead
        files.prepare(weight_set.weights)
    pairs = [read_one(files, name) for name in weight_set.weights]
    weights = tuple(file for file, _ in pairs)
    cautions = [*weight_set.cautions, *(caution for _, file_cautions in pairs for caution in file_cautions)]
    if weight_set.index is not None or len(weights) > 1:
        cautions += index_cautions(weight_set, weights)
    config, config_cautions = _config(naming, listing, files, weight_set)
    cautions += config_cautions
    quantiser = read_config(files, HF_QUANT)[0] if config and HF_QUANT in listing.top else None
    documents = (weight_set.index, config, quantiser)
    named = [*weight_set.weights, *(document.name for document in documents if document)]
    cautions += scan(listing, files) if config else ()
    orphans, index = tuple(_readable(files, weight_set.orphans, read_one)), weight_set.index
    read = checkpoint_of(listing, files, weight_set.layout, naming.format, weights, named)
    return replace(read, config=config, quantiser=quantiser, index=index, cautions=tuple(cautions), orphans=orphans)


def checkpoint_of(
    listing: Listing, files: Files, layout: Layout, format: str, weights: tuple[WeightFile, ...], used: Iterable[str]
) -> Checkpoint:
    """Return the checkpoint of a listing, of which the files ``used`` were read. The others are companions."""
    states = {name: files.state(name) for name in used}
    others = {name: size for name, size in listing.entries.items() if name not in states}
    whole = Checkpoint(listing.source, listing.root, layout, format, weights, states=states)
    return whole if layout is Layout.FILE else replace(whole, companions=others, special=listing.special)


def _find_weights(naming: Naming, listing: Listing, files: Files) -> WeightSet:
    if listing.named and not naming.is_index(listing.named):
        cautions = (not_alone(listing.named),) if naming.index in listing.top else ()
        return WeightSet(Layout.FILE, (listing.named,), cautions=cautions)
    if listing.named:
        return _indexed(naming, listing, files, listing.named)
    for name in (naming.single, naming.index):
        require_regular(listing, files, name)
    stored = [entry for entry in listing.top if naming.is_weights(entry)]
    if naming.single in stored:
        if naming.index not in listing.top:
            return with_orphans(WeightSet(Layout.SINGLE, (naming.single,)), stored)

        weight_set = read_one_file_index(naming, files)
        if weight_set is not None:
            return with_orphans(weight_set, stored)
        caution = Caution(
            "layout.ambiguous",
            f"the directory holds both {naming.single} and {naming.index}: transformers reads the single file, "
            "mlx-lm all files, others the shards",
        )
        return WeightSet(Layout.SINGLE, (naming.single,), cautions=(caution,))
    indexes = [entry for entry in listing.top if naming.is_index(entry)]
    if naming.index in indexes or len(indexes) == 1:
        return _indexed(naming, listing, files, naming.index if naming.index in indexes else indexes[0])
    if indexes:
        problem = f"{shown(listing.source)} holds {len(indexes)} indexes, but no {naming.index}"
        raise UnreadableError(problem, _name_one(listing, indexes[0]), "layout.ambiguous")
    # Choose the weights of a directory with no file of the usual name and no index.
    # A single file is the model, and so are numbered shards. Raises `UnreadableError` for anything else.
    stored = [name for name in stored if not name.startswith("adapter_model.")] or stored  # PEFT's file is not a shard
    shards = [name for name in stored if re.search(naming.shard, name)]
    if len(stored) == 1 and not shards:
        return WeightSet(Layout.SINGLE, tuple(stored))
    if shards and len(shards) == len(stored):
        absent = f"the directory holds {count(len(shards), 'shard')} but no {naming.index}, which loaders need"
        return WeightSet(Layout.SHARDED, tuple(shards), cautions=(Caution("index.absent", absent),))
    problem = f"{shown(listing.source)} holds {count(len(stored), naming.noun)}, but no {naming.single} and no index"
    raise UnreadableError(problem, _name_one(listing, stored[0]), "layout.ambiguous")


def not_alone(named: str) -> Caution:
    """Return the caution that the directory of the file ``named`` holds other models too."""
    return Caution(NOT_ALONE, f"{shown(named)} is not the only model of its directory")


def _name_one(listing: Listing, name: str) -> str:
    return f"give the path of one of them: {path_word(os.path.join(listing.source, name))}"


def _indexed(naming: Naming, listing: Listing, files: Files, name: str) -> WeightSet:
    # The shards that the index ``name`` lists. Raises `UnreadableError` if a shard is missing.
    data = read_bytes(files, name, LIMIT)
    value, weight_map = _read_index(data, name, listing)
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        require_regular(listing, files, shard)
        if shard not in listing.entries:
            raise absent_shard(f"{shown(name)} lists the shard", shard, "index.absent-shard", _instead(listing, shard))
    weight_set = WeightSet(Layout.SHARDED, shards, Document(name, data.decode("utf-8"), value), weight_map)
    return with_orphans(weight_set, filter(naming.is_weights, listing.top))


def _readable(files: Files, names: Iterable[str], read_one: ReadOne) -> Iterator[WeightFile]:
    """Yield the headers of files that the model does not use. Skips files that cannot be read."""
    for name in names:
        with suppress(UnreadableError):
            yield read_one(files, name)[0]


def _config(
    naming: Naming, listing: Listing, files: Files, weight_set: WeightSet
) -> tuple[Document | None, Iterable[Caution]]:
    """Return the directory's config and cautions. Skip the config for one shard: it describes all shards."""
    require_regular(listing, files, CONFIG)
    if CONFIG not in listing.top and PARAMS in listing.top and re.match(r"consolidated", weight_set.weights[0]):
        require_regular(listing, files, PARAMS)
        return read_config(files, PARAMS)
    if CONFIG not in listing.top:
        return None, ()
    if weight_set.layout is Layout.FILE and re.search(naming.shard, weight_set.weights[0]):
        message = f"{shown(weight_set.weights[0])} is one shard of a model; inspect its directory"
        return None, (Caution("layout.one-shard", message),)
    return read_config(files)


# Read a model of shards through its index, and compare the index with the headers of the shards.
def read_one_file_index(naming: Naming, files: Files) -> WeightSet | None:
    """Return the single file with its index, or ``None`` if the index is unreadable or lists any other file.

    mlx-lm and mlx-vlm write an index for a model of one file too. Such an index names no second model.
    """
    data = read_bytes(files, naming.index, LIMIT)
    try:
        value, weight_map = read_index(data, naming.index)
    except UnreadableError:
        return None
    if set(weight_map.values()) != {naming.single}:
        return None
    index = Document(naming.index, data.decode("utf-8"), value)
    return WeightSet(Layout.SINGLE, (naming.single,), index, weight_map)


def _instead(listing: Listing, absent: str) -> str:
    """Return a second hint for a missing shard. A numbered shard has none, because reindex refuses there."""
    if re.search(r"-of-\d+\.\w+$", absent):
        return ""
    return Hint(", or rebuild the index from the remaining shards: ", call("reindex", listing.source))


def _read_index(data: bytes, name: str, listing: Listing) -> tuple[Mapping[str, object], dict[str, str]]:
    """Read the index as `read_index` does, and hint at reindex for every error but an unsafe path."""
    try:
        return read_index(data, name)
    except UnsafePathError:
        raise
    except UnreadableError as error:
        hint = Hint("rebuild the index from the shards: ", call("reindex", listing.source))
        raise UnreadableError(error.message, hint, error.code) from error


def index_cautions(weight_set: WeightSet, weights: tuple[WeightFile, ...]) -> list[Caution]:
    """Return one caution for each way in which the index disagrees with the shard headers."""
    cautions: list[Caution] = []
    homes: dict[str, str] = {}
    in_several: dict[str, None] = {}
    for file in weights:
        for tensor in file.tensors:
            if homes.setdefault(tensor.name, file.name) != file.name:
                in_several[tensor.name] = None
    repeated = tuple(in_several)
    if repeated:
        message = f"{listed(repeated, 3)} {'is' if len(repeated) == 1 else 'are'} stored in more than one shard"
        cautions.append(Caution("index.repeated", message, repeated))
    if weight_set.index is None:
        return cautions
    held = {(tensor.name, file.name) for file in weights for tensor in file.tensors} if repeated else homes.items()
    absent = tuple(name for name, shard in weight_set.weight_map.items() if (name, shard) not in held)
    if absent:
        cautions.append(
            Caution("index.absent-tensor", f"the index maps {listed(absent, 3)} to the wrong shard", absent)
        )
    extra = tuple(name for name in homes if name not in weight_set.weight_map)
    if extra:
        cautions.append(Caution("index.extra-tensor", f"the index does not list {listed(extra, 3)}", extra))
    return cautions + _total_cautions(weight_set.index, weights)


def _total_cautions(index: Document, weights: tuple[WeightFile, ...]) -> list[Caution]:
    metadata = index.value.get("metadata")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    tensors = [tensor for file in weights for tensor in file.tensors]
    actual = sum(tensor.nbytes for tensor in tensors)
    # Writers count a shared storage once, or once for each name. Both are in use.
    if declared is None or declared == actual:
        return []
    if declared == sum({(tensor.range, tensor.stride): tensor.nbytes for tensor in tensors}.values()):
        return []
    return [Caution("index.total-size", f"the index declares total_size {shown(declared)}, the shards hold {actual}")]


# Decide by file names which files of a directory are the weights of a model.
@record
class Naming:
    """The file names of a format.

    ``single`` is the name that loaders look for. Every weight file ends with one of ``suffixes``. ``shard`` matches
    the number in a shard's name. ``others`` matches files that end like weights but hold something else.
    """

    format: str
    noun: str
    single: str
    suffixes: tuple[str, ...]
    shard: str
    others: str | None = None

    @property
    def index(self) -> str:
        return self.single + INDEX_SUFFIX

    def is_index(self, name: str) -> bool:
        return name.endswith(tuple(suffix + INDEX_SUFFIX for suffix in self.suffixes))

    def is_weights(self, name: str) -> bool:
        return name.endswith(self.suffixes) and not (self.others and re.search(self.others, name))

    def claims(self, listing: Listing) -> bool:
        """Return whether MODEL has this format, judged by names alone. For one file the suffix decides."""
        if listing.named:
            return listing.named.endswith(self.suffixes) or self.is_index(listing.named)
        return any(self.is_weights(entry) or self.is_index(entry) for entry in listing.top)


@record
class WeightSet:
    """The weight files of a model. ``orphans`` are weight files of its directory that the model does not use."""

    layout: Layout
    weights: tuple[str, ...]
    index: Document | None = None
    weight_map: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()
    orphans: tuple[str, ...] = ()


def require_regular(listing: Listing, files: Files, name: str) -> None:
    """Raise an error if the file that a loader would open exists but may not be read."""
    if name in listing.special:
        files.state(name)


def with_orphans(weight_set: WeightSet, stored: Iterable[str]) -> WeightSet:
    """Return the set with the ``stored`` weight files that the model does not use, and a caution."""
    left = sorted(set(stored) - set(weight_set.weights))
    if not left:
        return weight_set
    listed = ", ".join(shown(name, 60) for name in left[:4])
    message = f"the model does not use {count(len(left), 'weight file')}: {listed}"
    cautions = (*weight_set.cautions, Caution("index.orphan", message))
    return replace(weight_set, orphans=tuple(left), cautions=cautions)


# Read the documents that lie beside the weights of any format: config.json and the shard index.

CONFIG = "config.json"
HF_QUANT = "hf_quant_config.json"
"""The file in which ModelOpt describes the quantisation."""
PARAMS = "params.json"
"""The config of Mistral's and of Meta's own tools, beside weights that are named consolidated."""
CONFIG_LIMIT = 16_000_000
_REPEATED_SAID = 8


def read_bytes(files: Files, name: str, limit: int) -> bytes:
    """Return the content of the file, at most ``limit + 1`` bytes."""
    return files.pread(name, min(files.state(name).size, limit) + 1, 0)


GENERATION = "generation_config.json"
_GENERATION_LIMIT = 1_000_000
"""Bytes of that file. The largest published files list some hundred ids."""


def generation_config(files: Files) -> Mapping[str, object]:
    """Return the content of generation_config.json. Raises `UnreadableError` if it is not JSON, or too large."""
    data = read_bytes(files, GENERATION, _GENERATION_LIMIT)
    return loads(data, GENERATION, limit=_GENERATION_LIMIT, lenient=True)


def read_generation(files: Files, names: Mapping[str, int]) -> tuple[Mapping[str, object], str]:
    """Return the generation config, or an empty one, and why tieconv could not read it."""
    try:
        return generation_config(files) if GENERATION in names else {}, ""
    except UnreadableError as error:
        large = error.code == "json.too-large"
        return {}, f"{GENERATION} {'is larger than tieconv reads' if large else 'could not be read'}"


def read_config(files: Files, name: str = CONFIG) -> tuple[Document, tuple[Caution, ...]]:
    """Return the config and its cautions. NaN and repeated keys are accepted, because real configs hold them.

    Raises `UnreadableError` for a config that is not a JSON object.
    """
    data = read_bytes(files, name, CONFIG_LIMIT)
    repeated: list[str] = []
    value = loads(data, name, limit=CONFIG_LIMIT, lenient=True, duplicates=repeated)
    cautions = tuple(
        Caution("config.repeated-key", f"{name} holds the key {shown(key)} twice; some readers use the last value")
        for key in dict.fromkeys(repeated[:_REPEATED_SAID])
    )
    return Document(name, data.decode("utf-8"), value), cautions


# Parse the Python files beside the weights for ``_tied_weights_keys``. They are never imported or run.
#
# transformers 5 reads ``_tied_weights_keys`` as a dict of target and source names. Custom model code that was written
# for transformers 4 declares a list.

DECLARATION = "_tied_weights_keys"
SIZE_LIMIT, STATEMENT_LIMIT = 1_000_000, 10_000
FILE_LIMIT = 20
NESTING_LIMIT = 50  # brackets, names and operators of a declaration
_DECLARED = re.compile(rf"^[ \t]+(?={DECLARATION}\s*[:=])".encode(), re.MULTILINE)


def scan(listing: Listing, files: Files) -> tuple[Caution, ...]:
    """Return one `Caution` for each ``modeling_*.py`` whose declaration transformers 5 cannot use.

    Skips files that are too large or that do not parse.
    """
    names = [name for name in listing.top if name.startswith("modeling_") and name.endswith(".py")]
    return tuple(caution for name in names[:FILE_LIMIT] for caution in _scan_one(name, listing, files))


def _scan_one(name: str, listing: Listing, files: Files) -> Iterator[Caution]:
    if listing.entries[name] > SIZE_LIMIT:
        return
    source = files.pread(name, SIZE_LIMIT, 0)
    if DECLARATION.encode() not in source:
        return
    # Only what indented lines assign is parsed: deep expressions end Python in a browser.
    values: list[ast.expr] = []
    for line in islice(_DECLARED.finditer(source), FILE_LIMIT):
        if any(source.count(quotes, 0, line.start()) % 2 for quotes in (b'"""', b"'''")):
            continue  # a docstring
        text = StringIO(source[line.end() : line.end() + STATEMENT_LIMIT].decode("utf-8", "replace"))
        with suppress(SyntaxError, ValueError, tokenize.TokenError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about the escapes of the file
            tokens = takewhile(lambda token: token.type != tokenize.NEWLINE, tokenize.generate_tokens(text.readline))
            words = [token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
            if sum(word[-1:] not in ",:'\"" for word in words) <= NESTING_LIMIT:
                body = ast.parse(" ".join(words)).body
                values += [node.value for node in body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    for value in values:
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            listed = _strings(value.elts)
            yield Caution("code.tied-keys-list", f"{shown(name)} declares {DECLARATION} as a list", listed)
        elif isinstance(value, ast.Dict):
            keys = _strings([key for key in value.keys if key is not None])
            same = tuple(key for key, to in zip(keys, _strings(value.values), strict=False) if key == to)
            if same:
                yield Caution("code.tied-to-itself", f"{shown(name)} ties names to themselves", same)


def _strings(values: list[ast.expr]) -> tuple[str, ...]:
    return tuple(entry.value for entry in values if isinstance(entry, ast.Constant) and isinstance(entry.value, str))


# Read and edit the shard index `*.index.json`, which maps each tensor to its shard.

LIMIT = 100_000_000
DIGITS = 600
"""The most digits of an integer in an index. Python reads this many under any setting."""


def read_index(data: bytes, name: str) -> tuple[Mapping[str, object], dict[str, str]]:
    """Return the content of the index and its ``weight_map`` (tensor name → shard file name).

    Raises `UnsafePathError` for a shard outside the index's directory. Raises `UnreadableError` for any other
    malformed index.
    """
    value = read_value(data, name)
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        problem = f"{shown(name)} has no weight_map"
        raise UnreadableError(problem, "an index maps each tensor to its shard", "index.no-map")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard:
            problem = f"{shown(name)} maps tensor {shown(tensor)} to a value that is not a file name"
            raise UnreadableError(problem, "fetch the index again, or rebuild it from the shards", "index.shard-name")
        if "/" in shard or "\\" in shard or "\0" in shard or shard in {".", ".."} or shard.startswith("~"):
            problem = f"{shown(name)} maps tensor {shown(tensor)} to {shown(shard)}"
            hint = "do not trust this checkpoint: shards must lie in the directory of their index"
            raise UnsafePathError(f"{problem}, which is not a file of its directory", hint, "index.escape")
    return value, weight_map


def read_value(data: bytes, name: str) -> dict[str, object]:
    """Return the content of the index. Reads the ``weight_map`` of a large index in batches to save memory."""
    start = _MAP.search(data) if WINDOW < len(data) <= LIMIT else None
    if start is None:
        return loads(data, name, limit=LARGEST_MEMBER, digits=DIGITS)
    members = Members(lambda size, at: data[at : at + size], start.end() - 1, len(data), name, BEHIND_STRINGS)
    weight_map: dict[str, object] = {}
    shards: dict[object, object] = {}
    names = NameCount()
    with collector_paused():
        for batch in members.batches():
            if not batch.keys().isdisjoint(weight_map):
                repeated = min(batch.keys() & weight_map)
                refuse(name, f"the key {shown(repeated)} is repeated", "json.refused")
            if excess := names.excess(batch, len(batch)):
                raise UnreadableError(f"{shown(name)} holds {excess}", "split the model", "index.tensors")
            for tensor, shard in batch.items():
                weight_map[tensor] = shards.setdefault(shard, shard) if isinstance(shard, str) else shard
    before, behind = (memoryview(data)[: start.start()], memoryview(data)[members.position :])
    if len(before) + len(behind) > LARGEST_MEMBER:
        refuse(name, f"it holds more than {LARGEST_MEMBER:,} bytes beside its weight_map", "json.too-large")
    value = loads(b"".join((before, b'"weight_map":0', behind)), name, limit=LARGEST_MEMBER + WINDOW, digits=DIGITS)
    if value.get("weight_map") != 0:
        refuse(name, "its first weight_map is inside another value", "json.refused")
    return {**value, "weight_map": weight_map}


_MAP = re.compile(rb'"weight_map"\s*:\s*\{')


def absent_shard(names: str, shard: str, code: str, hint: str = "") -> UnreadableError:
    """Return the error for a missing shard. ``names`` starts the sentence that ends with the shard's name."""
    return UnreadableError(f"{names} {shown(shard)}, which is missing", Hint("fetch the missing file", hint), code)


def edit_index(
    text: str, *, drop: Mapping[str, str], add: Mapping[str, str], total_size: int, parameters_added: int
) -> str:
    """Return ``text`` with entries dropped and added and with new totals. Nothing else changes.

    ``total_size`` counts tensor bytes. ``parameters_added`` (elements, may be negative) is added to
    ``total_parameters`` if the index has it. That count excludes buffers, which a header does not mark, so tieconv
    cannot compute it anew.
    """
    from tieconv.formats import json_text  # reading an index needs no editor

    value = json.loads(text)
    if drop:
        text = json_text.remove_keys(text, ("weight_map",), drop)
    for name, shard in add.items():
        text = json_text.set_value(text, ("weight_map", name), shard)
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        text = json_text.set_value(text, ("metadata", "total_size"), total_size)
        parameters = metadata.get("total_parameters")
        if isinstance(parameters, int):
            text = json_text.set_value(text, ("metadata", "total_parameters"), parameters + parameters_added)
    return text
