"""Write reports, and refuse paths inside a model."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tieconv.errors import DestinationError
from tieconv.gate.examine import place_of
from tieconv.sources.user_files import unwritable, write_bytes, write_text
from tieconv.text import shown


def guard_report(path: str, models: Iterable[str]) -> None:
    """Raise `DestinationError` if a report would replace a file of a model."""
    resolved = place_of(path)
    for model in models:
        root = place_of(model)
        if os.path.isfile(resolved) and (resolved == root or resolved.startswith(os.path.join(root, ""))):
            raise DestinationError(
                f"{shown(path)} is a file of the model {shown(model)}",
                "write the report to another path",
                "out.in-model",
            )


def write_reports(directory: str, reports: dict[str, str], model: str) -> None:
    """Write reports by name into ``directory``, which is made if it does not exist.

    Raises `DestinationError` if that fails, and before a file of ``model`` would be replaced.
    """
    paths = {os.path.join(directory, name): text for name, text in reports.items()}
    for path in paths:
        guard_report(path, [model])
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise unwritable(directory, error) from error
    for path, text in paths.items():
        write_report(path, text)


def write_report(path: str, report: str | bytes) -> None:
    """Write a report to ``path``. Raises `TieconvError` if that fails."""
    if isinstance(report, bytes):
        write_bytes(path, report)
    else:
        write_text(path, report)
