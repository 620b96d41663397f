"""From edits of names and bytes to the files that must be written, in any layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tieconv.checkpoint import kept_copies, value_type
from tieconv.checkpoint.dtypes import nbytes
from tieconv.checkpoint.model_files import ByteRange, Checkpoint, Layout, TensorRecord, WeightFile
from tieconv.checkpoint.operation import (
    AverageTensor,
    CopyTensor,
    DropTensor,
    FillTensor,
    KeepTensor,
    LinkFile,
    Operation,
    RenameTensor,
    ResizeTensor,
    ScaleTensor,
    SetMetadata,
    SetTensor,
    ShareTensor,
    TrimStorage,
)
from tieconv.checkpoint.output import (
    Averaged,
    InlineBytes,
    OutputStorage,
    OutputTensor,
    OutputText,
    OutputWeights,
    Padded,
    Scaled,
    Zeros,
)
from tieconv.checkpoint.proof import AllZero, Equal, Proof
from tieconv.formats.index import edit_index

HEAD_SHARDS = {"safetensors": "model-head.safetensors", "torch": "pytorch_model-head.bin"}
"""The shard that new tensors of a sharded model go to: untouched shards stay as they are, byte for byte.

By format. It starts like the other shards and is not numbered, so that loaders that glob for
``model*.safetensors`` find it and no other shard has to be renamed.
"""


@value_type.record
class Files:
    """What becomes of the weight files and their index."""

    weights: tuple[OutputWeights, ...]
    texts: tuple[OutputText, ...]
    links: tuple[LinkFile, ...]
    removed: tuple[str, ...]
    operations: tuple[Operation, ...]


@dataclass
class Edits:
    """Tensor edits gathered by a planner. Every tensor that is not named stays."""

    checkpoint: Checkpoint
    drops: dict[str, DropTensor] = field(default_factory=dict)
    renames: dict[str, RenameTensor] = field(default_factory=dict)
    additions: dict[str, tuple[OutputTensor, str]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    trims: dict[tuple[str, str], OutputStorage] = field(default_factory=dict)
    proofs: list[Proof] = field(default_factory=list)
    kept_copies: set[str] = field(default_factory=set)

    def drop(self, name: str, because: str) -> None:
        """Leave a stored tensor out; an addition of the same name undoes itself."""
        self._record(DropTensor(name, because))
        self.drops[name] = DropTensor(name, because)

    def drop_equal(self, name: str, kept: str, because: str, exponent: int = 0) -> None:
        """Leave a stored tensor out that was proved to be ``kept`` times 2**``exponent``."""
        self.drop(name, because)
        self._prove_equal(name, kept, exponent)

    def drop_zero(self, name: str, because: str) -> None:
        """Leave a stored tensor out that was proved to be all zero."""
        self.drop(name, because)
        self.proofs.append(AllZero(self.checkpoint.tensors[name]))

    def _prove_equal(self, name: str, kept: str, exponent: int = 0) -> None:
        one, two = self.checkpoint.tensors[name], self.checkpoint.tensors[kept]
        if (one.range, one.stride) != (two.range, two.stride) or exponent:
            self.proofs.append(Equal(one, two, exponent))

    def rename(self, name: str, to: str) -> None:
        """Store a tensor under another name."""
        self._record(RenameTensor(name, to))
        self.renames[name] = RenameTensor(name, to)

    def copy(self, name: str, source: TensorRecord) -> None:
        """Store the bytes of ``source`` under ``name`` too."""
        self._record(CopyTensor(name, source.name))
        self._add(OutputTensor(name, source.dtype, source.shape, source.range, source.stride), source.name)

    def scale(self, name: str, source: TensorRecord, exponent: int) -> None:
        """Store ``source`` × 2**``exponent`` under ``name``."""
        self._record(ScaleTensor(name, source.name, exponent))
        content = Scaled(source.range, source.dtype, exponent)
        self._add(OutputTensor(name, source.dtype, source.shape, content, source.stride), source.name)

    def fill(self, name: str, dtype: str, shape: tuple[int, ...], beside: str) -> None:
        """Store an all-zero tensor."""
        size = nbytes(dtype, shape)
        assert size is not None, dtype  # callers take the dtype of a float matrix
        self._record(FillTensor(name, dtype, shape, beside))
        self._add(OutputTensor(name, dtype, shape, Zeros(size)), beside)

    def replace_content(self, name: str, source: TensorRecord) -> None:
        """Store under ``name`` the bytes, dtype and shape of ``source`` instead of its own."""
        home = self.checkpoint.tensors[name]
        self._record(CopyTensor(name, source.name))
        copy = OutputTensor(name, source.dtype, source.shape, source.range, source.stride)
        self.additions[name] = (copy, home.name)

    def average(self, name: str, first: TensorRecord, second: TensorRecord) -> None:
        """Store under ``name`` the mean of two dense tensors of one dtype and shape."""
        self._record(AverageTensor(name, first.name, second.name))
        content = Averaged(first.range, second.range, first.dtype, (first.name, second.name))
        self._add(OutputTensor(name, first.dtype, first.shape, content), first.name)

    def give(self, record: TensorRecord, data: bytes, because: str) -> None:
        """Give a tensor other values: ``data`` in its dtype, dense."""
        self._record(SetTensor(record.name, because))
        self._add(OutputTensor(record.name, record.dtype, record.shape, InlineBytes(data)), record.name)

    def resize(
        self, record: TensorRecord, shape: tuple[int, ...], row: bytes | None = None, *, zero_end: bool = True
    ) -> None:
        """Give a dense tensor another length: zeros, or ``row`` again and again, at its end, or its end cut off.

        With ``zero_end`` what is cut off is compared with zeros once more before the write is published.
        """
        size = nbytes(record.dtype, shape)
        assert size is not None, record.dtype  # callers take whole-byte types
        self._record(ResizeTensor(record.name, record.shape, shape))
        start, end = record.range.start, record.range.end
        content = ByteRange(record.range.file, start, min(end, start + size))
        more = size - content.size
        tail = InlineBytes(row * (more // len(row))) if row else Zeros(more)
        if content.end < end and zero_end:
            cut = ByteRange(record.range.file, content.end, end)
            self.proofs.append(AllZero(TensorRecord(record.name, record.dtype, (), cut)))
        self.additions[record.name] = (
            OutputTensor(record.name, record.dtype, shape, Padded(content, tail) if more else content),
            record.name,
        )

    def keep_copy(self, name: str) -> None:
        """Mark ``name`` in its file's metadata as a copy that is wanted, where the file has metadata."""
        self.kept_copies.add(name)

    def share(self, name: str, source: TensorRecord) -> None:
        """Make ``name`` a view of the storage of ``source``, in whose file it is."""
        self._record(ShareTensor(name, source.name))
        self._prove_equal(name, source.name)
        view = OutputTensor(name, source.dtype, source.shape, source.range, source.stride, self.home(source))
        self.additions[name] = (view, name)

    def trim(self, record: TensorRecord, storage: OutputStorage, freed: int) -> None:
        """Store the storage of ``record`` without bytes that no tensor is a view of."""
        assert record.storage is not None
        self._record(TrimStorage(record.name, freed))
        self.trims[record.range.file, record.storage] = storage

    def home(self, record: TensorRecord) -> OutputStorage | None:
        """The storage of a tensor as it will be written; ``None`` for one that has its bytes for itself."""
        if record.storage is None:
            return None
        file = self.checkpoint.file(record.range.file)
        found = next(storage for storage in file.storages if storage.key == record.storage)
        return self.trims.get((file.name, found.key)) or OutputStorage(found.range, found.crc)

    def _add(self, tensor: OutputTensor, beside: str) -> None:
        self.additions[tensor.name] = (tensor, beside)

    def _record(self, operation: Operation) -> None:
        self.operations.append(operation)

    def after(self) -> set[str]:
        """The names that are stored once the edits are made."""
        kept = {name for name in self.checkpoint.tensors if name not in self.drops}
        renamed = {self.renames[name].to if name in self.renames else name for name in kept}
        return renamed | set(self.additions)

    def files(self) -> Files:
        """The files to write, link and leave out."""
        if self.checkpoint.layout is Layout.SHARDED:
            return _sharded(self)
        return _single(self)


