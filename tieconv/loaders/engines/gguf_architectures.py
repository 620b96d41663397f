"""What libllama asks of the head of a GGUF architecture, read from its source."""

from __future__ import annotations

from tieconv.loaders import release_tables

TIES, NEEDS, EMBEDDING = "ties", "needs", "embedding"
"""It uses the embedding if ``output.weight`` is absent; it needs ``output.weight``; it always uses the embedding."""


def head_rule(architecture: str) -> str | None:
    """Return `TIES`, `NEEDS` or `EMBEDDING` for ``general.architecture``; ``None`` if tieconv does not know it."""
    treatment: str | None = release_tables.by_type("llama.cpp", "architectures").get(architecture)
    return None if treatment is None else treatment.partition(",")[0]
