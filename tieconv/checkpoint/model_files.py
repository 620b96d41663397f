"""A checkpoint as data: its tensors with their byte ranges, and the documents beside them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tieconv.checkpoint.value_type import quoted, record
from tieconv.checkpoint.weight_file import ByteRange, ChunkTable, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.text import OUT, Hint, call, count, option, shell_word, shown

if TYPE_CHECKING:
    from tieconv.checkpoint.graph_structure import GraphRecord


class Layout(StrEnum):
    """The layout of MODEL on disk."""

    SINGLE = "single"  # a directory with one weight file
    SHARDED = "sharded"  # a directory with an index and its shards
    FILE = "file"  # a lone weight file


@record
class Document:
    """A JSON file beside the weights: the parsed value and the exact text of the file."""

    name: str
    text: str
    value: Mapping[str, object]


def weight_map(index: Document | None) -> dict[str, str]:
    """Return the entries of an index that map a name to a name."""
    entries = index.value.get("weight_map") if index else None
    if not isinstance(entries, Mapping):
        return {}
    return {name: shard for name, shard in entries.items() if isinstance(name, str) and isinstance(shard, str)}


NUMBERED = re.compile(r"^(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})(?P<suffix>\.\w+)$")
"""The name of a shard. Those with one prefix, total and suffix are a set."""

OPENED = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The files that transformers looks for in a model's directory, in its order."""

WEIGHTS_KEY = "transformers_weights"
"""The config key with another weight file name, which transformers newer than 4.48 reads."""


@record
class FileState:
    """What identifies a file's content when it is read, so that a stale plan can fail.

    ``ctime_ns`` changes with every write, even if a program restores ``mtime_ns``; 0 if unknown.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int = 0

    def is_still(self, now: FileState | None, relinked: Collection[tuple[int, int]] = ()) -> bool:
        """Return whether ``now`` is the same file, unchanged.

        ``relinked`` are (device, inode) of files with a new hard link, which changes ``ctime_ns`` too.
        """
        if now is not None and (self.device, self.inode) in relinked:
            now = replace(now, ctime_ns=self.ctime_ns)
        return now == self


@record
class Listing:
    """The files of MODEL on disk.

    ``named`` is the file that the user named, ``None`` for a directory. ``entries`` maps the regular files under
    ``root`` (relative, sorted) to their bytes. ``special`` are FIFOs, devices, sockets and symlinks that point outside
    the model directory.
    """

    source: str
    root: str
    named: str | None
    entries: Mapping[str, int]
    special: tuple[str, ...]

    @property
    def top(self) -> tuple[str, ...]:
        """The regular files directly under the root."""
        return tuple(entry for entry in self.entries if "/" not in entry)


@record
class Adapter:
    """The config of a PEFT adapter: its base, and which modules it changes or replaces.

    ``targets`` are the entries of ``target_modules``: one pattern, or the ends of module names. ``saved`` are the
    entries of ``modules_to_save``. ``tied`` is ``ensure_weight_tying``: whether PEFT keeps tied modules tied.
    ``token_rows`` are the ``trainable_token_indices``: each module, empty for the embedding, and its rows.
    ``base_exists`` says that ``base`` is a directory here.
    """

    kind: str
    base: str
    base_class: str
    targets: tuple[str, ...]
    saved: tuple[str, ...]
    tied: bool
    token_rows: tuple[tuple[str, tuple[int, ...]], ...] = ()
    base_exists: bool = False


class _Tensors:
    """A slot for a value that is computed once from a record's fields and is not a field."""

    __slots__ = ("_tensors",)
    _tensors: Mapping[str, TensorRecord]


_NATIVE = r"(.*/)?consolidated[^/]*\.safetensors"
"""The weight files of Mistral's own tools, beside a `params.json`; vLLM looks for them in every folder."""
VARIANT = re.compile(r"(pytorch_)?model(\.\w+(-\d{5}-of-\d{5})?|-\d{5}-of-\d{5}\.\w+)\.(safetensors|bin)")
"""Names that `save_pretrained(variant=...)` writes. Loaders read them only if `variant` selects them."""


