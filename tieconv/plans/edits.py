"""Collect a planner's edits of names and bytes, and turn them into files to write, link or leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tieconv.checkpoint import value_type, weight_file, write_plan
from tieconv.checkpoint.model_files import Checkpoint, Layout
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, WeightFile, nbytes
from tieconv.formats.directory import edit_index


# Collect a planner's edits of names and bytes.
@dataclass
class Edits:
    """The tensor edits of a planner. All other tensors stay as they are."""

    checkpoint: Checkpoint
    drops: set[str] = field(default_factory=set)
    renames: dict[str, str] = field(default_factory=dict)
    additions: dict[str, tuple[write_plan.OutputTensor, str]] = field(default_factory=dict)
    operations: list[write_plan.Operation] = field(default_factory=list)
    trims: dict[tuple[str, str], write_plan.OutputStorage] = field(default_factory=dict)
    proofs: list[write_plan.Proof] = field(default_factory=list)
    kept_copies: set[str] = field(default_factory=set)
    """The names to mark as kept copies in the metadata of their file, if the file has metadata."""

    def drop(self, name: str, because: str) -> None:
        """Leave a stored tensor out."""
        self.operations.append(write_plan.DropTensor(name, because))
        self.drops.add(name)

    def drop_equal(self, name: str, source: str, because: str, exponent: int = 0) -> None:
        """Leave out a stored tensor that is proved to be ``source`` times 2**``exponent``."""
        self.drop(name, because)
        self._prove_equal(name, source, exponent)

    def _prove_equal(self, name: str, source: str, exponent: int = 0) -> None:
        dropped, record = self.checkpoint.tensors[name], self.checkpoint.tensors[source]
        if (dropped.range, dropped.stride) != (record.range, record.stride) or exponent:
            self.proofs.append(write_plan.Equal(dropped, record, exponent))

    def rename(self, name: str, to: str) -> None:
        """Store a tensor under another name."""
        self.operations.append(write_plan.RenameTensor(name, to))
        self.renames[name] = to

    def copy(self, name: str, source: TensorRecord) -> None:
        """Store the bytes of ``source`` under ``name`` too."""
        self._add(write_plan.CopyTensor(name, source.name), stored(source, name), source.name)

    def scale(self, name: str, source: TensorRecord, exponent: int) -> None:
        """Store ``source`` × 2**``exponent`` under ``name``."""
        scaled = replace(stored(source, name), content=write_plan.Scaled(source.range, source.dtype, exponent))
        self._add(write_plan.ScaleTensor(name, source.name, exponent), scaled, source.name)

    def fill(self, name: str, dtype: str, shape: tuple[int, ...], beside: str) -> None:
        """Store an all-zero tensor."""
        size = nbytes(dtype, shape)
        assert size is not None, dtype  # callers pass the dtype of a float matrix
        zeros = write_plan.OutputTensor(name, dtype, shape, write_plan.Zeros(size))
        self._add(write_plan.FillTensor(name, dtype, shape, beside), zeros, beside)

    def replace_content(self, name: str, source: TensorRecord) -> None:
        """Replace the bytes, dtype and shape of ``name`` by those of ``source``."""
        self._add(write_plan.CopyTensor(name, source.name), stored(source, name), name)

    def average(self, name: str, first: TensorRecord, second: TensorRecord) -> None:
        """Store under ``name`` the mean of two dense tensors with the same dtype and shape."""
        content = write_plan.Averaged(first.range, second.range, first.dtype, (first.name, second.name))
        mean = write_plan.OutputTensor(name, first.dtype, first.shape, content)
        self._add(write_plan.AverageTensor(name, first.name, second.name), mean, first.name)

    def give(self, record: TensorRecord, data: bytes, because: str) -> None:
        """Replace the values of a tensor by ``data``, dense and in the same dtype."""
        output = write_plan.OutputTensor(record.name, record.dtype, record.shape, write_plan.InlineBytes(data))
        self._add(write_plan.SetTensor(record.name, because), output, record.name)

    def resize(
        self, record: TensorRecord, shape: tuple[int, ...], row: bytes | None = None, *, zero_end: bool = True
    ) -> None:
        """Give a dense tensor the shape ``shape``: append zeros or copies of ``row``, or cut off the end.

        With ``zero_end`` the bytes that are cut off are compared with zeros again before the write is published.
        """
        size = nbytes(record.dtype, shape)
        assert size is not None, record.dtype  # callers pass dtypes of whole bytes
        start, end = record.range.start, record.range.end
        content = ByteRange(record.range.file, start, min(end, start + size))
        more = size - content.size
        tail = write_plan.InlineBytes(row * (more // len(row))) if row else write_plan.Zeros(more)
        if content.end < end and zero_end:
            cut = ByteRange(record.range.file, content.end, end)
            self.proofs.append(write_plan.AllZero(TensorRecord(record.name, record.dtype, (), cut)))
        padded = write_plan.Padded(content, tail) if more else content
        output = write_plan.OutputTensor(record.name, record.dtype, shape, padded)
        self._add(write_plan.ResizeTensor(record.name, record.shape, shape), output, record.name)

    def share(self, name: str, source: TensorRecord) -> None:
        """Make ``name`` a view of the storage of ``source``. Both are in the same file."""
        self._prove_equal(name, source.name)
        self._add(write_plan.ShareTensor(name, source.name), stored(source, name, self.home(source)), name)

    def trim(self, record: TensorRecord, storage: write_plan.OutputStorage, freed: int) -> None:
        """Write the storage of ``record`` without the ``freed`` bytes that no tensor uses."""
        assert record.storage is not None
        self.operations.append(write_plan.TrimStorage(record.name, freed))
        self.trims[record.range.file, record.storage] = storage

    def home(self, record: TensorRecord) -> write_plan.OutputStorage | None:
        """Return the storage of a tensor as it will be written, or ``None`` for a tensor without shared storage."""
        if record.storage is None:
            return None
        file = self.checkpoint.file(record.range.file)
        storage = next(each for each in file.storages if each.key == record.storage)
        return self.trims.get((file.name, storage.key)) or write_plan.OutputStorage(storage.range, storage.crc)

    def _add(self, operation: write_plan.Operation, tensor: write_plan.OutputTensor, beside: str) -> None:
        self.operations.append(operation)
        self.additions[tensor.name] = (tensor, beside)

    @property
    def dropped_zeros(self) -> tuple[str, ...]:
        """The all-zero tensors that the plan drops only to save bytes."""
        zeros = (proof.tensor.name for proof in self.proofs if isinstance(proof, write_plan.AllZero))
        return tuple(name for name in zeros if name in self.drops)

    def after(self) -> set[str]:
        """Return the names that are stored after the edits."""
        left = (name for name in self.checkpoint.tensors if name not in self.drops)
        return {self.renames.get(name, name) for name in left} | set(self.additions)


def stored(record: TensorRecord, name: str, home: write_plan.OutputStorage | None = None) -> write_plan.OutputTensor:
    """Return a tensor ``name`` with the bytes of ``record``, in the storage ``home``."""
    return write_plan.OutputTensor(name, record.dtype, record.shape, record.range, record.stride, home)


# Turn edits into the files to write, to link and to leave out, in any layout.

HEAD_SHARDS = {"safetensors": "model-head.safetensors", "torch": "pytorch_model-head.bin"}
"""The new shard for new tensors of a sharded model, by format. The bytes of other shards do not change.