def _single(edits: Edits) -> Files:
    file = edits.checkpoint.files[0]
    changed = _rewrite(file, edits, edits.additions)
    weights = () if changed is None else (changed,)
    return _assemble(edits, weights, (), removed=())


def _sharded(edits: Edits) -> Files:
    tensors = edits.checkpoint.tensors
    replaced = {name: edits.additions[name] for name in edits.additions if name in tensors}
    new = {name: added for name, added in edits.additions.items() if name not in tensors}
    weights: list[OutputWeights] = []
    removed: list[str] = []
    for file in edits.checkpoint.files:
        mine = {name: added for name, added in replaced.items() if tensors[name].range.file == file.name}
        changed = _rewrite(file, edits, mine)
        if changed is not None and not changed.tensors:
            removed.append(file.name)
        elif changed is not None:
            weights.append(changed)
    if new:
        shard = _unused_name(edits.checkpoint)
        metadata = _new_metadata(edits, shard, {tensor.name for tensor, _ in new.values()})
        weights.append(OutputWeights(shard, tuple(tensor for tensor, _ in new.values()), metadata))
    text = _index_text(edits, tuple(weights), removed)
    return _assemble(edits, tuple(weights), text, tuple(removed))


def _rewrite(file: WeightFile, edits: Edits, additions: Mapping[str, tuple[OutputTensor, str]]) -> OutputWeights | None:
    """The file with its edits, or ``None`` where it stays as it is. New tensors follow the one they come from."""
    mine = {tensor.name for tensor in file.tensors}
    metadata, changed = _metadata(file, edits, _names_after(edits, mine, additions))
    trimmed = any(name == file.name for name, _ in edits.trims)
    if not (changed or additions or trimmed or mine & (edits.drops.keys() | edits.renames.keys())):
        return None
    storages = {storage.key: OutputStorage(storage.range, storage.crc) for storage in file.storages}
    storages |= {key: storage for (name, key), storage in edits.trims.items() if name == file.name}
    tensors: list[OutputTensor] = []
    for record in file.tensors:
        if record.name in additions:
            tensors.append(additions[record.name][0])
        elif record.name not in edits.drops:
            name = edits.renames[record.name].to if record.name in edits.renames else record.name
            home = storages[record.storage] if record.storage is not None else None
            tensors.append(OutputTensor(name, record.dtype, record.shape, record.range, record.stride, home))
        tensors += [
            tensor for name, (tensor, beside) in additions.items() if beside == record.name and name not in mine
        ]
    return OutputWeights(file.name, tuple(tensors), metadata)


