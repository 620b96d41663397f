"""Open models in object stores, and find those below a prefix. Imports obstore only when it asks a server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.value_type import record
from tieconv.errors import MissingPackageError, UnreadableError
from tieconv.install import install_command
from tieconv.sources.objects import parse
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.sources.objects.client import ObjectFiles
    from tieconv.sources.ranged import Tick


class CopyUnsupportedError(Exception):
    """The server cannot copy ranges of objects."""


def require() -> None:
    """Raise `MissingPackageError` if obstore is not installed."""
    _require("obstore", "models in object stores need", "objects.provider")


def require_copier() -> None:
    """Raise `MissingPackageError` if obstore or boto3 is not installed."""
    require()
    _require("boto3", "writing to S3 needs", "objects.boto3")


def _require(package: str, purpose: str, code: str) -> None:
    try:
        import_module(package)
    except ImportError as error:
        problem = f"{purpose} the package {package}, which is not installed"
        raise MissingPackageError(problem, install_command("objects"), code) from error


@contextmanager
def open_model(
    source: str, tick: Tick | None = None, *, proving: bool = False
) -> Iterator[tuple[Listing, ObjectFiles, str]]:
    """Yield the listing of a model, its reader and the fingerprint of the listing.

    ``tick(done, total)`` is called for each header that arrives. If ``proving`` is true, tensors are compared in full.
    Raises `UnreadableError` if the model is missing or may not be read, and `MissingPackageError` without obstore.
    """
    path = parse(source)
    require()
    from tieconv.sources.objects.client import ObjectClient, ObjectFiles, look_up

    client = ObjectClient(path, shown(source))
    listed = look_up(client, source, path)
    with ObjectFiles(client, listed, tick, proving=proving) as files:
        yield listed.listing, files, listed.fingerprint


MOST = 100_000
"""Most directories with weights below one prefix."""
_MAGIC = re.compile(r"[*?\[]")


@record
class ListedModel:
    """A directory with weights, or one file: its address, and when its newest file was written (seconds since 1970)."""

    source: str
    modified: float


def fixed_part(source: str) -> str:
    """Return the address up to the last slash before the first ``*``, ``?`` or ``[``."""
    match = _MAGIC.search(source)
    return source[: source.rfind("/", 0, match.start())] if match else source.removesuffix("/")


def directories(source: str, is_weight: Callable[[str], bool]) -> tuple[ListedModel, ...]:
    """Return the directories at and below an address that hold weights, in order, from one listing.

    ``is_weight`` decides by the name of a file. Hidden directories are skipped. Raises `UnreadableError`.
    """
    path = parse(source)
    require()
    from tieconv.sources.objects.client import ObjectClient

    label = shown(source)
    newest: dict[str, float] = {}
    weighty: set[str] = set()
    below = f"{path.path}/" if path.path else ""
    for page in ObjectClient(path, label).pages(label, path.path):
        for entry in page:
            key = str(entry["path"])
            directory, _, name = key.rpartition("/")
            if any(part.startswith(".") for part in key.removeprefix(below).split("/")[:-1]):
                continue
            newest[directory] = max(newest.get(directory, 0.0), entry["last_modified"].timestamp())
            if is_weight(name):
                weighty.add(directory)
        if len(weighty) > MOST:
            problem = f"{label} holds more than {MOST:,} models"
            raise UnreadableError(problem, "give a longer prefix", "objects.too-large")
    root = f"{path.scheme}://{path.bucket}"
    return tuple(
        ListedModel(f"{root}/{directory}" if directory else root, newest[directory]) for directory in sorted(weighty)
    )
