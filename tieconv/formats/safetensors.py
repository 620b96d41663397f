"""Read the headers of safetensors files strictly, as the specification demands.

Source: the safetensors format description and `Metadata::validate` of safetensors 0.8. This reader is stricter than
the library: it refuses white space before the `{` and repeated keys at any depth. It also refuses other fields in a
tensor's entry, entries written as a list, and more than 64 dimensions. It is looser with an unknown dtype: such a
tensor is kept as bytes, and `model.unknown_dtypes` reports it. `MAX_TENSORS` and `MAX_METADATA` are limits of tieconv.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn

from tieconv.checkpoint.model_files import REFUSED_BY_READER, Caution, Files, check_git_file
from tieconv.checkpoint.weight_file import BITS, ByteRange, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.directory import Model, Naming
from tieconv.formats.limits import MAX_METADATA, WINDOW, NameCount, Shapes
from tieconv.formats.strict_json import collector_paused, loads, refuse
from tieconv.text import count, shown

SUFFIX = ".safetensors"
HEADER_LIMIT = 100_000_000
"""The largest header in bytes, which is the limit of the safetensors library."""
PAGE = 4096
"""Bytes of a block. File systems share whole blocks, so shared data needs equal offsets modulo this."""
MAX_RANK = 64

_INCOMPLETE = "the download may be incomplete; fetch the file again"

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""


def read_weight_file(pread: Pread, size: int, name: str) -> WeightFile:
    """Read the tensors of one file from its header. Raises `UnreadableError` with a stable code."""
    if size == 0:
        _refuse(name, "is empty", "empty", "fetch or save it again")
    first = pread(min(size, 512), 0)
    check_git_file(name, first, size)
    length = int.from_bytes(first[:8], "little")
    # The first bytes of a zip archive are a possible length, so the next bytes decide.
    if (length > HEADER_LIMIT or not first[8:].startswith(b"{")) and (kind := other_kind(first)):
        _refuse(name, *kind)
    if size < 10:
        _refuse(name, f"has {count(size, 'byte')}, too few for a header", "too-small", _INCOMPLETE)
    if length > HEADER_LIMIT:
        _refuse(name, f"declares a header of {length:,} bytes (limit {HEADER_LIMIT:,})", "header-too-large")
    if length < 2:
        _refuse(name, f"declares a header of {count(length, 'byte')}, too few for a header", "header-too-small")
    if 8 + length > size:
        _refuse(
            name, f"declares a header of {length:,} bytes, but the file has {size:,}", "truncated-header", _INCOMPLETE
        )
    if first[8:9] != b"{":
        _refuse(name, "has a header that does not start with `{`", "header-start")
    with collector_paused():
        data_start = 8 + length
        metadata, tensors = _tensors(_batches(pread, length, name), name, data_start)
        records = sorted(tensors.values(), key=lambda record: (record.range.start, record.range.end))
        # As the format demands, tensors cover the data without overlap, hole or trailing bytes.
        position = data_start
        for record in records:
            start, end = record.range.start, record.range.end
            if end > size:
                problem = f"ends at byte {size:,} but tensor {shown(record.name)} reaches to {end:,}"
                _refuse(name, problem, "truncated", _INCOMPLETE)
            if start < position:
                _refuse(name, f"tensor {shown(record.name)} overlaps the previous tensor", "overlap")
            if start > position:
                _refuse(name, f"{_stray(start - position)} before tensor {shown(record.name)}", "hole")
            position = end
        if position != size:
            _refuse(name, f"{_stray(size - position)} after the last tensor", "trailing")
        return WeightFile(name, size, data_start, tuple(records), metadata)


def _batches(pread: Pread, length: int, name: str) -> Iterator[dict[str, object]]:
    """Yield the header's entries in batches. A small header is one batch."""
    title = f"{name} (header)"
    if length <= WINDOW:
        yield loads(_whole(pread(length, 8), length, name), title, limit=HEADER_LIMIT)
        return
    from tieconv.formats.json_text import Members  # few headers are large

    members = Members(lambda size, offset: _whole(pread(size, offset), size, name), 8, 8 + length, title)
    yield from members.batches()
    members.finish()


