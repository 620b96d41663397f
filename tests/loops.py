"""Loops over many cases in one test: a failed assertion names the case."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def case(*name: object) -> Iterator[None]:
    """Add ``name`` to the message of whatever the body raises.

    A collected case costs about 3 ms of each worker, so a table of hundreds of small cases is one test.
    """
    try:
        yield
    except BaseException as error:
        error.add_note("in the case " + " ".join(map(str, name)))
        raise


def fresh(folder: Path) -> Path:
    """Return a new, empty folder in it: each case has its own, as `tmp_path` is of the whole test."""
    return Path(tempfile.mkdtemp(dir=folder))