@record
class Checkpoint(_Tensors):
    """Everything known about a model without reading tensor bytes.

    ``source`` is the path as the user gave it. ``root`` is the absolute directory that file names are relative to.
    ``companions`` maps the other regular files of the directory (relative paths) to their bytes. ``special`` are the
    entries that are not regular files. ``orphans`` are weight files of the directory that the model does not use.
    ``others`` are the companions that hold a model in another format. ``twins`` are the weight files among those whose
    headers were read. ``read_only`` is the hint for a format that no command writes (empty: a command writes it).
    ``headers_only`` is true if tensor bytes cannot be read. ``graphs`` are those of an ONNX model. ``revision`` is the
    commit of a model on the Hub. In an object store it is a hash of names, sizes and ETags. ``quantiser`` is ModelOpt's
    file about the quantisation. ``unread`` are the shards that were skipped because no name in them ties. ``table`` has
    the chunks of a distributed checkpoint.
    """

    source: str
    root: str
    layout: Layout
    format: str
    files: tuple[WeightFile, ...]
    config: Document | None = None
    quantiser: Document | None = None
    index: Document | None = None
    companions: Mapping[str, int] = field(default_factory=dict)
    special: tuple[str, ...] = ()
    cautions: tuple[Caution, ...] = ()
    states: Mapping[str, FileState] = field(default_factory=dict)
    orphans: tuple[WeightFile, ...] = ()
    others: Mapping[str, FileState] = field(default_factory=dict)
    twins: tuple[WeightFile, ...] = ()
    adapter: Adapter | None = None
    read_only: str = ""
    headers_only: bool = False
    graphs: tuple[GraphRecord, ...] = ()
    revision: str = ""
    unread: tuple[str, ...] = ()
    table: ChunkTable = ChunkTable()

    def __repr__(self) -> str:
        counts = count(len(self.files), "file"), count(len(self.tensors), "tensor")
        return f"Checkpoint({', '.join((quoted(self.source), self.format, *counts))})"

    @property
    def tensors(self) -> Mapping[str, TensorRecord]:
        """Every tensor by name, in file order."""
        try:
            return self._tensors
        except AttributeError:
            by_name = {tensor.name: tensor for file in self.files for tensor in file.tensors}
            object.__setattr__(self, "_tensors", by_name)
            return by_name

    @property
    def parameters(self) -> int:
        """The elements of all tensors. Names of the same bytes, as in a torch file of a tied model, count once."""
        return sum({tensor.range: tensor.elements for tensor in self.tensors.values()}.values())

    @property
    def entry(self) -> str | None:
        """The file that loaders open: the index of shards, or the only weight file; ``None`` for shards without one."""
        if self.layout is Layout.SHARDED:
            return self.index.name if self.index is not None else None
        return self.files[0].name if self.files else None

    @property
    def mlx(self) -> bool:
        """Whether mlx-lm or mlx-vlm wrote the weights: their files say so, in safetensors' metadata or the config."""
        stated = any((file.metadata or {}).get("format") == "mlx" for file in self.files)
        settings = self.config_values.get("quantization")
        return stated or (isinstance(settings, Mapping) and "bits" in settings)

    @property
    def complete(self) -> bool:
        """Whether shards without an index are the whole set that their names count."""
        totals = {file.name.rpartition("-of-")[2].partition(".")[0] for file in self.files}
        return totals == {f"{len(self.files):05d}"}

    @property
    def config_values(self) -> Mapping[str, object]:
        """The config's content; empty if there is no config."""
        return self.config.value if self.config else {}

    @property
    def is_embedder(self) -> bool:
        """Whether it is a model of sentence-transformers, whose programs use no output head."""
        names = {name.rpartition("/")[2] for name in self.companions if name.count("/") < 2}
        inner = re.search(r"(?:^|/)\d+_Transformer/*$", self.source) is not None
        pooled = any(re.match(r"\d+_Pooling/", name) for name in self.companions)
        return inner or pooled or not {"modules.json", "config_sentence_transformers.json"}.isdisjoint(names)

    @property
    def quantisation_values(self) -> Mapping[str, object]:
        """The config's content, and under its name that of the quantiser's own file."""
        own = {} if self.quantiser is None else {self.quantiser.name: self.quantiser.value}
        return {**self.config_values, **own}

    @property
    def native(self) -> str:
        """The first weight file in Mistral's own format, at any depth; empty if there is none."""
        names = (name for name in (*self.states, *self.companions) if re.fullmatch(_NATIVE, name))
        return min(names, key=lambda name: (name.count("/"), name), default="")

    @property
    def also_weights(self) -> tuple[str, ...]:
        """Files beside the weights that hold the same model: its variants, and Mistral's own format."""
        top = (name for name in self.companions if "/" not in name)
        return tuple(name for name in top if VARIANT.fullmatch(name) or re.fullmatch(_NATIVE, name))

    def file(self, name: str) -> WeightFile:
        """Return the weight file with this name; raise ``KeyError`` if there is none."""
        for candidate in self.files:
            if candidate.name == name:
                return candidate
        raise KeyError(name)


# Ambiguous or misplaced content that a reader reports, as codes that a rule turns into findings.
@record
class Caution:
    """An ambiguity or a misplaced file that a reader reports; a rule turns it into a finding."""

    code: str
    message: str
    tensors: tuple[str, ...] = ()


TWO_FORMATS = "layout.two-formats"
"""The code of the caution that the directory has weights in two formats."""

REFUSED_BY_READER = "format.refused"
"""The code of the caution that the format's own reader refuses a file; the finding repeats its message."""

NOT_ALONE = "layout.not-alone"
"""The code of the caution that other files beside a lone weight file hold the model too."""

