"""Read the data files that the package contains: JSON and style sheets."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any


@cache
def data_text(module: str, file: str) -> str:
    """Return the text of ``data/FILE`` in the folder of ``module``, the ``__name__`` of a module.

    The module's import loader reads the file, so that a zip works too. `importlib.resources` does the same, but its
    import takes 10 ms.
    """
    spec = sys.modules[module].__spec__
    assert spec is not None and spec.origin is not None
    loader: Any = spec.loader
    data: bytes = loader.get_data(os.path.join(os.path.dirname(spec.origin), "data", file))
    return data.decode()
