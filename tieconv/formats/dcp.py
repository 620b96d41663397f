"""Read a torch distributed checkpoint (DCP): a `.metadata` pickle and `__<rank>_<n>.distcp` files.

The metadata lists all tensors, so no tensor byte is read. A tensor may be split into chunks over several files, and
each chunk is a separate torch archive. `tieconv.inspection.chunk_reader` reads their values.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import NoReturn

from tieconv.checkpoint.model_files import Caution, Checkpoint, Document, Files, Layout, Listing
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import BITS, ByteRange, Chunk, ChunkTable, TensorRecord, WeightFile
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats.directory import CONFIG, absent_shard, checkpoint_of, read_config
from tieconv.formats.limits import DCP_METADATA, DCP_SHARD, DCP_SUFFIX, TENSORS
from tieconv.formats.safetensors import read_weight_file
from tieconv.formats.strict_json import loads
from tieconv.formats.torch import pickle_stack
from tieconv.formats.torch.pickle_machine import run
from tieconv.formats.torch.pickle_stack import natural
from tieconv.text import OUT, Hint, call, shown


def read_directory(listing: Listing, files: Files) -> Checkpoint:
    """Read the checkpoint that ``listing`` names. Raises `UnreadableError` with a stable code."""
    # Whether MODEL has the files of this layout, judged by their names.
    if not listing.named and any(DCP_SHARD.fullmatch(name) for name in listing.top):
        tensors, names = read_shards(listing, files)
        return _checkpoint(listing, files, tensors, names, "", True)
    if DCP_METADATA not in listing.entries:
        problem = f"{shown(listing.source)} holds {DCP_SUFFIX} files but no {DCP_METADATA}"
        hint = "fetch the missing file, or save the checkpoint again; the save may not have finished"
        raise UnreadableError(problem, hint, "dcp.no-metadata")
    chunks, names, transformed = read_metadata(listing, files)
    return _checkpoint(listing, files, chunks, names, DCP_METADATA, not transformed)


def _checkpoint(
    listing: Listing,
    files: Files,
    tensors: Iterable[StoredChunks],
    names: tuple[str, ...],
    metadata: str,
    readable: bool,
) -> Checkpoint:
    source = metadata or listing.source
    chunks, overlapping, starts = {}, set(), {}
    model, training = [], {}
    position = 0
    for tensor in tensors:
        # The record of one tensor: its dense bytes, behind those of the tensors before it.
        nbytes = prod(tensor.shape) * BITS.get(tensor.dtype, 8) // 8
        if nbytes >= 1 << 63:
            problem = f"{source}: {shown(tensor.name)} has a size that overflows 64 bits"
            raise UnreadableError(problem, "save the checkpoint again", "dcp.malformed")
        record = TensorRecord(tensor.name, tensor.dtype, tensor.shape, ByteRange(TENSORS, position, position + nbytes))
        position = record.range.end
        if overlaps(tensor.name, tensor.shape, tensor.chunks, source):
            overlapping.add(tensor.name)
        chunks[tensor.name] = tensor.chunks
        if is_training_state(tensor.name, tensor.keys):
            training[tensor.name] = record
            continue
        model.append(record)
        start = ".".join(tensor.keys[:-1])
        if start and tensor.name == ".".join(tensor.keys):
            starts[tensor.name] = f"{start}."
    table, records = ChunkTable(chunks, frozenset(overlapping), training, starts), tuple(model)
    weights = tuple(
        WeightFile(name, listing.entries[name], 0, () if number else records, None) for number, name in enumerate(names)
    )
    config, cautions = _find_config(listing, files)
    used = {*names, *([metadata] if metadata else []), *([config.name] if config else [])}
    checkpoint = checkpoint_of(listing, files, Layout.SHARDED, "dcp", weights, sorted(used))
    hint = Hint("convert it first: ", call("convert", listing.source, to="safetensors", out=OUT))
    if remote := hasattr(files, "client"):
        hint = Hint("copy it to this machine, and convert it there")
    closed = remote or not readable
    return replace(checkpoint, config=config, cautions=cautions, table=table, read_only=hint, headers_only=closed)


def _find_config(listing: Listing, files: Files) -> tuple[Document | None, tuple[Caution, ...]]:
    """Return the first config inside the checkpoint, and its cautions. Nothing outside the checkpoint is opened."""
    if CONFIG in listing.top:
        return read_config(files)
    # verl, torchtitan and NeMo Automodel write the config and the tokenizer into such a directory.
    inside = (f"{folder}/{CONFIG}" for folder in ("huggingface", "hf_assets", ".hf_metadata"))
    name = next((name for name in inside if name in listing.entries), None)
    return (None, ()) if name is None else read_config(files, name)


CELLS_EACH = 64
"""Most cells of the common grid for each chunk. A mesh has one cell a chunk."""
CELLS = 1024
"""Cells that any tensor may have."""


def overlaps(name: str, shape: Sequence[int], chunks: Sequence[Chunk], source: str) -> bool:
    """Return whether two chunks share an element. Raises `UnreadableError` unless the chunks cover the tensor.

    The borders of all chunks cut the tensor into cells. Each chunk then is a box of whole cells.
    """
    for chunk in chunks:
        ends = [start + side for start, side in zip(chunk.offsets, chunk.shape, strict=True)]
        if any(end > side for end, side in zip(ends, shape, strict=True)):
            where = f"a chunk of {shown(name)} that reaches to {_index(ends)}"
            raise _malformed(source, f"has {where}, outside the shape {_index(shape)}", "dcp.outside")
    if not prod(shape):
        return False
    chunks = [chunk for chunk in chunks if prod(chunk.shape)]
    borders = [sorted({0, side, *_borders(chunks, axis)}) for axis, side in enumerate(shape)]
    sides = [len(border) - 1 for border in borders]
    if prod(sides) > CELLS + CELLS_EACH * len(chunks):
        raise _malformed(source, f"cuts {shown(name)} into chunks that form no mesh", "dcp.mesh")
    covered = bytearray(prod(sides))
    shared = False
    for chunk in chunks:
        for cell in _cells(chunk, borders, sides):
            shared |= bool(covered[cell])
            covered[cell] = 1
    if not all(covered):
        number, corner = covered.index(0), []
        for border in reversed(borders):
            number, position = divmod(number, len(border) - 1)
            corner.append(border[position])
        raise _malformed(source, f"has no chunk of {shown(name)} for the element {_index(corner[::-1])}", "dcp.hole")
    return shared


def _borders(chunks: Sequence[Chunk], axis: int) -> Iterator[int]:
    for chunk in chunks:
        yield chunk.offsets[axis]
        yield chunk.offsets[axis] + chunk.shape[axis]


def _cells(chunk: Chunk, borders: Sequence[Sequence[int]], sides: Sequence[int]) -> Iterator[int]:
    """Yield the number of each cell of the chunk, in row-major order."""
    spans = [
        range(bisect_left(border, start), bisect_left(border, start + side))
        for border, start, side in zip(borders, chunk.offsets, chunk.shape, strict=True)
    ]
    for index in product(*spans):
        number = 0
        for position, side in zip(index, sides, strict=True):
            number = number * side + position
        yield number


def _index(values: Sequence[int]) -> str:
    return f"[{', '.join(f'{value:,}' for value in values)}]"


def _malformed(source: str, why: str, code: str = "dcp.malformed") -> UnreadableError:
    return UnreadableError(f"{shown(source)} {why}", "save the checkpoint again", code)


_DICTIONARY = re.compile(r"optim(\w*)|\w*(optimizers?|schedulers?|dataloader|rng_states?|train_state|grad_scaler)")
"""Keys of dictionaries around the model's state dict that hold no weights."""
_STATE = frozenset(
    {
        *("exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"),
        *("acc_delta", "sum", "prev", "step_size", "master_param", "master_weight", "fp32_param"),
    }
)
"""Names of the state that optimizers of torch, Apex and Megatron keep for each parameter."""
_PARAMETER = re.compile(r"\.(weight|bias)\.")
_OUTER = 3
"""The most dictionaries around a state dict: ``app``, ``optim`` and ``state``."""


