"""What an adapter's tensors say about the modules of its base model."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Tie

WRAPPER = "base_model.model."
_PARTS = ("lora_", "hada_", "lokr_", "ia3_", "oft_", "boft_", "vera_", "randlora_", "fourierft_", "vblora_", "waveft_")
_USUAL = frozenset(
    ("lm_head", "embed_tokens", "wte", "word_embeddings", "shared", "embed_in", "embed_out", "tok_embeddings")
)
"""Names of embeddings and heads, for a base model that is not here."""


def part_of(name: str) -> str | None:
    """The module that a tensor such as ``q_proj.lora_A.weight`` changes; ``None`` for a plain parameter."""
    segments = name.removeprefix(WRAPPER).split(".")
    first_part = next((i for i, segment in enumerate(segments) if segment.startswith(_PARTS)), 0)
    return ".".join(segments[:first_part]) or None


def changed(inspection: Inspection) -> tuple[str, ...]:
    """Modules that the adapter changes by adding to them."""
    modules = (part_of(name) for name in inspection.checkpoint.tensors)
    return tuple(dict.fromkeys(module for module in modules if module))


def replaced(inspection: Inspection) -> tuple[str, ...]:
    """Modules of which the adapter stores a whole copy and that it does not change otherwise."""
    plain = (name for name in inspection.checkpoint.tensors if not part_of(name) and name.endswith(".weight"))
    modules = (name.removeprefix(WRAPPER).removesuffix(".weight").removesuffix(".base_layer") for name in plain)
    parts = set(changed(inspection))
    return tuple(module for module in dict.fromkeys(modules) if module not in parts)


def tied_pair(base: Inspection | None) -> Tie | None:
    """The group of the base model's embedding and head, where its config ties them."""
    tie = base.word_tie if base is not None else None
    return tie if tie is not None and tie.declared else None


def in_pair(modules: Iterable[str], base: Inspection | None) -> tuple[str, ...]:
    """Which modules are the base model's tied embedding or head; by usual names where it is not here."""
    if base is None:
        leaves = _USUAL
    else:
        tie = tied_pair(base)
        names = [name for member in tie.members for name in (member.name, member.loads_as)] if tie else []
        leaves = frozenset(_leaf(name.removesuffix(".weight")) for name in names if name)
    return tuple(module for module in modules if _leaf(module) in leaves)


def _leaf(module: str) -> str:
    return module.rpartition(".")[2]
