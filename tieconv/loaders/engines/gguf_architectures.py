"""What libllama asks of the head of a GGUF architecture, read from its source."""

from __future__ import annotations

from tieconv.loaders import release_tables
from tieconv.text import shown

TIES, NEEDS, EMBEDDING = "ties", "needs", "embedding"
"""It uses the embedding if ``output.weight`` is absent; it needs ``output.weight``; it always uses the embedding."""


def head_rule(architecture: str) -> str | None:
    """Return `TIES`, `NEEDS` or `EMBEDDING` for ``general.architecture``; ``None`` if tieconv does not know it."""
    treatment: str | None = release_tables.by_type("llama.cpp", "architectures").get(architecture)
    return None if treatment is None else treatment.partition(",")[0]


def load_error(architecture: str, head: str, *, stored: bool) -> str | None:
    """Return why libllama does not load a file of the ``architecture`` with or without ``head``, ``None`` if it does.

    ``None`` too for an architecture that `head_rule` does not know.
    """
    rule, name = head_rule(architecture), shown(architecture)
    if rule == NEEDS and not stored:
        return f"llama.cpp needs {shown(head)} of the architecture {name}"
    if rule == EMBEDDING and stored:
        return f"llama.cpp does not use {shown(head)} of the architecture {name}, and refuses unused tensors"
    return None