def is_training_state(name: str, keys: Sequence[str]) -> bool:
    """Return whether a tensor belongs to the training state. ``keys`` is its path of dictionary keys, if known.

    Parts of a module's name never decide alone: a module may be called ``optim`` at a deeper level.
    """
    parts = list(keys[:-1]) if len(keys) > 1 else name.split(".")[:_OUTER]
    if any(_DICTIONARY.fullmatch(part) for part in parts[:_OUTER]) and len(name.split(".")) > 1:
        return True
    ending = name.rpartition(".")[2]
    return ending in _STATE and (ending not in {"sum", "prev"} or bool(_PARAMETER.search(name)))


# Read the shards that `HuggingFaceStorageWriter` of torch saves for each rank: safetensors files with chunks.
#
# The metadata entry `DCP_SHARDING_INFO` of each file has the offset of each chunk. No file has the shapes: as in
# torch, a shape is the largest end of a chunk. Source: torch/distributed/checkpoint/hf_storage.py of torch 2.13.

_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_LIMIT = 100_000_000


def read_shards(listing: Listing, files: Files) -> tuple[tuple[StoredChunks, ...], tuple[str, ...]]:
    """Return the tensors, and the files that hold them. Raises `UnreadableError` with a stable code."""
    names = sorted(name for name in listing.top if DCP_SHARD.fullmatch(name))
    # Refuse a gap in the numbers of the ranks. A missing last rank shows only as a hole or a smaller shape.
    ranks = sorted({int(match.group(1)) for name in names if (match := DCP_SHARD.fullmatch(name))})
    missing = next((number for number, rank in enumerate(ranks, 1) if number != rank), None)
    if missing is not None:
        problem = f"the files of rank {missing} are missing: no file starts with shard-{missing:05d}"
        raise UnreadableError(problem, "fetch the missing file: every rank writes a separate file", "dcp.absent-file")
    chunks: dict[str, list[Chunk]] = {}
    dtypes: dict[str, str] = {}
    for name in names:
        file = read_weight_file(partial(files.pread, name), listing.entries[name], name)
        for tensor, offsets in _chunks(file):
            if dtypes.setdefault(tensor.name, tensor.dtype) != tensor.dtype:
                raise _malformed(name, f"stores {shown(tensor.name)} with another dtype than the other shards")
            chunks.setdefault(tensor.name, []).append(Chunk(offsets, tensor.shape, tensor.range, archive=False))
    return tuple(
        StoredChunks(name, dtypes[name], _shape(name, every), tuple(every), ()) for name, every in chunks.items()
    ), tuple(names)


