"""Files that are named like torch files and are something else, told by their first bytes."""

from __future__ import annotations

from typing import NoReturn

from tieconv.formats.pickle_values import refuse

_DOWNLOAD = "fetch the file again"
_KINDS: tuple[tuple[bytes, str, str, str], ...] = (
    (b"GGUF", "is a GGUF file", "gguf", "rename it to .gguf"),
    (b"\x1f\x8b", "is a gzip archive", "archive", "unpack it first"),
    (b"BZh", "is a bzip2 archive", "archive", "unpack it first"),
    (b"\xfd7zXZ\0", "is an xz archive", "archive", "unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive", "archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is a zstd archive", "archive", "unpack it first"),
    (b"Rar!", "is a rar archive", "archive", "unpack it first"),
    (b"\x89HDF\r\n", "is an HDF5 file, most likely of Keras", "hdf5", "load it with Keras and save it for torch"),
    (b"\x93NUMPY", "is a numpy array", "npy", "load it with numpy"),
    (b"lmgg", "is an old GGML file", "ggml", "convert it with llama.cpp"),
    (b"ggjt", "is an old GGML file", "ggml", "convert it with llama.cpp"),
)
_TAR_MAGIC = slice(257, 262)


def check_disguise(first: bytes, length: int) -> None:
    """Raise `PickleProblem` for a file whose first bytes are those of another kind."""
    if not length:
        _stop("is empty", "empty", _DOWNLOAD)
    for magic, what, code, hint in _KINDS:
        if first.startswith(magic):
            _stop(what, code, hint)
    if first.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        _stop("is an HTML page, not weights", "html", f"the download failed; {_DOWNLOAD}")
    if first[_TAR_MAGIC] == b"ustar":
        _stop(
            "is a tar archive, as torch before 0.1.10 wrote it",
            "tar",
            "load it with torch and save the state dict again; unpack it first if it is an ordinary archive",
        )
    if first[8:10] == b'{"' and int.from_bytes(first[:8], "little") <= length:
        _stop("is a safetensors file", "safetensors", "rename it to .safetensors")


def _stop(what: str, code: str, hint: str) -> NoReturn:
    refuse(what, f"torch.{code}", hint)
