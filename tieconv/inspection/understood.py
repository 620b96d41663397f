"""Find what a checkpoint's names mean, and whether they tie: by its config, or by the rule of its format."""

from __future__ import annotations

import re
from dataclasses import replace

from tieconv.architectures import find
from tieconv.architectures.draft_models import WHY, is_draft
from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Role, TieGroup, Tying
from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.inspection import ConfigView
from tieconv.checkpoint.quantised import LEAVES
from tieconv.inspection.declared import view_config

_PART = f"(?:{'|'.join(map(re.escape, LEAVES))})$"
"""Finds a part of a quantised matrix among names, one a line. A model may have 500,000 names, so it is one search."""
_EMBEDDING, _HEAD, _BIAS = "token_embd.weight", "output.weight", "output.bias"


def _shared_names(checkpoint: Checkpoint) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that share one storage; empty for a format without storages."""
    if not any(file.storages for file in checkpoint.files):
        return ()
    from tieconv.inspection.sharing import shared_names

    return shared_names(checkpoint.tensors)


def understand(checkpoint: Checkpoint, embed: str | None, head: str | None) -> tuple[Family, ConfigView]:
    """Return the family, and what the config implies for it; the user gave the names ``embed`` and ``head``."""
    if checkpoint.format == "gguf":
        return _gguf(checkpoint)
    if checkpoint.adapter is not None:
        why = "Unknown: the base model decides whether the pair is tied."
        return _without_groups("", Tying.HEADLESS), ConfigView("", (), (), False, why, known=False)
    if is_draft(checkpoint.config_values, checkpoint.tensors):
        return _draft(checkpoint)
    shapes = {name: record.shape for name, record in checkpoint.tensors.items()}
    family = find(checkpoint.config_values, shapes, _shared_names(checkpoint))
    if family.knowledge is not Knowledge.TABLE and re.search(_PART, "\n".join(shapes), re.MULTILINE):
        from tieconv.inspection.quantised.logical_shapes import logical_shapes  # most models are not quantised

        family = find(checkpoint.config_values, {**shapes, **logical_shapes(checkpoint)}, _shared_names(checkpoint))
    if embed or head:
        from tieconv.architectures.named_by_user import with_names

        family = with_names(family, embed, head)
    elif checkpoint.table:
        from tieconv.architectures.name_prefix import in_training  # few models are training checkpoints

        family = in_training(family, shapes, checkpoint.table.starts)
    elif checkpoint.mlx and family.knowledge is Knowledge.TABLE:
        from tieconv.architectures.stored_names import mlx_named

        family = mlx_named(family, shapes)
    return family, view_config(checkpoint.config_values, family)


def _draft(checkpoint: Checkpoint) -> tuple[Family, ConfigView]:
    drafted = view_config(checkpoint.config_values, _without_groups("", Tying.HEADLESS))
    architecture = drafted.architectures[0] if drafted.architectures else ""
    family = _without_groups(architecture, Tying.HEADLESS)
    return replace(family, model_type=drafted.model_type), replace(drafted, why=WHY)


def _gguf(checkpoint: Checkpoint) -> tuple[Family, ConfigView]:
    """Return family and config of a GGUF file: llama.cpp has no flag.

    llama.cpp uses the token embedding as the head exactly if ``output.weight`` is absent. A file without token
    embedding, such as a projector, ties nothing. Source: llama-model.cpp (``TENSOR_NOT_REQUIRED``, then
    ``TENSOR_DUPLICATED``).
    """
    metadata = checkpoint.files[0].metadata or {}
    architecture = metadata.get("general.architecture", "")
    names = checkpoint.tensors
    if not names:
        family = _without_groups(architecture, Tying.HEADLESS)
        why = "No output head: the file has a vocabulary but no tensors."
        return family, ConfigView(architecture, (), (), False, why, known=False)
    if _EMBEDDING not in names:
        family = _without_groups(architecture, Tying.HEADLESS)
        return family, ConfigView(architecture, (), (), False, f"Untied: the file has no {_EMBEDDING}.")
    tied = _HEAD not in names
    why = (
        f"Tied: llama.cpp uses {_EMBEDDING} as the head, because {_HEAD} is absent."
        if tied
        else f"Untied: llama.cpp uses {_HEAD} as the head."
    )
    return _gguf_family(architecture, tied, _BIAS in names), ConfigView(architecture, (), (), tied, why)


def _gguf_family(architecture: str, tied: bool, biased: bool) -> Family:
    return replace(
        _without_groups(architecture, Tying.ALWAYS if tied else Tying.CAN),
        input_embedding=_EMBEDDING,
        output_head=_HEAD,
        output_biases=(_BIAS,) if biased else (),
        groups=(TieGroup(Role.WORD_EMBEDDING, _EMBEDDING, (_HEAD,), gated=not tied),),
    )


def _without_groups(architecture: str, tying: Tying) -> Family:
    return Family(
        architecture=architecture,
        model_type=architecture,
        knowledge=Knowledge.TABLE,
        tying=tying,
        prefix="",
        input_embedding=None,
        output_head=None,
        output_biases=(),
        bias_is_row=False,
        groups=(),
        renames=(),
        levels=(),
        truth="",
        default_v4=None,
        meaning_v4=FlagMeaning.STORAGE,
        meaning_v5=FlagMeaning.STORAGE,
    )
