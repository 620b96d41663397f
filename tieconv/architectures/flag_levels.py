"""Find the config level that each transformers version reads, and the tie flag at that level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.architectures.effective_flag import unbuildable
from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection

FLAG = "tie_word_embeddings"
DERIVED_KEY = "scale_decoder_outputs"
"""The key that sets the scale of the logits in transformers 5, instead of the flag."""


def text_config(inspection: Inspection) -> Mapping[str, object]:
    """Return the config of the language model: the whole config, or the nested one of the part with the head."""
    config, level = inspection.checkpoint.config_values, inspection.family.text_level
    nested = config.get(level) if level else config
    return nested if isinstance(nested, Mapping) else {}


def cannot_build(inspection: Inspection) -> bool:
    """Return whether transformers 5 cannot build the class, because the text part lacks the table to tie."""
    by_level = {entry.path.removesuffix(FLAG).rstrip("."): entry.value for entry in inspection.config.declared}
    flags = {path: None if value is None else bool(value) for path, value in by_level.items()}
    return unbuildable(inspection.family, flags)


def levels(inspection: Inspection) -> dict[str, bool]:
    """Return the declared flag by level, for the levels that a transformers version reads."""
    by_level = {entry.path.removesuffix(FLAG).rstrip("."): entry.value for entry in inspection.config.declared}
    read = sorted(set(levels_read(inspection.family)))
    return {level: bool(by_level[level]) for level in read if by_level.get(level) is not None}


def levels_read(family: Family) -> Iterator[str]:
    """Yield the levels (``""`` for the top) that a transformers version reads, some of them twice."""
    if family.level_v4 is not None:
        yield family.level_v4
    rows = [family.truth[start : start + 3] for start in range(0, len(family.truth), 3)]
    if len(rows) < 2 or len(set(rows)) > 1:
        yield ""
    if len(rows) > 1 and any(len(set(row)) > 1 for row in rows):
        yield family.levels[0]


def reading_v4(inspection: Inspection) -> bool | None:
    """Return the tie flag that transformers 4 reads from the config; ``None`` if it lacks the class."""
    family, declared = inspection.family, levels(inspection)
    if family.default_v4 is None or family.level_v4 is None:
        return None
    path = f"{family.level_v4}.{FLAG}".lstrip(".")
    if declared and all(entry.path != path for entry in inspection.config.declared):
        # Without an object at that level, the whole config is the flat config of the text model.
        return inspection.config.effective
    if any(entry.path == path and entry.present and entry.value is None for entry in inspection.config.declared):
        return False  # null differs from an absent key: it replaces the class's default
    return declared.get(family.level_v4, family.default_v4)
