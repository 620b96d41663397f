"""Edit the config: the tie flag at every level that a loader reads, and the quantisation config with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NoReturn

from tieconv.architectures.effective_flag import DERIVED_KEY, FLAG, is_foreign, levels_read, own_flag, text_config
from tieconv.checkpoint.family import FlagMeaning
from tieconv.checkpoint.inspection import Inspection, lists_float_head
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, ConfigChoice, Verdict
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import DropConfig, OutputText, SetConfig
from tieconv.errors import RefusedError
from tieconv.formats.json_text import remove_keys, set_value, set_values
from tieconv.inspection.quantised import declared_settings, matched_entry, matches_pattern, quantisation_settings, texts
from tieconv.loaders.evidence import in_file
from tieconv.plans.guards import again, refuse
from tieconv.text import shown


# Write the tie flag at every level of the config that a loader reads.
def set_flag(inspection: Inspection, tied: bool) -> tuple[OutputText | None, tuple[SetConfig, ...]]:
    """Return the config text with the flag set to ``tied`` at the top and at nested levels that have one.

    One level is not enough: transformers 4 obeys the nested flag, transformers 5 the top one. Some classes obey either.
    A class with `Family.unflippable` gets the flag only at the levels that decide. Returns ``(None, ())`` if every
    level has this value, or if there is no config. Raises `RefusedError` for a flag that occurs twice in one object.
    """
    document = inspection.checkpoint.config
    if document is None:
        return None, ()
    changes = (*_changes(inspection, tied), *_own(document.value, tied), *_derived(inspection, tied))
    foreign = is_foreign(document.value)
    if foreign and inspection.config.known and inspection.config.effective is tied:
        changes = tuple(change for change in changes if change.present)
    unknown = next((change.path for change in changes if not change.present), None)
    if unknown is not None and foreign:
        problem = f"{shown(document.name)} is not a config of transformers"
        hint = "change the model with the program that wrote it"
        raise RefusedError(f"{problem}, and its loader may refuse the new key {shown(unknown)}", hint, "config.foreign")
    if changes and document.text.count(f'"{FLAG}"') > _flag_count(document.value):
        problem = f"{document.name} holds {FLAG} twice in one object, so readers disagree on its value"
        raise RefusedError(problem, "remove one of the two entries", "config.repeated-flag")
    if changes:
        _guard_scale(inspection)
    text = set_values(document.text, [(change.path.split("."), change.value) for change in changes])
    return (OutputText(document.name, text), changes) if changes else (None, ())


def _changes(inspection: Inspection, tied: bool) -> Iterator[SetConfig]:
    family = inspection.family
    for entry in inspection.config.declared:
        level = entry.path.removesuffix(FLAG).rstrip(".")
        # With `Family.unflippable` only the levels that decide may change.
        fixed = family.unflippable is not None and level not in levels_read(family)
        absent = not entry.present and entry.path.endswith(f".{FLAG}") and level not in family.levels
        if entry.value is tied or fixed or absent:
            continue
        yield SetConfig(entry.path, tied, entry.value, entry.present)


def _own(config: Mapping[str, object], tied: bool, prefix: str = "") -> Iterator[SetConfig]:
    """Yield the class's own flags that override the usual one, at every level: both must agree."""
    name = own_flag(config)
    if name is not None and config[name] is not tied:
        yield SetConfig(f"{prefix}{name}", tied, config[name], True)
    for key, value in config.items():
        if isinstance(value, Mapping) and "." not in key:
            yield from _own(value, tied, f"{prefix}{key}.")


def _derived(inspection: Inspection, tied: bool) -> Iterator[SetConfig]:
    """Yield the change of the key that transformers 5 derives from the flag. If it is present, it must agree."""
    config, start = text_config(inspection), f"{inspection.family.text_level}."
    derives = FlagMeaning.DERIVES in (inspection.family.meaning_v5, inspection.family.meaning_v4)
    if derives and config.get(DERIVED_KEY, tied) is not tied and _flips(inspection, tied):
        yield SetConfig(f"{start}{DERIVED_KEY}".lstrip("."), tied, config[DERIVED_KEY], True)


def _flips(inspection: Inspection, tied: bool) -> bool:
    """Return whether the flag's value changes. An absent flag has the default value of the class."""
    entries = (entry for entry in inspection.config.declared if entry.present and entry.path == _decisive(inspection))
    declared = [entry.value for entry in entries]
    return any(value is not tied for value in declared) or (not declared and inspection.family.default_v5 is not tied)