def _tensors(
    batches: Iterable[dict[str, object]], name: str, data_start: int
) -> tuple[Mapping[str, str] | None, dict[str, TensorRecord]]:
    metadata: Mapping[str, str] | None = None
    records: dict[str, TensorRecord] = {}
    names, shapes = NameCount(), Shapes()
    for batch in batches:
        if "__metadata__" in batch:
            _check_new("__metadata__", metadata is not None, name)
            metadata = _metadata(batch.pop("__metadata__"), name)
        if not batch.keys().isdisjoint(records):
            _check_new(min(batch.keys() & records), True, name)
        if excess := names.excess(batch, len(batch)):
            _refuse(name, f"holds {excess}", "tensors", "split the model into shards of fewer tensors")
        for key, value in batch.items():
            records[key] = _record(key, value, name, data_start, shapes)
    return metadata, records


def _check_new(key: str, repeated: bool, name: str) -> None:
    if repeated:
        refuse(f"{name} (header)", f"the key {shown(key)} is repeated", "json.refused")


def _whole(raw: bytes, length: int, name: str) -> bytes:
    if len(raw) != length:
        _refuse(name, "ends inside its header", "truncated-header", _INCOMPLETE)
    return raw


def _metadata(value: object, name: str) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        _refuse(name, "has a __metadata__ that does not map strings to strings", "metadata")
    if len(value) > MAX_METADATA:
        _refuse(name, f"has a __metadata__ of more than {MAX_METADATA:,} entries", "metadata-size")
    return value


def _record(name: str, value: object, file: str, data_start: int, shapes: Shapes) -> TensorRecord:
    try:
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            raise _EntryProblem("needs an entry with exactly dtype, shape and data_offsets", "entry")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or not dtype:
            raise _EntryProblem("has no dtype name", "dtype")
        if not _are_naturals(shape) or len(shape) > MAX_RANK:
            raise _EntryProblem(f"has a shape that is not a list of at most {MAX_RANK} sizes", "shape")
        if not _are_naturals(offsets) or len(offsets) != 2:
            raise _EntryProblem("has data_offsets that are not a pair of offsets", "offsets")
        start, end = offsets
        if start > end:
            raise _EntryProblem(f"ends at byte {end}, before it starts at byte {start}", "offsets")
        dtype, shape = _DTYPES.get(dtype, dtype), tuple(shape)
        _check_width(dtype, shape, end - start)
    except _EntryProblem as problem:
        _refuse(file, f"tensor {shown(name)} {problem}", problem.code)
    return TensorRecord(name, dtype, shapes.shared(shape), ByteRange(file, data_start + start, data_start + end))


class _EntryProblem(ValueError):
    """A fault of one tensor's entry. Becomes an `UnreadableError` with the names of file and tensor."""

    def __init__(self, why: str, code: str) -> None:
        super().__init__(why)
        self.code = code


_DTYPES = {name: name for name in BITS}
"""One shared string for each dtype: half a million strings take 25 MB."""


def _check_width(dtype: str, shape: tuple[int, ...], size: int) -> None:
    """Check the declared bytes against shape × dtype. An unknown dtype has no width to check."""
    product = 1
    for side in shape:  # step by step like the safetensors library: a later zero does not excuse an overflow
        product *= side
        if product > _UINT64:
            raise _EntryProblem("has a shape whose size overflows 64 bits", "overflow")
    bits = BITS.get(dtype)
    if bits is None:
        return
    if product * bits > _UINT64:
        raise _EntryProblem("has a shape whose size overflows 64 bits", "overflow")
    expected, rest = divmod(product * bits, 8)
    if rest:
        raise _EntryProblem(f"of dtype {dtype} does not end on a whole byte", "sub-byte")
    if expected != size:
        needed = f"of dtype {dtype} and shape {shown(list(shape))} needs {count(expected, 'byte')}"
        raise _EntryProblem(f"{needed} but declares {size:,}", "width")


_UINT64 = (1 << 64) - 1


def _are_naturals(value: object) -> bool:
    if type(value) is not list:
        return False
    # A loop is faster than all(), and this runs a million times for a large header. A boolean is refused.
    for number in value:  # noqa: SIM110
        if type(number) is not int or not 0 <= number <= _UINT64:
            return False
    return True


