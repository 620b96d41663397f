"""Claims about dropped tensors that a plan relies on."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.value_type import record


@record
class Equal:
    """Tensor ``tensor`` holds the elements of ``survivor``, each times 2**``exponent``."""

    tensor: TensorRecord
    survivor: TensorRecord
    exponent: int = 0


@record
class AllZero:
    """Every element of ``tensor`` is zero."""

    tensor: TensorRecord


@record
class Digest:
    """The elements of ``tensor``, in order, have this SHA-256, so a result computed from them still holds."""

    tensor: TensorRecord
    sha256: str


Proof = Equal | AllZero | Digest


def digest(blocks: Iterable[bytes | bytearray | memoryview]) -> str:
    """Return the SHA-256 of blocks of bytes."""
    import hashlib  # only plans with such a claim compute one

    sha256 = hashlib.sha256()
    for block in blocks:
        sha256.update(block)
    return sha256.hexdigest()