def _guard_scale(inspection: Inspection) -> None:
    """Refuse a flag of another type: transformers 5 tests it by ``is False``, transformers 4 by truth."""
    meanings = {inspection.family.meaning_v5, inspection.family.meaning_v4}
    present = [entry for entry in inspection.config.declared if entry.present and entry.path == _decisive(inspection)]
    mistyped = next((entry for entry in present if entry.value is not False and not entry.value), None)
    if mistyped is not None and meanings != {FlagMeaning.STORAGE}:
        raise RefusedError(
            f"{mistyped.path} is {shown(json.dumps(mistyped.value))}: with it transformers 5 scales the logits of "
            f"{inspection.family.architecture}, and transformers 4 does not",
            "find out which logits are right, then write true or false into the config by hand",
            "flag.forward",
        )


def _decisive(inspection: Inspection) -> str:
    return f"{inspection.family.text_level}.{FLAG}".lstrip(".")


def _flag_count(value: object) -> int:
    if isinstance(value, Mapping):
        return sum((key == FLAG) + _flag_count(entry) for key, entry in value.items())
    if isinstance(value, list):
        return sum(map(_flag_count, value))
    return 0


# Edit the quantisation config together with the tie flag, so that both describe the head that is stored.

Changes = tuple[SetConfig | DropConfig, ...]
Document = tuple[OutputText | None, Changes]


def config_without_head(inspection: Inspection, head: str) -> Document:
    """Return the config of the tied model: the head has no codes, so no entry may list it."""
    method = _method(inspection)
    document = _edited(inspection, True, _EDITORS.get(method), head, listing=False)
    choice = _choice(inspection, document, head, HEAD)
    if choice.verdict is Verdict.QUANTISED and method != "mlx":
        _refuse(inspection, f"still lists the head ({choice.entry})")
    return document


def config_with_head(inspection: Inspection, head: str) -> Document:
    """Return the config of the untied model: the head has codes, and is quantised as the embedding is."""
    method = _method(inspection)
    document = _edited(inspection, False, _EDITORS.get(method), head, listing=True)
    choice = _choice(inspection, document, head, HEAD)
    if choice.verdict is not Verdict.QUANTISED and (method != "mlx" or choice.verdict is Verdict.LEFT_OUT):
        _refuse(inspection, f"would not list the head as quantised ({choice.entry or choice.verdict})")
    if method in ("compressed-tensors", "mlx"):
        embedding = _choice(inspection, document, _embedding(inspection), EMBEDDING)
        if _numbers(choice) != _numbers(embedding):
            _refuse(inspection, f"would give the head other settings than the embedding ({choice.entry})")
    return document


def config_with_flag(inspection: Inspection, tied: bool) -> Document:
    """Return the config with the flag ``tied``, in which the quantisation lists the head only if its codes are stored.

    For a method that tieconv does not edit, and for two descriptions that differ, only the flag changes.
    """
    declared, tables = inspection.quantisation, inspection.quantised
    codes = tables.of(HEAD) if tables else None
    copies = declared_settings(inspection.checkpoint.config_values)
    if declared is None or any(copy.values != copies[0].values for copy in copies):
        return set_flag(inspection, tied)
    listing = codes is not None and codes.config.verdict is Verdict.LEFT_OUT and not codes.faults
    float_head, editor = lists_float_head(inspection), _EDITORS.get(declared.method)
    if editor is None or not (float_head or listing) or inspection.family.output_head is None:
        return set_flag(inspection, tied)
    listing = listing and not float_head
    head = in_file(inspection, inspection.family.output_head).removesuffix(".weight")
    document = _edited(inspection, tied, editor, head, listing=listing)
    choice = _choice(inspection, document, head, HEAD)
    group = codes.block[1] if codes and codes.block else None
    described = codes is None or (choice.bits in (None, codes.bits) and choice.group in (None, group))
    right = (choice.verdict is Verdict.QUANTISED) is listing and described
    return document if right else set_flag(inspection, tied)


def _numbers(choice: ConfigChoice) -> tuple[object, ...]:
    return choice.bits, choice.group, choice.symmetric, choice.layout, choice.block


def _method(inspection: Inspection) -> str:
    return quantisation_settings(inspection.checkpoint.quantisation_values).method


def _embedding(inspection: Inspection) -> str:
    embedding = inspection.quantised.of(EMBEDDING) if inspection.quantised else None
    name = embedding.name if embedding else in_file(inspection, inspection.family.input_embedding or "")
    return name.removesuffix(".weight")


def _choice(inspection: Inspection, document: Document, module: str, role: str) -> ConfigChoice:
    text, _ = document
    config = inspection.checkpoint.config_values if text is None else json.loads(text.text)
    return quantisation_settings(config).choice(module, role)


