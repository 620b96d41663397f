"""What tieconv makes of a model: refused, reported, or the tensors that it sees."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path

import tieconv
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.errors import TieconvError
from tieconv.formats.onnx.tensor import SpeltReader
from tieconv.opened import tensor_reader
from tieconv.sources.local import open_files

ABOUT_FILES = frozenset({"FMT001", "ONX005", "IDX001"})
"""Rules whose findings, at level error, say that a file is not what its format asks for."""
UNEXPECTED = "unexpected "
"""How the report of an exception starts that is none of tieconv's."""
LARGEST = 1 << 20


@dataclass(frozen=True)
class Reading:
    """``refused`` is the code of the refusal, ``reported`` the rules of findings about files at level error."""

    refused: str = ""
    reported: tuple[str, ...] = ()
    tensors: dict[str, list[object]] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        """Whether a user would take the model for a good one."""
        return not self.refused and not self.reported


def read(path: Path) -> Reading:
    """Return what tieconv says of the model at ``path`` by its header, and the bytes of its small tensors."""
    try:
        inspection = tieconv.inspect(path, depth="header")
    except TieconvError as error:
        return Reading(error.code)
    except Exception as error:
        return Reading("", (f"{UNEXPECTED}{error!r}",))
    reported = {one.rule for one in inspection.findings if str(one.level) == "error"} & ABOUT_FILES
    try:
        return Reading("", tuple(sorted(reported)), _tensors(inspection.checkpoint))
    except TieconvError as error:
        return Reading(error.code)


def _tensors(checkpoint: Checkpoint) -> dict[str, list[object]]:
    with open_files(checkpoint.root) as files:
        reader = tensor_reader(checkpoint, files) if checkpoint.table else SpeltReader(files, files)
        return {name: _seen(record, reader) for name, record in checkpoint.tensors.items()}


def _seen(record: TensorRecord, reader: ByteReader) -> list[object]:
    """Return dtype, shape and checksum; ``None`` for the bytes of a view and of what is large."""
    if record.stride is not None or record.range.size > LARGEST:
        return [record.dtype, list(record.shape), None]
    buffer = bytearray(record.range.size)
    reader.read_into(record.range, 0, memoryview(buffer))
    return [record.dtype, list(record.shape), zlib.crc32(buffer)]
