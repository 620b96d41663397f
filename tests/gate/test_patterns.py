"""Patterns of per-model ignores name paths as a `.gitignore` does."""

from __future__ import annotations

import pytest

from tieconv.gate.settings import matches


@pytest.mark.parametrize(
    ("pattern", "path", "answer"),
    [
        ("models/llama-*", "/repo/models/llama-tied", True),
        ("models/llama-*", "/repo/models/llama-tied/model.safetensors", True),
        ("models/*", "/repo/models/a/b", True),  # below a directory that it names
        ("models/*/b", "/repo/models/a/b", True),
        ("models/*b", "/repo/models/a/b", False),  # * stays within a name
        ("**/b", "/repo/models/a/b", True),
        ("**/b", "/repo/b", True),
        ("models/**", "/repo/models/a/b", True),
        ("models", "/repo/models-old", False),
        ("models", "/repo/other/models", False),
        ("model?", "/repo/models", True),
        ("model[st]", "/repo/models", True),
        ("model[!s]", "/repo/models", False),
        ("./models/a/", "/repo/models/a", True),
        (".", "/repo", True),
        ("../out/*", "/out/a", True),
        ("/out/*", "/out/a", True),
        ("a.b", "/repo/axb", False),  # nothing but the wildcards is special
        ("a(b", "/repo/a(b", True),
        ("a[b", "/repo/a[b", True),
        ("a\nb", "/repo/a\nb", True),
        ("hf://org/*", "hf://org/name", True),
    ],
)
def test_pattern(pattern: str, path: str, answer: bool) -> None:
    """Relative to the settings file, one name a star, and all that lies below a match."""
    assert matches(pattern, path, "/repo") is answer
