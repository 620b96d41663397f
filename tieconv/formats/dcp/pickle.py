"""The `.metadata` of a torch distributed checkpoint, read by the pickle interpreter of torch files: nothing runs.

Every class and function that the file may name becomes an `Instance`, which holds what it would be called with.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.formats.torch.pickle.machine import run
from tieconv.formats.torch.pickle.machine_state import Truncated
from tieconv.formats.torch.pickle.values import Global, Globals, Instance, PickleProblem, refuse
from tieconv.text import shown

LIMIT = 100_000_000
"""The largest metadata in bytes."""
OPCODES = 1_000_000
"""Opcodes that any metadata may have: a fifth of a second."""
BYTES_EACH = 8
"""Bytes of the checkpoint that allow for one opcode more: a chunk takes about 60, and half a kilobyte at least."""

MOST_OPCODES = 3_000_000
"""Opcodes of the largest metadata that is read: some 50,000 chunks, and less than 300 MB of memory."""

_DCP = "torch.distributed.checkpoint"
_TYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 complex128 strided Size device"
)
_NAMES = (
    *(f"torch.{name}" for name in _TYPES.split()),
    f"{_DCP}.metadata.Metadata",
    f"{_DCP}.metadata.TensorStorageMetadata",
    f"{_DCP}.metadata.BytesStorageMetadata",
    f"{_DCP}.metadata.ChunkStorageMetadata",
    f"{_DCP}.metadata.TensorProperties",
    f"{_DCP}.metadata.MetadataIndex",
    f"{_DCP}.metadata.StorageMeta",
    f"{_DCP}.metadata._MEM_FORMAT_ENCODING",
    f"{_DCP}.filesystem._StorageInfo",
    f"{_DCP}.filesystem._StoragePrefix",
    "torch.serialization._get_layout",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "pathlib.PureWindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "collections.OrderedDict",
    "collections.defaultdict",
    "builtins.set",
    "builtins.dict",
    "builtins.list",
    "builtins.frozenset",
)
ALLOWED: Globals = {name: Global(name, partial(Instance, name), instances=True) for name in _NAMES}
"""What `torch.distributed.checkpoint.save` writes for models, optimizers and counters."""


def parse(data: bytes, name: str, size: int) -> object:
    """The value of the pickle in ``data``, the metadata of a checkpoint of ``size`` bytes, as data and `Instance`s.

    Raises `UnreadableError` for a name off the allow-list, an opcode that is not read, or a malformed stream.
    """
    if len(data) > LIMIT:
        raise UnreadableError(f"{shown(name)} takes more than {LIMIT:,} bytes", "", "dcp.too-large")
    most = min(OPCODES + size // BYTES_EACH, MOST_OPCODES)
    try:
        return run(data, 0, ALLOWED, _persistent, lambda: most)[0]
    except Truncated:
        raise UnreadableError(f"{shown(name)} ends too early", "save the checkpoint again", "dcp.malformed") from None
    except PickleProblem as problem:
        raise _read_error(problem, name) from None


def _persistent(_pid: object) -> NoReturn:
    refuse("refers to a storage, which metadata has none of", "pickle.persistent")


def _read_error(problem: PickleProblem, name: str) -> UnreadableError:
    if problem.code == "pickle.global":
        return UnreadableError(
            f"{shown(name)} {problem}", "do not load this checkpoint with torch unless you trust it", "dcp.global"
        )
    return UnreadableError(
        f"{shown(name)} is no metadata of a distributed checkpoint: it {problem}",
        "save the checkpoint again",
        "dcp.malformed",
    )
