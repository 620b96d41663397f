"""Write the other files of OUT: copies of the model's files, and documents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tieconv.checkpoint.write_plan.output import OutputText
from tieconv.execute import tree
from tieconv.execute.contents.sync import Syncer
from tieconv.execute.contents.write import Writer
from tieconv.execute.refusals import stale


class Files:
    """Writes to the directory ``new``; ``root`` is the model."""

    def __init__(self, root: Path, new: Path) -> None:
        self._root, self._new = root, new
        self._syncer = Syncer()
        self._writer = Writer(root, new, self._syncer, lambda count: None, lambda name: None)

    def copy(self, names: Iterable[str]) -> None:
        """Copy files of the model unchanged."""
        for name in names:
            self._writer.companion(name)

    def write(self, name: str, text: str) -> None:
        """Write a document."""
        self._writer.text(OutputText(name, text))

    def sync(self) -> None:
        """Make all files under the directory durable. Raises the first `OSError`."""
        try:
            for name, status in tree.walk(self._new):
                if status.st_size and not os.path.isdir(self._new / name):
                    descriptor = os.open(self._new / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    self._syncer.add(descriptor)
                    os.close(descriptor)
            self._syncer.finish()
        finally:
            self._syncer.stop()
        for directory in tree.directories(self._new):
            tree.sync_directory(directory)

    def check_fresh(self) -> None:
        """Raise `StalePlanError` if a copied file has changed since."""
        for name, state in self._writer.record.sources.items():
            if tree.file_state_at(self._root / name) != state:
                raise stale(name)