def _names_after(edits: Edits, mine: set[str], additions: Mapping[str, tuple[OutputTensor, str]]) -> set[str]:
    """The names that a file which holds ``mine`` will hold."""
    kept = {name for name in mine if name not in edits.drops and name not in additions}
    renamed = {edits.renames[name].to if name in edits.renames else name for name in kept}
    return renamed | {tensor.name for tensor, _ in additions.values()}


def _metadata(file: WeightFile, edits: Edits, names: set[str]) -> tuple[Mapping[str, str] | None, bool]:
    """The metadata of ``file``, which will hold ``names``, without entries that the edits make untrue.

    `safetensors.torch.save_model` records a dropped alias as ``{dropped name: kept name}``.
    """
    if file.metadata is None:
        return None, False
    tensors = edits.checkpoint.tensors
    stored = edits.after()
    stale = [key for key, value in file.metadata.items() if value in tensors and (key in stored or value not in stored)]
    after = {key: value for key, value in file.metadata.items() if key not in stale}
    for key in stale:
        edits.operations.append(SetMetadata(file.name, key, None))
    changed = edits.checkpoint.format == "safetensors" and _mark_copies(file, edits, names, after)
    return after, changed or bool(stale)


def _mark_copies(file: WeightFile, edits: Edits, names: set[str], metadata: dict[str, str]) -> bool:
    """Write into ``metadata`` which of the ``names`` are wanted copies; return whether that changes it."""
    before = kept_copies.names_in(metadata)
    renamed = {edits.renames[name].to if name in edits.renames else name for name in before}
    after = (renamed | edits.kept_copies) & names
    if before == after:
        return False
    value = kept_copies.entry(after) if after else None
    edits.operations.append(SetMetadata(file.name, kept_copies.KEY, value))
    if value is None:
        del metadata[kept_copies.KEY]
    else:
        metadata[kept_copies.KEY] = value
    return True