def _edited(inspection: Inspection, tied: bool, editor: Editor | None, head: str, *, listing: bool) -> Document:
    """Return the config with the flag ``tied``, and with the entries of ``editor`` in every copy of the settings."""
    document = inspection.checkpoint.config
    settings = quantisation_settings(inspection.checkpoint.config_values)
    if document is None or not settings.values:
        _refuse(inspection, "does not describe the quantisation")
    if editor is None:
        _refuse(inspection, f"uses the method {settings.method or 'of an unknown name'}, which tieconv does not edit")
    copies = declared_settings(document.value)
    if any(copy.values != settings.values for copy in copies):
        _refuse(inspection, f"describes the quantisation twice ({', '.join(copy.path for copy in copies)})")
    # The modules with stored tensors, and the modules around them.
    stored: set[str] = set()
    for name in inspection.checkpoint.tensors:
        module = name.rpartition(".")[0]
        while module and module not in stored:
            stored.add(module)
            module = module.rpartition(".")[0]
    modules = Modules(_embedding(inspection), head, frozenset(stored))
    entries = editor(settings.values, modules, listing)
    flagged, changes = set_flag(inspection, tied)
    text = document.text if flagged is None else flagged.text
    all_changes: list[SetConfig | DropConfig] = list(changes)
    for copy in copies:
        text = _applied(text, tuple(copy.path.split(".")), entries)
        all_changes += _operations(copy.path, copy.values, entries)
    if not all_changes:
        return None, ()
    return OutputText(document.name, text), tuple(all_changes)


def _applied(text: str, start: tuple[str, ...], entries: Entries) -> str:
    for path, value in entries.items():
        if value is REMOVED:
            text = remove_keys(text, (*start, *path[:-1]), path[-1:])
        else:
            text = set_value(text, (*start, *path), value)
    return text


def _operations(start: str, values: Mapping[str, object], entries: Entries) -> Changes:
    operations: list[SetConfig | DropConfig] = []
    for path, value in entries.items():
        name = ".".join((start, *path))
        before, present = _at(values, path)
        operations.append(DropConfig(name, before) if value is REMOVED else SetConfig(name, value, before, present))
    return tuple(operations)


def _at(values: object, path: tuple[str, ...]) -> tuple[object, bool]:
    for key in path:
        if not isinstance(values, Mapping) or key not in values:
            return None, False
        values = values[key]
    return values, True


def _refuse(inspection: Inspection, clause: str) -> NoReturn:
    problem = f"the quantisation config of {shown(inspection.checkpoint.source)} {shown(clause, 200)}"
    refuse(problem, again(inspection, "inspect"), "quantised.config")


# Find the config edits that list the head among the quantised modules, or leave it out.
#
# Each quantisation method has its own entries. Sources: as in `tieconv.inspection.quantised`.

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


Editor = Callable[[Mapping[str, object], Modules, bool], Entries]
"""Returns the entries that list the head as the embedding is listed, or that leave it out."""


def _compressed(values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    return _compressed_listed(values, modules) if listing else _compressed_left_out(values, modules)


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


def _gptq(values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    return {} if (values.get("lm_head") is True) is listing else {("lm_head",): listing}


def _awq(values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    key = "modules_to_not_convert"
    skipped = _skipped(key, values, modules, listing) if listing or key in values else {}
    return {**_gptq(values, modules, listing), **skipped}


def _bitsandbytes(values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    key = "llm_int8_skip_modules"
    if isinstance(values.get(key), list):
        return _skipped(key, values, modules, listing)
    return {(key,): ()} if listing else {}  # without a list, bitsandbytes skips the head


def _fp8(values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    key = "modules_to_not_convert"
    if values.get("ignored_layers") and not values.get(key):
        key = "ignored_layers"
    return _skipped(key, values, modules, listing)


def _skipped(key: str, values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    """Take the head out of the list of modules that are not quantised, or add it."""
    names = texts(values.get(key))
    if not listing:
        return {} if modules.head in names else {(key,): (*names, modules.head)}
    others = tuple(name for name in names if name not in (modules.head, modules.head.rpartition(".")[2]))
    return {} if others == names else {(key,): others}


def _mlx(values: Mapping[str, object], modules: Modules, listing: bool) -> Entries:
    """Give the head the embedding's own entry, or none if the embedding has none."""
    if listing and modules.embedding in values:
        same = values.get(modules.head) == values[modules.embedding]
        return {} if same else {(modules.head,): values[modules.embedding]}
    return {(modules.head,): REMOVED} if modules.head in values else {}


_EDITORS: Mapping[str, Editor] = {
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "mlx": _mlx,
}
