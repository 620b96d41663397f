"""Remove the prefixes of training wrappers from tensor names, such as `module.` of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tieconv.architectures.stored_names import locate, renamed
from tieconv.checkpoint.family import Family

INSIDE = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""Segments that a wrapper adds to a name at any depth, and the wrapper."""

LEADING = {"module": "DistributedDataParallel", "base_model.model": "PEFT"}
"""Prefixes that a wrapper of the whole model adds to a name, and the wrapper."""

_ADAPTED = frozenset({"base_layer", "modules_to_save", "original_module"})
"""Segments that PEFT adds to replaced modules. Without them the adapter would be lost."""


def unwrapping(names: Collection[str]) -> dict[str, str]:
    """Map each name with a wrapper's prefix to the name without the prefix.

    Empty without such names, if only some names have a leading prefix, or if two names would become one. Also empty for
    adapters that are not merged.
    """
    if any(_is_adapted(name) for name in names):
        return {}
    bare = {name: _inside(name) for name in names}
    for start in _leading(bare.values()):
        bare = {name: rest.removeprefix(start) for name, rest in bare.items()}
    changed = {name: rest for name, rest in bare.items() if name != rest}
    return changed if len(set(bare.values())) == len(bare) and all(bare.values()) else {}


def wrappers_of(changed: Mapping[str, str]) -> list[str]:
    """Return the wrappers whose prefixes `unwrapping` removed, in the order of the names in the file."""
    steps = dict.fromkeys(step for name in changed for step in name.split("."))
    inside = [INSIDE[step] for step in steps if step in INSIDE]
    starts = _leading(_inside(name) for name in changed)
    return [*(LEADING[start.removesuffix(".")] for start in starts), *inside]


def through_wrappers(family: Family, names: Collection[str]) -> Family | None:
    """Return ``family`` with the wrapped names in the file, or ``None`` if no wrapper hides its names."""
    played = [name for name in (family.input_embedding, family.output_head) if name]
    if not played or any(locate(family, name, names) for name in played):
        return None
    changed = unwrapping(names)
    stored = {bare: name for name, bare in changed.items()}
    if not any(locate(family, name, stored) for name in played):
        return None

    def wrapped(name: str) -> str:
        return stored.get(locate(family, name, stored) or "", name)

    return renamed(family, wrapped)


def _is_adapted(name: str) -> bool:
    steps = name.split(".")
    return not _ADAPTED.isdisjoint(steps) or any(step.startswith("lora_") for step in steps)


def _inside(name: str) -> str:
    return ".".join(step for step in name.split(".") if step not in INSIDE)


def _leading(names: Iterable[str]) -> list[str]:
    """Return the leading prefixes of all ``names``, the outermost first."""
    rest, starts = list(names), list[str]()
    while True:
        start = next(
            (f"{wrapper}." for wrapper in LEADING if rest and all(n.startswith(f"{wrapper}.") for n in rest)), None
        )
        if start is None:
            return starts
        starts.append(start)
        rest = [name.removeprefix(start) for name in rest]
