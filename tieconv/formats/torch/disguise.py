"""Refuse files that are named like torch files but have another format."""

from __future__ import annotations

from typing import NoReturn

from tieconv.formats.other_tools import by_content
from tieconv.formats.torch.pickle.values import refuse


def check_disguise(first: bytes, length: int) -> None:
    """Raise `PickleProblem` for a file whose first bytes show another format."""
    if not length:
        _stop("is empty", "empty", "fetch the file again")
    if first[8:10] == b'{"' and int.from_bytes(first[:8], "little") <= length:
        _stop("is a safetensors file", "safetensors", "rename it to .safetensors")
    if first.startswith((b"PK", b"\x80")):
        return
    kind = by_content(first)
    if kind is not None:
        _stop(kind.sentence_end, kind.code, kind.hint)


def _stop(sentence: str, code: str, hint: str) -> NoReturn:
    refuse(sentence, f"torch.{code}", hint)
