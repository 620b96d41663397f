"""Replace a directory while other programs use it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tieconv.checkpoint.files.model_files import FileState
from tieconv.execute import tree
from tieconv.execute.publish import swap
from tieconv.execute.refusals import stale


def check_unchanged(directory: Path, before: Mapping[str, FileState]) -> None:
    """Raise `StalePlanError` for the first file of ``directory`` that differs from ``before``."""
    now = tree.states(directory)
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name):
            raise stale(name)


def exchange(new: Path, final: Path, old: os.stat_result, before: Mapping[str, FileState]) -> None:
    """Swap the directories; files that appeared in ``old`` after ``before`` move to the new directory."""
    displaced = swap.exchange_directory(new, final, old)
    with suppress(OSError):
        tree.rescue(displaced, final, before)


@contextmanager
def standing(directory: Path) -> Iterator[None]:
    """Change into the new directory at the end, if the working directory is in the replaced ``directory``."""
    here = _standing_in(directory)
    yield
    if here is not None:
        with suppress(OSError):
            os.chdir(here)


def _standing_in(directory: Path) -> str | None:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return None
    return here if Path(here).is_relative_to(directory) else None
