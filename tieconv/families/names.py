"""From a name in the table to the name that a given file uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tieconv.checkpoint.family import Family

_BOTH = ("embed_tokens.weight", "model.lm_head.weight")
_UNREAD: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("hunyuan_vl", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl"), _BOTH),
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), _BOTH),
    **dict.fromkeys(("cosmos3_edge", "cosmos3_omni"), ("model.embed_tokens.weight",)),
    **dict.fromkeys(("deepseek_ocr2", "unlimited_ocr"), ("language_model.embed_tokens.weight",)),
    **dict.fromkeys(("inkling2", "inkling2_text"), ("llm.embed.weight",)),
    "bailing_hybrid": ("word_embeddings.weight",),
    "mistral_large4": ("model.tok_embeddings.weight",),
    "nemo_speechlm": ("model.llm.model.embed_tokens.weight",),
    "step3p7": ("embed_tokens.weight",),
}
"""By type the names, with the prefix or without, that a rename of the loader keeps from their place. Measured with
5.23: each class that renames its embedding or head, saved with one name under each of its variants."""


def locate(family: Family, name: str, names_in_file: Collection[str]) -> str | None:
    """The name under which a file holds the tensor that the table calls ``name``.

    Files differ from the table in two ways: they lack or carry the base model's prefix (the hub's gpt2 has
    ``wte.weight``), or they use names in memory, which the loader accepts as well. ``None``: not in the file.
    """
    return next((variant for variant in variants(family, name) if variant in names_in_file), None)


def spelled(family: Family, name: str, names_in_file: Collection[str]) -> str:
    """The name under which a file would hold a tensor that it lacks: without the prefix in a file that has it nowhere.

    transformers 4 takes a file for prefixed as soon as one name of it is, and then misses all the others.
    """
    start = f"{family.prefix}."
    if not family.prefix or not name.startswith(start) or any(other.startswith(start) for other in names_in_file):
        return name
    played = {member for group in family.groups for member in (group.canonical, *group.members)}
    told = {*played, *family.output_biases, family.output_head}
    # Names that never carry the prefix say nothing about the others.
    return name.removeprefix(start) if any(other not in told for other in names_in_file) else name


def variants(family: Family, name: str) -> Iterator[str]:
    """Every name that the loader takes for a tensor, the table's own name first."""
    spellings = [name]
    spellings += [memory for stored, memory in family.renames if stored == name]
    spellings += [stored for stored, memory in family.renames if memory == name]
    yield from spellings
    if not family.prefix:
        return
    start = family.prefix + "."
    # A head that is renamed has its place outside the base model under the new name alone.
    renamed = name == family.output_head and len(spellings) > 1
    for spelling in spellings[1:] if renamed else spellings:
        other = spelling.removeprefix(start) if spelling.startswith(start) else start + spelling
        if other not in _UNREAD.get(family.model_type, ()):
            yield other
