"""Recognise files of other formats that are named .safetensors, by their first bytes."""

from __future__ import annotations

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