def _chunks(file: WeightFile) -> Iterator[tuple[TensorRecord, tuple[int, ...]]]:
    text = (file.metadata or {}).get(_INFO)
    table = loads(text.encode(), f"{file.name} ({_INFO})", limit=_LIMIT) if text is not None else {}
    for tensor in file.tensors:
        entry = table.get(tensor.name)
        offsets = entry.get(_OFFSETS) if isinstance(entry, Mapping) else None
        if text is None:
            offsets = [0] * len(tensor.shape)
        if not isinstance(offsets, list) or len(offsets) != len(tensor.shape) or not all(map(natural, offsets)):
            raise _malformed(file.name, f"has no offset of {shown(tensor.name)} in {_INFO}")
        yield tensor, tuple(offsets)


def _shape(name: str, chunks: list[Chunk]) -> tuple[int, ...]:
    if len({len(chunk.shape) for chunk in chunks}) > 1:
        raise _malformed(chunks[0].range.file, f"stores {shown(name)} with another rank than the other shards")
    ends = ([start + side for start, side in zip(chunk.offsets, chunk.shape, strict=True)] for chunk in chunks)
    return tuple(map(max, zip(*ends, strict=True)))


# Read the `.metadata` of a torch distributed checkpoint: shapes, dtypes, chunks and the file range of each chunk.
#
# Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.13.


