"""Find the config edits that list the head among the quantised modules, or leave it out.

Each quantisation method has its own entries. Sources: as in `tieconv.inspection.quantised.quantisation_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD
from tieconv.checkpoint.value_type import record
from tieconv.inspection.quantised.quantisation_config import matched_entry, matches_pattern, texts

Path = tuple[str, ...]
Entries = dict[Path, object]
"""New values by path inside the quantisation config. `REMOVED` removes the key."""

REMOVED = object()


@record
class Modules:
    """The names of the two modules, and of every module that the files store."""

    embedding: str
    head: str
    stored: Collection[str]

    def is_own(self, entry: str) -> bool:
        """Return whether a config entry is about the head, and about no other stored module."""
        if not entry.startswith("re:"):
            return entry == self.head
        pattern = entry[3:]
        if matches_pattern(pattern, self.head) is not True:
            return False
        return all(matches_pattern(pattern, name) is False for name in self.stored if name != self.head)


Editor = Callable[[Mapping[str, object], Modules], Entries]


def left_out(method: str) -> Editor | None:
    """Return the function that leaves the head out of the entries of ``method``; ``None`` for an unknown method."""
    return _LEFT_OUT.get(method)


def listed(method: str) -> Editor | None:
    """Return the function that lists the head as the embedding is listed; ``None`` for an unknown method."""
    return _LISTED.get(method)


# --- compressed-tensors ----------------------------------------------------------------------------------


def _compressed_left_out(values: Mapping[str, object], modules: Modules) -> Entries:
    """Remove the head's own targets. If another target still matches the head, add the head to ``ignore``."""
    entries: Entries = {}
    matched = False
    for name, targets in _targets(values).items():
        others = tuple(target for target in targets if not modules.is_own(target))
        if others and others != targets:
            entries["config_groups", name, "targets"] = others
        matched = matched or matched_entry(others or targets, modules.head, HEAD) is not None
    ignored = texts(values.get("ignore"))
    match = matched_entry(ignored, modules.head, HEAD)
    if matched and (match is None or not match[1]):
        entries["ignore",] = (*ignored, modules.head)
    return entries


def _compressed_listed(values: Mapping[str, object], modules: Modules) -> Entries:
    """Remove the head from ``ignore``, and add its name, which vLLM needs, to the embedding's or the only group."""
    entries: Entries = {}
    ignored = texts(values.get("ignore"))
    others = tuple(entry for entry in ignored if not modules.is_own(entry))
    if others != ignored:
        entries["ignore",] = others
    groups = _targets(values)
    for name, targets in groups.items():
        if matched_entry(targets, modules.embedding, EMBEDDING) is not None or len(groups) == 1:
            if not any(modules.is_own(target) for target in targets):
                pattern = f"re:.*{modules.head.rpartition('.')[2]}$"
                named = pattern if modules.is_own(pattern) else modules.head
                entries["config_groups", name, "targets"] = (*targets, named)
            break
    return entries


def _targets(values: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    groups = values.get("config_groups")
    pairs = groups.items() if isinstance(groups, Mapping) else ()
    return {str(name): texts(group.get("targets")) for name, group in pairs if isinstance(group, Mapping)}


# --- a switch, or a list of modules to skip --------------------------------------------------------------


def _gptq_left_out(values: Mapping[str, object], modules: Modules) -> Entries:
    return {("lm_head",): False} if values.get("lm_head") is True else {}


def _gptq_listed(values: Mapping[str, object], modules: Modules) -> Entries:
    return {} if values.get("lm_head") is True else {("lm_head",): True}


def _awq_left_out(values: Mapping[str, object], modules: Modules) -> Entries:
    skipped = _skip("modules_to_not_convert", values, modules) if "modules_to_not_convert" in values else {}
    return {**_gptq_left_out(values, modules), **skipped}


def _awq_listed(values: Mapping[str, object], modules: Modules) -> Entries:
    return {**_gptq_listed(values, modules), **_unskip("modules_to_not_convert", values, modules)}


def _bitsandbytes_left_out(values: Mapping[str, object], modules: Modules) -> Entries:
    key = "llm_int8_skip_modules"
    return _skip(key, values, modules) if isinstance(values.get(key), list) else {}  # without a list, it is skipped


def _bitsandbytes_listed(values: Mapping[str, object], modules: Modules) -> Entries:
    key = "llm_int8_skip_modules"
    return _unskip(key, values, modules) if isinstance(values.get(key), list) else {(key,): ()}


def _fp8_left_out(values: Mapping[str, object], modules: Modules) -> Entries:
    return _skip(_fp8_key(values), values, modules)


def _fp8_listed(values: Mapping[str, object], modules: Modules) -> Entries:
    return _unskip(_fp8_key(values), values, modules)


def _fp8_key(values: Mapping[str, object]) -> str:
    own = "modules_to_not_convert"
    return "ignored_layers" if values.get("ignored_layers") and not values.get(own) else own


def _skip(key: str, values: Mapping[str, object], modules: Modules) -> Entries:
    names = texts(values.get(key))
    return {} if modules.head in names else {(key,): (*names, modules.head)}


def _unskip(key: str, values: Mapping[str, object], modules: Modules) -> Entries:
    names = texts(values.get(key))
    others = tuple(name for name in names if name not in (modules.head, modules.head.rpartition(".")[2]))
    return {} if others == names else {(key,): others}


# --- MLX -------------------------------------------------------------------------------------------------


def _mlx_left_out(values: Mapping[str, object], modules: Modules) -> Entries:
    return {(modules.head,): REMOVED} if modules.head in values else {}


def _mlx_listed(values: Mapping[str, object], modules: Modules) -> Entries:
    """Give the head the embedding's own entry, or none if the embedding has none."""
    if modules.embedding in values:
        same = values.get(modules.head) == values[modules.embedding]
        return {} if same else {(modules.head,): values[modules.embedding]}
    return _mlx_left_out(values, modules)


_LEFT_OUT: Mapping[str, Editor] = {
    "compressed-tensors": _compressed_left_out,
    "gptq": _gptq_left_out,
    "awq": _awq_left_out,
    "bitsandbytes": _bitsandbytes_left_out,
    "fp8": _fp8_left_out,
    "mlx": _mlx_left_out,
}
_LISTED: Mapping[str, Editor] = {
    "compressed-tensors": _compressed_listed,
    "gptq": _gptq_listed,
    "awq": _awq_listed,
    "bitsandbytes": _bitsandbytes_listed,
    "fp8": _fp8_listed,
    "mlx": _mlx_listed,
}
