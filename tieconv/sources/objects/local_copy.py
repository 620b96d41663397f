"""Copy a model from an object store to a temporary directory, for commands that read it as a whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import partial

from tieconv.checkpoint.model_files import Listing
from tieconv.errors import UnreadableError
from tieconv.sources.objects.object_files import ObjectFiles
from tieconv.sources.ranged.ranged_files import SECTION
from tieconv.sources.temporary import make_temporary
from tieconv.sources.threads import workers
from tieconv.sources.user_files import new_file
from tieconv.text import shown, size

_WORKERS = 4
_BLOCK = 8 << 20


def fetch(listing: Listing, files: ObjectFiles, names: Iterable[str]) -> str:
    """Copy the files ``names`` to a new temporary directory, and return the model's path in it.

    The directory is removed at the end of the command or of the process. Its parent has the fingerprint of the listing
    as its name. Raises `UnreadableError` if a file was replaced, or if the disk is full.
    """
    wanted = list(names)
    needed = sum(files.size(name) for name in wanted)
    base = tempfile.gettempdir()
    if needed > shutil.disk_usage(base).free:
        raise _no_space(listing.source, f"{size(needed)} do not fit into {shown(base)}")
    try:
        root = os.path.join(make_temporary(), files.listed.fingerprint, os.path.basename(str(files.listed.path)))
        for directory in {os.path.dirname(os.path.join(root, name)) for name in wanted} | {root}:
            os.makedirs(directory, exist_ok=True)
        with workers(_WORKERS) as pool:
            for _ in pool.map(partial(_copy, files, root), wanted):
                continue
    except OSError as error:
        raise _no_space(listing.source, f"{shown(base)}: {(error.strerror or 'error').lower()}") from error
    return os.path.join(root, listing.named) if listing.named else root


def _no_space(source: str, why: str) -> UnreadableError:
    return UnreadableError(
        f"{shown(source)} cannot be copied to the temporary directory: {why}",
        "use a directory with free space: TMPDIR=DIR",
        "objects.copy",
    )


def _copy(files: ObjectFiles, root: str, name: str) -> None:
    target = os.path.join(root, name)
    whole = files.size(name)
    with new_file(target) as out:
        for start in range(0, whole, SECTION):
            stream = files.open(name, start, min(start + SECTION, whole))
            try:
                while stream.position < stream.end:
                    block = memoryview(bytearray(min(_BLOCK, stream.end - stream.position)))
                    stream.read_into(block)
                    out.write(block)
            finally:
                stream.close()
