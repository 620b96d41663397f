"""Open models in object stores. Imports obstore only when a model is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tieconv.checkpoint.files.model_files import Listing
from tieconv.errors import MissingPackageError
from tieconv.install import install_command
from tieconv.sources.objects.object_path import parse
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.sources.objects.object_files import ObjectFiles
    from tieconv.sources.ranged.ranged_files import Tick


class CopyUnsupportedError(Exception):
    """The server cannot copy ranges of objects."""


def require() -> None:
    """Raise `MissingPackageError` if obstore is not installed."""
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "models in object stores need the package obstore, which is not installed",
            install_command("objects"),
            "objects.provider",
        ) from error


def require_copier() -> None:
    """Raise `MissingPackageError` if obstore or boto3 is not installed."""
    require()
    try:
        import boto3  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "writing to S3 needs the package boto3, which is not installed",
            install_command("objects"),
            "objects.boto3",
        ) from error


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
    from tieconv.sources.objects.object_client import ObjectClient
    from tieconv.sources.objects.object_files import ObjectFiles
    from tieconv.sources.objects.object_listing import look_up

    client = ObjectClient(path, shown(source))
    listed = look_up(client, source, path)
    with ObjectFiles(client, listed, tick, proving=proving) as files:
        yield listed.listing, files, listed.fingerprint
