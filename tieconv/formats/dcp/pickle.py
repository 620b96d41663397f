"""Read the `.metadata` pickle of a torch distributed checkpoint without running it.

Every allowed class or function becomes an `Instance`, which holds the arguments of the call.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.formats.torch.pickle.machine import run
from tieconv.formats.torch.pickle.machine_state import Truncated
from tieconv.formats.torch.pickle.values import Global, Globals, Instance, Pairs, PickleProblem, describe, refuse
from tieconv.text import shown

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
_NAMES = (
    *(f"torch.{name}" for name in _TYPES),
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
_LAYOUTS = frozenset(
    f"torch.{name}"
    for name in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged")
)
_FORMATS = range(3)
"""The numbers of `_MEM_FORMAT_ENCODING`."""
_STATELESS = frozenset({"torch.Size", "torch.device", "torch.serialization._get_layout"})
"""What has no attributes that BUILD could set."""


class _Checked(Instance):
    """An object of the metadata. Refuses arguments and states that torch refuses."""

    __slots__ = ()

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        super().__init__(name, arguments)
        first = arguments[0] if len(arguments) == 1 else None
        if name.endswith("._get_layout") and (type(first) is not str or first not in _LAYOUTS):
            refuse("names an unknown layout of a tensor", "pickle.arguments")
        if name.endswith("._MEM_FORMAT_ENCODING") and (type(first) is not int or first not in _FORMATS):
            refuse("names an unknown memory format", "pickle.arguments")

    def build(self, state: object) -> None:
        if self.name.endswith(".TensorProperties"):
            encoding = state[3] if isinstance(state, tuple) and len(state) == 5 else None
            if not isinstance(encoding, Instance) or not encoding.name.endswith("._MEM_FORMAT_ENCODING"):
                refuse("has a tensor without a memory format", "pickle.build")
        elif self.name in _STATELESS or not isinstance(state, Pairs):
            refuse(f"sets attributes of {describe(self)} to {describe(state)}", "pickle.build")
        self.state = state


ALLOWED: Globals = {name: Global(name, partial(_Checked, name), instances=True) for name in _NAMES}
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
    except Truncated:
        raise UnreadableError(f"{shown(name)} is truncated", "save the checkpoint again", "dcp.malformed") from None
    except PickleProblem as problem:
        raise _read_error(problem, name) from None


def _persistent(_pid: object) -> NoReturn:
    refuse("refers to a tensor storage, which metadata never holds", "pickle.persistent")


def _read_error(problem: PickleProblem, name: str) -> UnreadableError:
    if problem.code == "pickle.global":
        return UnreadableError(
            f"{shown(name)} {problem}", "do not load this checkpoint with torch unless you trust it", "dcp.global"
        )
    return UnreadableError(
        f"{shown(name)} is not the metadata of a distributed checkpoint: it {problem}",
        "save the checkpoint again",
        "dcp.malformed",
    )