def _new_metadata(edits: Edits, shard: str, names: Iterable[str]) -> Mapping[str, str] | None:
    """The metadata of a new shard with ``names``; torch files have none."""
    if edits.checkpoint.format == "torch":
        return None
    copies = edits.kept_copies.intersection(names)
    if not copies:
        return {"format": "pt"}
    edits.operations.append(SetMetadata(shard, kept_copies.KEY, kept_copies.entry(copies)))
    return {"format": "pt", kept_copies.KEY: kept_copies.entry(copies)}


def _unused_name(checkpoint: Checkpoint) -> str:
    taken = {file.name for file in checkpoint.files} | set(checkpoint.companions)
    name = usual = HEAD_SHARDS[checkpoint.format]
    stem, _, suffix = usual.rpartition(".")
    number = 2
    while name in taken:
        name, number = f"{stem}-{number}.{suffix}", number + 1
    return name


def _index_text(edits: Edits, weights: Iterable[OutputWeights], removed: list[str]) -> tuple[OutputText, ...]:
    """The index as it must read once the shards are written; nothing where it already reads so."""
    index = edits.checkpoint.index
    assert index is not None  # a sharded model without an index is refused before
    written = {file.name: file for file in weights}
    after: dict[str, tuple[str, int, int]] = {}
    for file in edits.checkpoint.files:
        if file.name not in written and file.name not in removed:
            for record in file.tensors:
                after[record.name] = (file.name, record.nbytes, record.elements)
    for output in written.values():
        for tensor in output.tensors:
            after[tensor.name] = (output.name, tensor.nbytes, _elements(tensor))
    before = {record.name: record.range.file for record in edits.checkpoint.tensors.values()}
    drop = {name: shard for name, shard in before.items() if name not in after}
    add = {name: home for name, (home, _, _) in after.items() if before.get(name) != home}
    total = _total(edits, written, after)
    parameters = sum(elements for _, _, elements in after.values())
    parameters -= sum(record.elements for record in edits.checkpoint.tensors.values())
    text = edit_index(index.text, drop=drop, add=add, total_size=total, parameters_added=parameters)
    return (OutputText(index.name, text),) if text != index.text else ()


def _total(edits: Edits, written: Mapping[str, OutputWeights], after: Mapping[str, tuple[str, int, int]]) -> int:
    """Bytes of all tensors; names that are one view of one storage count once, as transformers counts them."""
    seen: dict[object, int] = {}
    for file in edits.checkpoint.files:
        for record in file.tensors:
            if after.get(record.name, ("",))[0] == file.name and file.name not in written:
                seen[record.range, record.stride] = record.nbytes
    for output in written.values():
        for tensor in output.tensors:
            seen[(output.name, tensor.content, tensor.stride) if tensor.storage else tensor] = after[tensor.name][1]
    return sum(seen.values())


def _elements(tensor: OutputTensor) -> int:
    product = 1
    for side in tensor.shape:
        product *= side
    return product


def _assemble(
    edits: Edits, weights: tuple[OutputWeights, ...], texts: tuple[OutputText, ...], removed: tuple[str, ...]
) -> Files:
    checkpoint = edits.checkpoint
    written = {output.name for output in weights} | {text.name for text in texts} | set(removed)
    links = {file.name: file.size for file in checkpoint.files}
    for document in (checkpoint.index, checkpoint.config):
        if document is not None and checkpoint.layout is not Layout.FILE:  # a lone file is written alone
            links[document.name] = checkpoint.states[document.name].size
    links |= checkpoint.companions
    touched = edits.drops.keys() | edits.renames.keys() | edits.additions.keys()
    kept = tuple(KeepTensor(name) for name in checkpoint.tensors if name not in touched)
    linked = tuple(LinkFile(name, size) for name, size in sorted(links.items()) if name not in written)
    return Files(weights, texts, linked, removed, (*edits.operations, *kept))


def with_text(files: Files, text: OutputText, operations: tuple[Operation, ...]) -> Files:
    """``files`` with one more document written instead of linked."""
    return replace(
        files,
        texts=(*files.texts, text),
        links=tuple(link for link in files.links if link.name != text.name),
        operations=(*operations, *files.operations),
    )
