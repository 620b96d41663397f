"""The path and the URI of the file of a finding, for tools that look for it in a repository."""

from __future__ import annotations

import os
import posixpath
from urllib.parse import quote

_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".json")
_REMOTE = ("hf://", "s3://", "gs://", "az://")


def path_of(source: str, file: str) -> str:
    """Return the path of ``file`` in the model ``source``: a directory, one of its files, or a remote model."""
    folder, base = posixpath.split(source)
    if not file or base == file:
        return source
    if base.endswith(_FILES) and not source.startswith(_REMOTE):
        return posixpath.join(folder, file)
    return file if source in ("", ".") else f"{source.rstrip('/')}/{file}"


def relative(path: str) -> str | None:
    """Return ``path`` relative to the repository's root, or ``None`` for a path outside of it.

    The root is $GITHUB_WORKSPACE, or the working directory if that is not set.
    """
    if path.startswith(_REMOTE):
        return None
    root = os.environ.get("GITHUB_WORKSPACE", "")
    if not root and not path.startswith(("/", "..")):
        return posixpath.normpath(path or ".")
    inside = os.path.relpath(path or ".", root or os.curdir)
    return None if inside == ".." or inside.startswith("../") else inside


def uri(path: str) -> str:
    """Return ``path`` as a URI reference: relative inside the repository, else `file:` or the remote scheme."""
    if path.startswith(_REMOTE):
        scheme, _, rest = path.partition("://")
        return f"{scheme}://{quote(_bytes(rest), safe='/@')}"
    inside = relative(path)
    if inside is None:
        return "file://" + quote(_bytes(os.path.abspath(path)))
    return quote(_bytes(inside))


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as file names are decoded
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
