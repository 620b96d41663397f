"""Read the JSON files that the package carries beside its modules."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any


@cache
def data_text(module: str, file: str) -> str:
    """Return the text of ``data/FILE`` beside ``module``, given by its ``__name__``.

    The module's own loader reads it, so that it works from a zip too. `importlib.resources` does the same and costs
    10 ms to import.
    """
    spec = sys.modules[module].__spec__
    assert spec is not None and spec.origin is not None
    loader: Any = spec.loader
    data: bytes = loader.get_data(os.path.join(os.path.dirname(spec.origin), "data", file))
    return data.decode()
