"""Names that a training wrapper left in a checkpoint: `module.` of DistributedDataParallel and its like."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tieconv.architectures.stored_names import locate
from tieconv.checkpoint.family import Family

INSIDE = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""Steps of a name that a wrapper adds at any depth, and the wrapper."""

LEADING = {"module": "DistributedDataParallel", "base_model.model": "PEFT"}
"""How a name starts that a wrapper of the whole model adds, and the wrapper."""

_ADAPTED = frozenset({"base_layer", "modules_to_save", "original_module"})
"""Steps that PEFT adds around the modules that it replaced: without them the adapter would be lost."""


def unwrapping(names: Collection[str]) -> dict[str, str]:
    """Map each name that carries a wrapper's prefix to the name without it.

    Empty where there is none, where only some names start with a leading prefix, where two names would become one,
    and for adapters that are not merged.
    """
    if any(_is_adapted(name) for name in names):
        return {}
    bare = {name: _inside(name) for name in names}
    for start in _leading(bare.values()):
        bare = {name: rest.removeprefix(start) for name, rest in bare.items()}
    changed = {name: rest for name, rest in bare.items() if name != rest}
    return changed if len(set(bare.values())) == len(bare) and all(bare.values()) else {}


def wrappers_of(changed: Mapping[str, str]) -> list[str]:
    """Return the wrappers whose prefixes `unwrapping` took away, in the order of their names in the file."""
    steps = dict.fromkeys(step for name in changed for step in name.split("."))
    inside = [INSIDE[step] for step in steps if step in INSIDE]
    starts = _leading(_inside(name) for name in changed)
    return [*(LEADING[start.removesuffix(".")] for start in starts), *inside]


def through_wrappers(family: Family, names: Collection[str]) -> Family | None:
    """Return ``family`` under the wrapped names that the file uses; ``None`` where no wrapper hides its names."""
    played = [name for name in (family.input_embedding, family.output_head) if name]
    if not played or any(locate(family, name, names) for name in played):
        return None
    changed = unwrapping(names)
    stored = {bare: name for name, bare in changed.items()}
    if not any(locate(family, name, stored) for name in played):
        return None

    def wrapped(name: str) -> str:
        return stored.get(locate(family, name, stored) or "", name)

    groups = tuple(
        replace(group, canonical=wrapped(group.canonical), members=tuple(map(wrapped, group.members)))
        for group in family.groups
    )
    return replace(
        family,
        input_embedding=family.input_embedding and wrapped(family.input_embedding),
        output_head=family.output_head and wrapped(family.output_head),
        output_biases=tuple(map(wrapped, family.output_biases)),
        groups=groups,
        prefix="",
        renames=(),
    )


def _is_adapted(name: str) -> bool:
    steps = name.split(".")
    return not _ADAPTED.isdisjoint(steps) or any(step.startswith("lora_") for step in steps)


def _inside(name: str) -> str:
    return ".".join(step for step in name.split(".") if step not in INSIDE)


def _leading(names: Iterable[str]) -> list[str]:
    """Return the leading prefixes that all ``names`` carry, the outermost first."""
    rest, starts = list(names), list[str]()
    while True:
        start = next(
            (f"{wrapper}." for wrapper in LEADING if rest and all(n.startswith(f"{wrapper}.") for n in rest)), None
        )
        if start is None:
            return starts
        starts.append(start)
        rest = [name.removeprefix(start) for name in rest]