def _stray(number: int) -> str:
    """Return how many bytes belong to no tensor, as the start of a sentence."""
    return f"{count(number, 'byte')} that {'belongs' if number == 1 else 'belong'} to no tensor"


def _refuse(name: str, why: str, code: str, hint: str = "") -> NoReturn:
    separator = ": " if why.startswith(("tensor ", *"0123456789")) else " "
    problem = f"{shown(name)}{separator}{why}"
    raise UnreadableError(problem, hint or "save the file again with the safetensors library", f"safetensors.{code}")


def encode_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]],
    metadata: Mapping[str, str] | None,
    *,
    congruent: Callable[[int], int] | None = None,
) -> bytes:
    """Return the first bytes of a file: length, JSON and padding spaces.

    ``tensors`` are (name, dtype, shape, bytes) in the order of their data, which follows without gaps. The header's
    length is a multiple of 8. ``congruent`` receives the smallest possible offset of the first data byte. It returns
    how many more bytes of padding align that offset with the source. Then a file system can share blocks. Readers
    do not require a multiple of 8 there.
    """
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    position = 0
    for name, dtype, shape, size in tensors:
        if name == "__metadata__" or name in header:
            problem = f"safetensors cannot store the tensor name {shown(name)}"
            raise UnreadableError(problem, "give the tensor another name", "safetensors.name")
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    body += b" " * (-len(body) % 8)
    if congruent is not None:
        body += b" " * congruent(8 + len(body))
    if len(body) > HEADER_LIMIT:
        problem = f"the header would have {len(body):,} bytes, more than the limit of {HEADER_LIMIT:,}"
        raise UnreadableError(problem, "store the tensors in more than one file", "safetensors.header-too-large")
    return len(body).to_bytes(8, "little") + body


_SAVE_AGAIN = "load it with the library that wrote it and save it as safetensors"
_DISGUISES: tuple[tuple[bytes, str, str, str], ...] = (
    (b"PK\x03\x04", "is a zip archive (a torch file?), not safetensors", "zip", "if it is one, rename it to .bin"),
    (b"\x80", "is a pickle (an old torch file?), not safetensors", "pickle", "if it is one, rename it to .bin"),
    (b"GGUF", "is a GGUF file, not safetensors", "gguf", "rename it to .gguf"),
    (b"\x89HDF", "is an HDF5 file, not safetensors", "hdf5", _SAVE_AGAIN),
    (b"\x93NUMPY", "is a NumPy array, not safetensors", "numpy", _SAVE_AGAIN),
    (b"\x1f\x8b", "is compressed with gzip", "gzip", "unpack it: gunzip"),
)


def other_kind(first: bytes) -> tuple[str, str, str] | None:
    """Return why a file that starts with ``first`` is not safetensors, the code of that refusal and its hint."""
    for start, why, code, hint in _DISGUISES:
        if first.startswith(start):
            return why, code, hint
    if first.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "is an HTML page, not weights", "html", "the download failed; fetch the file again"
    return None


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    size = files.state(name).size
    file = read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name)
    return file, unknown_dtypes(file)


def unknown_dtypes(file: WeightFile) -> tuple[Caution, ...]:
    """Return one caution for each dtype that safetensors does not know. safetensors refuses the whole file."""
    unknown: dict[str, list[str]] = {}
    for tensor in file.tensors:
        if tensor.dtype not in BITS:
            unknown.setdefault(tensor.dtype, []).append(tensor.name)
    cautions = []
    for dtype, names in list(unknown.items())[:4]:
        more = f" and {count(len(names) - 1, 'other tensor')}" if len(names) > 1 else ""
        problem = f"it does not know the dtype {shown(dtype, 40)} of {shown(names[0])}{more}"
        cautions.append(Caution(REFUSED_BY_READER, f"safetensors refuses {shown(file.name)}: {problem}", (names[0],)))
    return tuple(cautions)


_SHARD = r"-\d{5}-of-\d{5}\.safetensors$"
_OTHERS = rf"^shard-\d{{5}}-model{_SHARD}"  # chunks of one rank, read as DCP
_NAMING = Naming("safetensors", "safetensors file", "model.safetensors", (SUFFIX,), _SHARD, _OTHERS)
SAFETENSORS = Model.of(_NAMING, _read_one)
