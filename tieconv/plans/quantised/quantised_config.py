"""Edit the quantisation config together with the tie flag, so that both describe the head that is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from tieconv.checkpoint.inspection import Inspection, lists_float_head
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, ConfigChoice, QuantisedMatrix, Verdict
from tieconv.checkpoint.write_plan import DropConfig, OutputText, SetConfig
from tieconv.formats.json.edit import remove_keys, set_value
from tieconv.inspection.quantised.quantisation_config import declared_settings, quantisation_settings
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.plans.config import set_flag
from tieconv.plans.guards import inspect_hint, refuse
from tieconv.plans.quantised.head_entries import REMOVED, Editor, Entries, Modules, left_out, listed
from tieconv.text import shown

Changes = tuple[SetConfig | DropConfig, ...]
Document = tuple[OutputText | None, Changes]


def config_without_head(inspection: Inspection, head: str) -> Document:
    """Return the config of the tied model: the head has no codes, so no entry may list it."""
    method = _method(inspection)
    document = _edited(inspection, True, left_out(method), head)
    choice = _choice(inspection, document, head, HEAD)
    if choice.verdict is Verdict.QUANTISED and method != "mlx":
        _refuse(inspection, f"still lists the head ({choice.entry})")
    return document


def config_with_head(inspection: Inspection, head: str) -> Document:
    """Return the config of the untied model: the head has codes, and is quantised as the embedding is."""
    method = _method(inspection)
    document = _edited(inspection, False, listed(method), head)
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
    if declared is None or not _agree(inspection):
        return set_flag(inspection, tied)
    editor, listing = None, False
    if lists_float_head(inspection):
        editor = left_out(declared.method)
    elif codes is not None and codes.config.verdict is Verdict.LEFT_OUT and not codes.faults:
        editor, listing = listed(declared.method), True
    if editor is None or inspection.family.output_head is None:
        return set_flag(inspection, tied)
    head = in_file(inspection, inspection.family.output_head).removesuffix(".weight")
    document = _edited(inspection, tied, editor, head)
    choice = _choice(inspection, document, head, HEAD)
    right = (choice.verdict is Verdict.QUANTISED) is listing and (codes is None or _describes(choice, codes))
    return document if right else set_flag(inspection, tied)


def _describes(choice: ConfigChoice, codes: QuantisedMatrix) -> bool:
    """Return whether the numbers of the config are those of the stored codes."""
    group = codes.block[1] if codes.block else None
    return choice.bits in (None, codes.bits) and choice.group in (None, group)


def _numbers(choice: ConfigChoice) -> tuple[object, ...]:
    return choice.bits, choice.group, choice.symmetric, choice.layout, choice.block


def _method(inspection: Inspection) -> str:
    return quantisation_settings(inspection.checkpoint.quantisation_values).method


def _embedding(inspection: Inspection) -> str:
    embedding = inspection.quantised.of(EMBEDDING) if inspection.quantised else None
    name = embedding.name if embedding else in_file(inspection, inspection.family.input_embedding or "")
    return name.removesuffix(".weight")


def _agree(inspection: Inspection) -> bool:
    """Return whether all descriptions of the quantisation in the config are equal."""
    settings = declared_settings(inspection.checkpoint.config_values)
    return all(copy.values == settings[0].values for copy in settings)


def _choice(inspection: Inspection, document: Document, module: str, role: str) -> ConfigChoice:
    text, _ = document
    config = inspection.checkpoint.config_values if text is None else json.loads(text.text)
    return quantisation_settings(config).choice(module, role)


def _edited(inspection: Inspection, tied: bool, editor: Editor | None, head: str) -> Document:
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
    modules = Modules(_embedding(inspection), head, _stored_modules(inspection))
    entries = editor(settings.values, modules)
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


def _stored_modules(inspection: Inspection) -> frozenset[str]:
    """Return the names of the modules that have stored tensors, and of the modules around them."""
    modules: set[str] = set()
    for name in inspection.checkpoint.tensors:
        module = name.rpartition(".")[0]
        while module and module not in modules:
            modules.add(module)
            module = module.rpartition(".")[0]
    return frozenset(modules)


def _refuse(inspection: Inspection, clause: str) -> NoReturn:
    refuse(
        f"the quantisation config of {shown(inspection.checkpoint.source)} {shown(clause, 200)}",
        inspect_hint(inspection),
        "quantised.config",
    )