TRAINING = "torch.training"
"""The code of the caution that a torch file holds a model and its training state; `convert` takes the model."""

SEVERAL = "torch.several"
"""The code of the caution that a torch file has tensors under several keys, and none is certainly the model."""

BLOCKING = {
    "layout.ambiguous": "remove the unwanted one, then run the command again",
    "layout.one-shard": "give the model's directory",
    TWO_FORMATS: Hint(
        "add ", option(drop_other_formats=True), " to leave out the other format, which tieconv would not update"
    ),
    "index.absent": "write the index first: ",
    "index.absent-tensor": "download the shard that holds it, or rebuild the index if the model needs no such tensor: ",
    "index.extra-tensor": "rebuild the index from the shards, then try again: ",
    "index.repeated": "remove the unwanted copy, then run the command again",
    TRAINING: "extract the model first: ",
    SEVERAL: 'save the model\'s part first: torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)',
    "torch.extra": "save only the tensors first: tieconv would lose the other contents of the file",
}
"""Cautions that leave open what the model is, so that tieconv writes nothing; and the hint for each.

After a colon, `way_out` adds the command."""


def way_out(caution: Caution, checkpoint: Checkpoint) -> str:
    """Return what to do about a blocking caution of the model."""
    code, hint = caution.code, BLOCKING[caution.code]
    if not hint.endswith(": "):
        return hint
    if code == "index.absent-tensor" and {*caution.tensors} <= checkpoint.tensors.keys() | outside_index(checkpoint):
        hint = BLOCKING["index.extra-tensor"]
    extracted = call("convert", checkpoint.source, to="safetensors", out=OUT)
    return Hint(hint, extracted if code == TRAINING else call("reindex", checkpoint.source))


# Read the bytes of a model, local or remote.
class Files(Protocol):
    """Reads from files by name, relative to one root."""

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, fewer only at the end of the file."""
        ...

    def state(self, name: str) -> FileState:
        """Return what identifies the file's content now."""
        ...


class ByteReader(Protocol):
    """Positioned reads from the files of one checkpoint."""

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``; ``UnreadableError`` if the file ends early."""
        ...


# Recognise what Git writes instead of a file: a Git LFS pointer, or a symlink as text.
#
# Sources: the Git LFS specification (docs/spec.md). `core.symlinks` in git-config: without it Git writes a symlink as
# a small file that contains the link text.

LARGEST = 1024
"""Bytes of the largest pointer by the specification; a path is shorter on most systems."""
_POINTER = b"version https://git-lfs"
_PATH = rb"(?=.*/|.*\.[A-Za-z]\w*\Z)(?:\.{1,2}/)*[\w.@+-]+(?:/[\w.@+ -]+)*"
"""Segments of a relative path: several of them, or one with a suffix."""
_LINKED = (".json", ".safetensors", ".bin", ".pt", ".pth", ".th", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".model")
"""Suffixes of files that never consist of a single path."""


def check_git_file(name: str, start: bytes, size: int) -> None:
    """Raise `UnreadableError` if Git wrote the file ``name`` as a pointer or a link text.

    ``start`` is the file's first bytes, ``size`` its size in bytes.
    """
    if size > LARGEST:
        return
    if start.startswith(_POINTER):
        hint = "fetch the files in the model's directory: git lfs pull"
        raise UnreadableError(f"{shown(name)} is a Git LFS pointer, not the file itself", hint, "git.lfs-pointer")
    if start.startswith(b"{"):
        return  # JSON, as most small files are: no path begins like this
    linked = name.endswith(_LINKED) or start.startswith(b"../")
    if linked and len(start) == size and re.fullmatch(_PATH, start):
        raise UnreadableError(
            f"{shown(name)} holds only the path {shown(start.decode('ascii'), 80)}: Git wrote a symlink as text",
            "in the model's directory: git config core.symlinks true && git checkout -- " + shell_word(name),
            "git.symlink-text",
        )


def unlisted_parts(checkpoint: Checkpoint) -> dict[str, tuple[str, ...]]:
    """Return the files with names of shards that the index does not list, and the tensors that only they hold.

    A file that tieconv cannot read has none. Files that repeat tensors of the model are left out.
    """
    sets = {_set_of(file.name) for file in checkpoint.files} - {None}
    held = {file.name: {tensor.name for tensor in file.tensors} for file in checkpoint.orphans}
    alone = {
        name: tuple(sorted(held.get(name, set()) - checkpoint.tensors.keys()))
        for name in checkpoint.companions
        if _set_of(name) in sets
    }
    return {name: tensors for name, tensors in alone.items() if tensors or name not in held}


def outside_index(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the shard of each tensor that only shards outside the index hold."""
    return {name: part for part, names in unlisted_parts(checkpoint).items() for name in names}


def _set_of(name: str) -> tuple[str, ...] | None:
    match = NUMBERED.fullmatch(name)
    return match and match.group("prefix", "total", "suffix")
