"""Open the tables of a revision. Tables of a remote model are fetched once, to a temporary directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from tieconv.analysis.model.subject import open_tables
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.model.tokens import Tokens, read_tokens
from tieconv.checkpoint.files.model_files import Listing
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources.local.files import FileSet, open_files
from tieconv.sources.ranged.ranged_files import RangedFiles
from tieconv.text import shown, size

OpenModel = Callable[[str], AbstractContextManager[tuple[Listing, RangedFiles | FileSet, str]]]
"""Opens a MODEL: its listing, its reader, and its commit or fingerprint, which is empty for local files."""


@record
class RevisionTables:
    """The tables of a revision by role: E and U of an untied model, T of a tied one.

    ``tokens`` are those of the tokenizer if it was read.
    """

    tables: dict[str, Table]
    tokens: Tokens | None = None

    def used(self, rows: int) -> Array | None:
        """Return which of the first ``rows`` rows have a token, or ``None`` if that is unknown."""
        return self.tokens.used(rows) if self.tokens else None


def identity(listing: Listing, revision: str) -> str:
    """Return what identifies the content of an open model: its commit, or a digest of its local files' state."""
    if revision:
        return revision
    digest = hashlib.sha256()
    for name in listing.entries:
        status = os.stat(os.path.join(listing.root, name))
        state = (name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        digest.update(repr(state).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@contextmanager
def opened_tables(
    model: tuple[Listing, RangedFiles | FileSet, str], embed: str | None, head: str | None, *, tokens: bool
) -> Iterator[RevisionTables]:
    """Yield the tables of an open model. Tables that a network holds are copied first.

    With ``tokens`` the tokenizer is read too. Raises `UnreadableError` as `open_tables` does.
    """
    listing, files, _ = model
    checkpoint = read_checkpoint(listing, files)
    evidence = inspect_checkpoint(checkpoint, files, Depth.HEADER, embed=embed, head=head)
    _, first, second = open_tables(evidence, files)
    tables = {"T": first} if second is None else {"E": first, "U": second}
    vocabulary = read_tokens(files, checkpoint.companions, checkpoint.config_values)[0] if tokens else None
    with ExitStack() as stack:
        if getattr(files, "costly", False):
            tables = stack.enter_context(_copied(tables, listing.source))
        yield RevisionTables(tables, vocabulary)


@contextmanager
def _copied(tables: dict[str, Table], source: str) -> Iterator[dict[str, Table]]:
    """Yield copies of the tables in a temporary directory, which is removed at the end."""
    needed = sum(table.rows * table.width * table.form.width for table in tables.values())
    base = tempfile.gettempdir()
    if needed > shutil.disk_usage(base).free:
        raise _no_space(source, f"{size(needed)} do not fit into {shown(base)}")
    with tempfile.TemporaryDirectory(prefix="tieconv-") as directory, open_files(directory) as files:
        try:
            copies = {role: _copy(table, role, directory, files) for role, table in tables.items()}
        except OSError as error:
            raise _no_space(source, f"{shown(base)}: {(error.strerror or 'error').lower()}") from error
        yield copies


def _copy(table: Table, role: str, directory: str, files: FileSet) -> Table:
    with open(os.path.join(directory, role), "xb") as out:
        for start, stop in spans(table.rows, table.width):
            out.write(table.bits(start, stop).reshape(-1).view("u1").data)
        length = out.tell()
    return Table(files, replace(table.record, range=ByteRange(role, 0, length), stride=None, storage=None))


def _no_space(source: str, why: str) -> UnreadableError:
    return UnreadableError(
        f"The tables of {shown(source)} cannot be copied to the temporary directory: {why}",
        "use a directory with free space: TMPDIR=DIR",
        "analyze.copy",
    )
