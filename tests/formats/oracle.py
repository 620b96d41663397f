"""safetensors' own reader and writer as oracle."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from tests.formats.contract import Stored
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.formats.safetensors import read_weight_file

WRITER_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
"""The dtypes that safetensors' writer takes. F6 has none: its reader takes those."""

View = dict[str, tuple[str, tuple[int, ...], bytes]]


def written(tensors: Mapping[str, Stored], metadata: dict[str, str] | None) -> bytes:
    """The file that safetensors writes."""
    buffers = {name: ctypes.create_string_buffer(each.data, max(len(each.data), 1)) for name, each in tensors.items()}
    specs = {}
    for name, each in tensors.items():
        shape = list(each.shape)
        if each.dtype == "F4":
            shape[-1] //= 2  # the writer is given bytes
        address, size = ctypes.addressof(buffers[name]), len(each.data)
        specs[name] = TensorSpec(dtype=WRITER_NAMES[each.dtype], shape=shape, data_ptr=address, data_len=size)
    return bytes(serialize(specs, metadata))


def theirs(content: bytes) -> View | None:
    """What safetensors reads; ``None`` where it refuses."""
    try:
        entries = deserialize(content)
    except SafetensorError:
        return None
    return {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in entries}


def ours(content: bytes) -> WeightFile:
    """What tieconv reads. Raises `UnreadableError`."""
    return read_weight_file(lambda size, offset: content[offset : offset + size], len(content), "x.safetensors")


def view(file: WeightFile, content: bytes) -> View:
    """Our reading in the oracle's form."""
    return {
        record.name: (record.dtype, record.shape, content[record.range.start : record.range.end])
        for record in file.tensors
    }