The name starts like the other shards, so loaders that glob for ``model*.safetensors`` find it. It has no number, so no
other shard needs a new name.
"""


@value_type.record
class Files:
    """The weight files and index that a plan writes, links and removes."""

    weights: tuple[write_plan.OutputWeights, ...]
    texts: tuple[write_plan.OutputText, ...]
    links: tuple[write_plan.LinkFile, ...]
    removed: tuple[str, ...]
    operations: tuple[write_plan.Operation, ...]


def files_of(edits: Edits) -> Files:
    """Return the files to write, link and leave out. ``edits`` does not change."""
    edits = replace(edits, operations=list(edits.operations))  # the metadata operations are added to the copy
    return _sharded(edits) if edits.checkpoint.layout is Layout.SHARDED else _single(edits)


def _single(edits: Edits) -> Files:
    file = edits.checkpoint.files[0]
    changed = _rewrite(file, edits, edits.additions)
    weights = () if changed is None else (changed,)
    # mlx-lm writes an index for one file too.
    texts = index_text(edits, weights, []) if edits.checkpoint.index is not None else ()
    return _assemble(edits, weights, texts, removed=())


def _sharded(edits: Edits) -> Files:
    tensors = edits.checkpoint.tensors
    replaced = {name: edits.additions[name] for name in edits.additions if name in tensors}
    new = {name: added for name, added in edits.additions.items() if name not in tensors}
    weights: list[write_plan.OutputWeights] = []
    removed: list[str] = []
    for file in edits.checkpoint.files:
        mine = {name: added for name, added in replaced.items() if tensors[name].range.file == file.name}
        changed = _rewrite(file, edits, mine)
        if changed is not None and not changed.tensors:
            removed.append(file.name)
        elif changed is not None:
            weights.append(changed)
    if new:
        taken = {file.name for file in edits.checkpoint.files} | set(edits.checkpoint.companions)
        shard = usual = HEAD_SHARDS[edits.checkpoint.format]
        stem, _, suffix = usual.rpartition(".")
        number = 2
        while shard in taken:
            shard, number = f"{stem}-{number}.{suffix}", number + 1
        metadata = metadata_of_new(edits, shard, {tensor.name for tensor, _ in new.values()})
        weights.append(write_plan.OutputWeights(shard, tuple(tensor for tensor, _ in new.values()), metadata))
    text = index_text(edits, tuple(weights), removed)
    return _assemble(edits, tuple(weights), text, tuple(removed))


def _rewrite(
    file: WeightFile, edits: Edits, additions: Mapping[str, tuple[write_plan.OutputTensor, str]]
) -> write_plan.OutputWeights | None:
    """Return the file with its edits, or ``None`` if nothing changes. A new tensor follows its source tensor."""
    mine = {tensor.name for tensor in file.tensors}
    # The names that the file will have.
    names = {edits.renames.get(name, name) for name in mine - edits.drops}
    metadata, changed = metadata_after(file, edits, names | {tensor.name for tensor, _ in additions.values()})
    trimmed = any(name == file.name for name, _ in edits.trims)
    if not (changed or additions or trimmed or mine & (edits.drops | edits.renames.keys())):
        return None
    storages = {storage.key: write_plan.OutputStorage(storage.range, storage.crc) for storage in file.storages}
    storages |= {key: storage for (name, key), storage in edits.trims.items() if name == file.name}
    tensors: list[write_plan.OutputTensor] = []
    for record in file.tensors:
        if record.name in additions:
            tensors.append(additions[record.name][0])
        elif record.name not in edits.drops:
            home = storages[record.storage] if record.storage is not None else None
            tensors.append(stored(record, edits.renames.get(record.name, record.name), home))
        tensors += [
            tensor for name, (tensor, beside) in additions.items() if beside == record.name and name not in mine
        ]
    return write_plan.OutputWeights(file.name, tuple(tensors), metadata, file.gguf)


def _assemble(
    edits: Edits,
    weights: tuple[write_plan.OutputWeights, ...],
    texts: tuple[write_plan.OutputText, ...],
    removed: tuple[str, ...],
) -> Files:
    checkpoint = edits.checkpoint
    written = {output.name for output in weights} | {text.name for text in texts} | set(removed)
    links = {file.name: file.size for file in checkpoint.files}
    for document in (checkpoint.index, checkpoint.config):
        # A weight file given by itself is written without other files.
        if document is not None and checkpoint.layout is not Layout.FILE:
            links[document.name] = checkpoint.states[document.name].size
    links |= checkpoint.companions
    touched = edits.drops | edits.renames.keys() | edits.additions.keys()
    unchanged = tuple(write_plan.KeepTensor(name) for name in checkpoint.tensors if name not in touched)
    linked = tuple(write_plan.LinkFile(name, size) for name, size in sorted(links.items()) if name not in written)
    return Files(weights, texts, linked, removed, (*edits.operations, *unchanged))


def index_text(
    edits: Edits, weights: Iterable[write_plan.OutputWeights], removed: list[str]
) -> tuple[write_plan.OutputText, ...]:
    """Return the index for the written shards, or nothing if its text does not change."""
    index = edits.checkpoint.index
    assert index is not None  # a guard has refused a sharded model without an index
    written = {file.name: file for file in weights}
    after: dict[str, tuple[str, int, int]] = {}
    for file in edits.checkpoint.files:
        if file.name not in written and file.name not in removed:
            for record in file.tensors:
                after[record.name] = (file.name, record.nbytes, record.elements)
    for output in written.values():
        for tensor in output.tensors:
            after[tensor.name] = (output.name, tensor.nbytes, prod(tensor.shape))
    before = {record.name: record.range.file for record in edits.checkpoint.tensors.values()}
    drop = {name: shard for name, shard in before.items() if name not in after}
    add = {name: home for name, (home, _, _) in after.items() if before.get(name) != home}
    # Names with the same view of one storage count once, as in transformers.
    seen: dict[object, int] = {}
    for file in edits.checkpoint.files:
        for record in file.tensors:
            if after.get(record.name, ("",))[0] == file.name and file.name not in written:
                seen[record.range, record.stride] = record.nbytes
    for output in written.values():
        for tensor in output.tensors:
            seen[(output.name, tensor.content, tensor.stride) if tensor.storage else tensor] = after[tensor.name][1]
    total = sum(seen.values())
    parameters = sum(elements for _, _, elements in after.values())
    parameters -= sum(record.elements for record in edits.checkpoint.tensors.values())
    text = edit_index(index.text, drop=drop, add=add, total_size=total, parameters_added=parameters)
    return (write_plan.OutputText(index.name, text),) if text != index.text else ()


# Update the metadata of weight files: no entry may be wrong after the edits.
def metadata_after(file: WeightFile, edits: Edits, names: set[str]) -> tuple[Mapping[str, str] | None, bool]:
    """Return the metadata of ``file`` without entries that the edits make wrong, and whether it changes.

    ``names`` are the tensors that the file will have.

    `safetensors.torch.save_model` records a dropped alias as ``{dropped name: kept name}``.
    """
    if file.metadata is None or file.gguf is not None:  # the metadata of GGUF names no tensors
        return file.metadata, False
    tensors = edits.checkpoint.tensors
    aliases = {key: value for key, value in file.metadata.items() if value in tensors}
    stored = edits.after() if aliases else set[str]()
    stale = [key for key, value in aliases.items() if key in stored or value not in stored]
    after = {key: value for key, value in file.metadata.items() if key not in stale}
    for key in stale:
        edits.operations.append(write_plan.SetMetadata(file.name, key, None))
    changed = edits.checkpoint.format == "safetensors" and _mark_copies(file, edits, names, after)
    return after, changed or bool(stale)


def _mark_copies(file: WeightFile, edits: Edits, names: set[str], metadata: dict[str, str]) -> bool:
    """Record in ``metadata`` which ``names`` are kept copies. Return whether that changes the metadata."""
    before = weight_file.names_in(metadata)
    after = ({edits.renames.get(name, name) for name in before} | edits.kept_copies) & names
    if before == after:
        return False
    value = weight_file.entry(after) if after else None
    edits.operations.append(write_plan.SetMetadata(file.name, weight_file.KEY, value))
    if value is None:
        del metadata[weight_file.KEY]
    else:
        metadata[weight_file.KEY] = value
    return True


def metadata_of_new(edits: Edits, shard: str, names: Iterable[str]) -> Mapping[str, str] | None:
    """Return the metadata of a new shard with ``names``. torch files have none."""
    if edits.checkpoint.format == "torch":
        return None
    copies = edits.kept_copies.intersection(names)
    if not copies:
        return {"format": "pt"}
    edits.operations.append(write_plan.SetMetadata(shard, weight_file.KEY, weight_file.entry(copies)))
    return {"format": "pt", weight_file.KEY: weight_file.entry(copies)}
