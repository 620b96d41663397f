"""Where a report may be written."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tieconv.errors import DestinationError
from tieconv.gate.examine import place_of
from tieconv.text import shown


def guard_output(path: str, models: Iterable[str]) -> None:
    """A report never replaces a file of a model. Raises `DestinationError`."""
    resolved = place_of(path)
    for model in models:
        root = place_of(model)
        if os.path.isfile(resolved) and (resolved == root or resolved.startswith(os.path.join(root, ""))):
            raise DestinationError(
                f"{shown(path)} is a file of the model {shown(model)}", "write it somewhere else", "out.in-model"
            )
