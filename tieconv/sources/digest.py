"""Hash whole files as the Hub does: SHA-256 for LFS and xet files, the git blob hash for others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal, cast

from tieconv.checkpoint.model_files import Files

Kind = Literal["sha256", "git"]
_BLOCK = 1 << 20


def same_hash(a: object, b: object, name: str) -> bool:
    """Return whether two files of one size are equal, by hash. Reads a file whose hash is unknown."""
    known = [stored for reader in (a, b) if (stored := _known(reader, name))]
    kind: Kind = "sha256" if any(stored[0] == "sha256" for stored in known) else "git"
    return _hash_of(a, name, kind) == _hash_of(b, name, kind)


def _known(reader: object, name: str) -> tuple[Kind, str] | None:
    # Only a source on the Hub knows the hash of a stored file.
    ask = cast("Callable[[str], tuple[Kind, str]] | None", getattr(reader, "known_hash", None))
    return ask(name) if ask else None


def _hash_of(reader: object, name: str, kind: Kind) -> str:
    known = _known(reader, name)
    if known is not None and known[0] == kind:
        return known[1]
    return hash_file(cast("Files", reader), name, kind)


def kind_of(digest: str) -> Kind:
    """Return the kind of a hash by its length: git uses SHA-1."""
    return "git" if len(digest) == 40 else "sha256"


def hash_bytes(data: bytes, kind: Kind) -> str:
    """Return the hash of a file's bytes."""
    digest = _new(kind, len(data))
    digest.update(data)
    return digest.hexdigest()


def hash_file(files: Files, name: str, kind: Kind) -> str:
    """Return the hash of a file, read in blocks. Raises the errors of ``files``."""
    size = files.state(name).size
    digest = _new(kind, size)
    for offset in range(0, size, _BLOCK):
        digest.update(files.pread(name, _BLOCK, offset))
    return digest.hexdigest()


def _new(kind: Kind, size: int) -> hashlib._Hash:
    return hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