@record
class StoredChunks:
    """A tensor of the checkpoint, and the path of dictionary keys that leads to it (empty if unknown)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    keys: tuple[str, ...]


def read_metadata(listing: Listing, files: Files) -> tuple[tuple[StoredChunks, ...], tuple[str, ...], bool]:
    """Return the tensors of a checkpoint, the files that hold them, and whether an extension of torch changed bytes.

    Raises `UnreadableError` with a stable code.
    """
    data = files.pread(DCP_METADATA, min(files.state(DCP_METADATA).size, LIMIT) + 1, 0)
    fields = _fields(parse(data, DCP_METADATA, sum(listing.entries.values())))
    places, transformed = _places(fields, listing)
    tensors = tuple(_tensors(fields, places))
    names = {span.file for chunks in places.values() for span in chunks.values()}
    return tensors, tuple(sorted(names)), transformed


def _fields(value: object) -> dict[str, object]:
    if isinstance(value, pickle_stack.Instance) and value.name.endswith(".Metadata"):
        fields = value.fields()
        extra = fields.get("storage_meta")
        if extra is not None and not (isinstance(extra, pickle_stack.Instance) and extra.name.endswith(".StorageMeta")):
            _refuse("its storage_meta is not a StorageMeta, on which torch sets an attribute")
        if isinstance(fields.get("state_dict_metadata"), pickle_stack.Pairs) and isinstance(
            fields.get("storage_data"), pickle_stack.Pairs
        ):
            return fields
    return _refuse("this is not the metadata of a torch distributed checkpoint")


_Offset = tuple[int, ...] | None
_Places = dict[str, dict[_Offset, ByteRange]]
"""Tensor name → offset of each chunk → where it is stored. Only bytes, which tieconv never reads, have no offset."""


def _places(metadata: Mapping[str, object], listing: Listing) -> tuple[_Places, bool]:
    """Return the file range of each chunk, checked against the existing files, and whether one is transformed."""
    places: _Places = {}
    transformed = False
    storage = metadata["storage_data"]
    assert isinstance(storage, pickle_stack.Pairs)
    for index, info in storage.items:
        if not isinstance(index, pickle_stack.Instance) or not isinstance(info, pickle_stack.Instance):
            _refuse("an entry of storage_data is not an index and a location")
        where, fields = index.fields(), info.fields()
        name = where.get("fqn")
        file, start, size = fields.get("relative_path"), fields.get("offset"), fields.get("length")
        if not isinstance(name, str) or not isinstance(file, str):
            _refuse("an entry of storage_data has no tensor name or no file name")
        if not pickle_stack.natural(start) or not pickle_stack.natural(size):
            _refuse(f"{shown(name)} has no offset and length in {shown(file)}")
        _check_place(name, file, start + size, listing)
        offset = None if where.get("offset") is None else _sides(name, where.get("offset"))
        transformed = transformed or bool(fields.get("transform_descriptors"))
        chunks = places.setdefault(name, {})
        if offset in chunks:
            _refuse(f"{shown(name)} has two chunks at one offset")
        chunks[offset] = ByteRange(file, start, start + size)
    return places, transformed


def _check_place(name: str, file: str, end: int, listing: Listing) -> None:
    if "/" in file or "\\" in file or "\0" in file or file in {".", "..", ""}:
        problem = f"{DCP_METADATA} places {shown(name)} in {shown(file)}, outside the checkpoint"
        raise UnsafePathError(problem, "do not trust this checkpoint", "dcp.escape")
    if file not in listing.entries:
        raise absent_shard(
            f"{DCP_METADATA} places {shown(name)} in", file, "dcp.absent-file", ": every rank writes a separate file"
        )
    if end > listing.entries[file]:
        problem = f"{shown(file)} ends at byte {listing.entries[file]:,} but {shown(name)} reaches to {end:,}"
        raise UnreadableError(problem, "the copy may be incomplete; fetch the file again", "dcp.truncated")


def _tensors(metadata: Mapping[str, object], places: _Places) -> Iterator[StoredChunks]:
    """Yield each tensor. Skips what is stored as a pickle of another object, which tieconv never reads."""
    entries = metadata["state_dict_metadata"]
    assert isinstance(entries, pickle_stack.Pairs)
    planned = metadata.get("planner_data")  # the keys of the dictionaries that lead to each tensor
    paths = {
        name: tuple(str(key) for key in path if isinstance(key, str | int))
        for name, path in (planned.items if isinstance(planned, pickle_stack.Pairs) else [])
        if isinstance(name, str) and isinstance(path, tuple | list)
    }
    seen: set[str] = set()
    for name, entry in entries.items:
        if not isinstance(name, str) or not isinstance(entry, pickle_stack.Instance):
            _refuse("an entry of state_dict_metadata has no name")
        if name in seen:
            _refuse(f"{shown(name)} is repeated")
        seen.add(name)
        if entry.name.endswith(".TensorStorageMetadata"):
            fields = entry.fields()
            shape = _sides(name, fields.get("size"))
            chunks = tuple(_chunks_at(name, shape, fields.get("chunks"), places.get(name, {})))
            yield StoredChunks(name, _dtype(name, fields.get("properties")), shape, chunks, paths.get(name, ()))
        elif not entry.name.endswith(".BytesStorageMetadata"):
            _refuse(f"{shown(name)} is neither a tensor nor bytes")


def _chunks_at(name: str, shape: tuple[int, ...], listed: object, places: dict[_Offset, ByteRange]) -> Iterator[Chunk]:
    if not isinstance(listed, list) or not places:
        _refuse(f"{shown(name)} has no stored chunk")
    for each in listed:
        fields = each.fields() if isinstance(each, pickle_stack.Instance) else {}
        offsets, sides = _sides(name, fields.get("offsets")), _sides(name, fields.get("sizes"))
        if not len(shape) == len(offsets) == len(sides):
            _refuse(f"{shown(name)} has a chunk of another rank")
        span = places.get(offsets)  # as torch: it does not find a chunk that is stored without an offset
        if span is None:
            _refuse(f"{shown(name)} has a chunk at {list(offsets)} that no file stores")
        yield Chunk(offsets, sides, span, archive=True)


def _sides(name: str, size: object) -> tuple[int, ...]:
    if isinstance(size, pickle_stack.Instance) and size.name == "torch.Size" and len(size.arguments) == 1:
        (shape,) = size.arguments
        if isinstance(shape, tuple) and len(shape) <= 64 and all(map(pickle_stack.natural, shape)):
            return shape
    return _refuse(f"{shown(name)} has no shape")


def _dtype(name: str, properties: object) -> str:
    state = properties.state if isinstance(properties, pickle_stack.Instance) else None
    first = state[0] if isinstance(state, tuple) and state else None
    if isinstance(first, pickle_stack.Global) and first.name.startswith("torch."):
        short = first.name.removeprefix("torch.")
        dtype = pickle_stack.DTYPES.get(short)
        return dtype.name if dtype is not None and dtype.name in BITS else short
    return _refuse(f"{shown(name)} has no dtype")


def _refuse(why: str) -> NoReturn:
    raise UnreadableError(f"{DCP_METADATA}: {why}", "save the checkpoint again", "dcp.malformed")


# Read the `.metadata` pickle of a torch distributed checkpoint without running it.
#
# Every allowed class or function becomes an `Instance`, which holds the arguments of the call.

LIMIT = 100_000_000
"""The largest metadata in bytes."""
OPCODES = 1_000_000
"""Opcodes that any metadata may have. They run in a fifth of a second."""
BYTES_EACH = 8
"""Each 8 bytes of the checkpoint allow one more opcode. A chunk needs about 60 opcodes and at least 500 bytes."""
MOST_OPCODES = 3_000_000
"""The most opcodes of any metadata: about 50,000 chunks and less than 300 MB of memory."""

_DCP = "torch.distributed.checkpoint"
_TYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    *("strided", "Size", "device"),
)
_METADATA = (
    *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
    *("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
)
_NAMES = (
    *(f"torch.{name}" for name in _TYPES),
    *(f"{_DCP}.metadata.{name}" for name in _METADATA),
    *(f"{_DCP}.filesystem._StorageInfo", f"{_DCP}.filesystem._StoragePrefix", "torch.serialization._get_layout"),
    *("pathlib.PosixPath", "pathlib.PurePosixPath", "pathlib.WindowsPath", "pathlib.PureWindowsPath"),
    *("pathlib._local.PosixPath", "pathlib._local.WindowsPath", "collections.OrderedDict", "collections.defaultdict"),
    *("builtins.set", "builtins.dict", "builtins.list", "builtins.frozenset"),
)
_LAYOUTS = frozenset(
    f"torch.{name}"
    for name in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged")
)
_FORMATS = ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")  # from 0
_COLLECTIONS = frozenset({"torch.Size", "builtins.set", "builtins.list", "builtins.frozenset"})
_UNFILLED = frozenset({"collections.OrderedDict", "builtins.dict"})
_STATELESS = frozenset({"torch.Size", "torch.device", "torch.serialization._get_layout"})
"""What has no attributes that BUILD could set."""


class _Checked(pickle_stack.Instance):
    """An object of the metadata. Refuses arguments and states that torch refuses."""

    __slots__ = ()

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        super().__init__(name, arguments)
        first = arguments[0] if len(arguments) == 1 else None
        if name.endswith("._get_layout") and (type(first) is not str or first not in _LAYOUTS):
            pickle_stack.refuse("names an unknown layout of a tensor", "pickle.arguments")
        wrong = arguments if name in _UNFILLED else name in _COLLECTIONS and type(first) not in (list, tuple)
        if wrong and (arguments or name == "torch.Size"):
            pickle_stack.refuse(f"makes a {name} of {pickle_stack.describe(arguments)}", "pickle.arguments")
        if name.endswith("._MEM_FORMAT_ENCODING") and (type(first) is not int or first not in range(3)):
            pickle_stack.refuse("names an unknown memory format", "pickle.arguments")

    def build(self, state: object) -> None:
        if self.name.endswith(".TensorProperties"):
            encoding = state[3] if isinstance(state, tuple) and len(state) == 5 else None
            if not isinstance(encoding, pickle_stack.Instance) or not encoding.name.endswith("._MEM_FORMAT_ENCODING"):
                pickle_stack.refuse("has a tensor without a memory format", "pickle.build")
        elif self.name in _STATELESS or not isinstance(state, pickle_stack.Pairs):
            pickle_stack.refuse(
                f"sets attributes of {pickle_stack.describe(self)} to {pickle_stack.describe(state)}", "pickle.build"
            )
        self.state = state


def _member(arguments: tuple[object, ...]) -> _Checked:
    """Return the memory format that Python 3.11.0 to 3.11.3 writes as an attribute of its class."""
    kind, name = arguments if len(arguments) == 2 else (None, None)
    if not isinstance(kind, pickle_stack.Global) or not kind.name.endswith("._MEM_FORMAT_ENCODING"):
        pickle_stack.refuse(f"reads an attribute of {pickle_stack.describe(kind)}", "pickle.arguments")
    return _Checked(kind.name, (_FORMATS.index(name) if name in _FORMATS else None,))


ALLOWED: pickle_stack.Globals = {  # REDUCE would miss the arguments of a dataclass, which torch makes with NEWOBJ
    name: pickle_stack.Global(name, None if name.startswith(_DCP) and "ENCODING" not in name else make, instances=make)
    for name in _NAMES
    for make in (partial(_Checked, name),)
} | {"builtins.getattr": pickle_stack.Global("builtins.getattr", _member)}
"""The globals that `torch.distributed.checkpoint.save` writes for models, optimizers and counters."""


def parse(data: bytes, name: str, size: int) -> object:
    """Return the value of the pickle in ``data``, the metadata of a checkpoint of ``size`` bytes.

    Objects become `Instance`s. Raises `UnreadableError` for a name that is not on the allow-list, for an unsupported
    opcode and for a malformed stream.
    """
    if len(data) > LIMIT:
        raise UnreadableError(
            f"{shown(name)} has more than {LIMIT:,} bytes", "save the checkpoint again", "dcp.too-large"
        )
    most = min(OPCODES + size // BYTES_EACH, MOST_OPCODES)
    try:
        return run(data, 0, ALLOWED, _persistent, lambda: most)[0]
    except pickle_stack.Truncated:
        raise UnreadableError(f"{shown(name)} is truncated", "save the checkpoint again", "dcp.malformed") from None
    except pickle_stack.PickleProblem as problem:
        if problem.code == "pickle.global":
            hint = "do not load this checkpoint with torch unless you trust it"
            raise UnreadableError(f"{shown(name)} {problem}", hint, "dcp.global") from None
        why = f"{shown(name)} is not the metadata of a distributed checkpoint: it {problem}"
        raise UnreadableError(why, "save the checkpoint again", "dcp.malformed") from None


def _persistent(_pid: object) -> NoReturn:
    pickle_stack.refuse("refers to a tensor storage, which metadata never holds", "pickle.persistent")
