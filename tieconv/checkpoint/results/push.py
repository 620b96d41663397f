"""What a push changes in a repository: the files, and the text of its pull request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tieconv.checkpoint.model_files import FileState
from tieconv.checkpoint.value_type import Printed, quoted, record, values_of
from tieconv.text import count, size


@record
class FileChange:
    """One file: ``kind`` is `add`, `replace` or `delete`, ``bytes`` the size of the uploaded or deleted file."""

    kind: str
    name: str
    bytes: int


@record
class Effect:
    """A change of a tensor or config value: ``kind`` is `drop`, `add`, `change`, `keep`, `config` or `format`.

    One `keep` represents all unchanged tensors; its ``name`` is their number.
    """

    kind: str
    name: str
    note: str


@record
class Push(Printed):
    """A push as planned, or as done (``url``). ``commit`` is the one that it changes; ``pull_request`` opens one.

    ``left_out`` are files of the directory that are not pushed unless named: dot-files, keys and caches. ``states``
    identify the files to upload as they were planned.
    """

    directory: str
    repo: str
    revision: str | None
    commit: str
    pull_request: bool
    title: str
    description: str
    effects: tuple[Effect, ...]
    changes: tuple[FileChange, ...]
    executed: bool = False
    url: str | None = None
    left_out: tuple[str, ...] = ()
    states: Mapping[str, FileState] = field(default_factory=dict)

    @property
    def bytes_uploaded(self) -> int:
        return sum(change.bytes for change in self.changes if change.kind != "delete")

    def _facts(self) -> tuple[str, ...]:
        changes = f"{count(len(self.changes), 'file')} to push" if not self.executed else str(self.url)
        return quoted(self.directory), quoted(self.repo), changes

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple((change.kind, change.name, size(change.bytes)) for change in self.changes)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.push/1`."""
        names = "directory repo revision commit pull_request title description effects changes left_out bytes_uploaded"
        return {"schema": "tieconv.push/1", **values_of(self, f"{names} executed url")}
