"""Read the shipped tables, which have one line for each class. Only the requested line is parsed.

Keys of a class record (``data/transformers5.json``):

- ``type``: model_type. ``prefix``: base_model_prefix.
- ``in`` and ``out``: the input embedding and the output head.
- ``bias``: output biases. ``row``: whether they are rows.
- ``groups``: lists of role, canonical name, members and gated.
- ``renames``: pairs of the names in the file and in memory.
- ``levels``, ``truth`` and ``tying``: as in ``Family``.
- ``means``: the flag's meaning in transformers 5.
- ``unflippable``: why the tied names cannot be listed.
- ``misfit``: true if an untied head has a different shape from the tied table.
- ``pieces``: the tensors that together are the input embedding, if there are several.
- ``unlisted``: true if no auto mapping of transformers has the class.
- ``notes``: what the measurement could not do.

Keys of a model_type record (``data/transformers4.json``): ``default`` and ``level`` of the flag, ``means``.
The record with the empty name is the header of its file.

``data/newer.json`` adds the classes of a newer release of transformers. A record ``Class[=type]`` is a class that an
auto mapping builds from the config of another family. Such a class may store other names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Part, Role, TieGroup, Tying
from tieconv.package_data import data_text


def record(version: int, name: str) -> Mapping[str, Any] | None:
    """Return one record of the table of transformers 4 or 5, or ``None``. Newer releases of 5 add classes."""
    row = _record(f"transformers{version}", name)
    return _record("newer", name) if row is None and version != 4 else row


def newer_release() -> Mapping[str, Any]:
    """Return the header of the newer release: model types and their aliases."""
    header = _record("newer", "")
    assert header is not None
    return header


def described(name: str, model_type: str) -> Mapping[str, Any] | None:
    """Return the record of a class for configs of ``model_type``, or ``None`` if the table describes no such model.

    An auto class builds the class that its mapping lists for the type, whatever class the config names. A record
    counts for its own type, and for a type that was measured with the class. It also counts if the type's class has
    equal facts.
    """
    own = record(5, name)
    if own is None or "type" not in own:  # the name is a model type, not a class
        return None
    if not model_type or own["type"] in (model_type, newer_release()["aliases"].get(model_type)):
        return own
    measured = _record("newer", f"{name}[={model_type}]")
    if measured is not None:
        return measured
    main = main_class(model_type)
    of_main = described(main, model_type) if main is not None and main != name else None
    alike = of_main is not None and composite(name) is None and {**of_main, "type": ""} == {**own, "type": ""}
    return {**own, "type": model_type} if alike else None


def composite(name: str) -> Mapping[str, Any] | None:
    """Return the record of a class whose text part the config selects, or ``None``."""
    return _record("composites", name) if name else None


def composites() -> Mapping[str, Any]:
    """Return the header of the composites: classes and input embeddings by model type."""
    header = _record("composites", "")
    assert header is not None
    return header


LayerList = tuple[str, str, bool, list[str], list[list[str]], dict[str, list[str]], list[str] | None]


def layer_lists(family: Family) -> Iterable[LayerList]:
    """Return the lists of layers of a class: start, key of the number, likeness, and four kinds of parameters.

    Layers are alike if the default config gives all of them the same tensors. The parameters in each layer are those
    that no value of the config removed. Those of one group are together in each layer, or absent. Others are in each
    layer if a key of the config is true, which is false by default. The last are all others that a layer had with some
    value of the config, or starts of their names. They are ``None`` if this was not measured. Empty if nothing was
    measured (``fixtures/layers.py``), and for a text part of another type than the class's usual one.
    """
    return tuple((start, *values) for start, values in _measured("layers", family).items() if start)


@cache
def layer_parameters() -> frozenset[str]:
    """Return the names that parameters have in the layers of any class."""
    lists = [values for lists in json.loads(data_text(__name__, "layers.json")).values() for values in lists.items()]
    return frozenset(leaf for start, values in lists if start for leaf in values[2] + (values[5] or []))


def outside_layers(family: Family) -> list[list[str]]:
    """Return the parameters outside the lists that no value of the config removed.

    Those of the base model are a group. So are those of each module beside it, such as a head.
    """
    groups: list[list[str]] = _measured("layers", family).get("", [])
    return groups


def size_keys(family: Family) -> Mapping[str, Any]:
    """Return the keys of the config that give the dimensions of the class's tensors (``fixtures/sizes.py``).

    ``rows`` maps the start of the names to dimensions, and those to the ends of the names. A star is a number. Each
    dimension is a key, two keys to multiply, or a hyphen. ``derived`` lists levels of the config. There, the head size
    follows from other keys. ``types`` are the model types of nested levels, and ``aliases`` other names of keys.
    ``words`` lists the keys that name an activation or another thing of transformers. ``defaults`` are the numbers of
    absent keys, and ``absent`` those of absent levels. In the file, ``as`` names a class with an equal record.
    """
    sizes = _measured("sizes", family)
    return (_record("sizes", sizes["as"]) or {}) if "as" in sizes else sizes


def config_types(model_type: str) -> dict[str, tuple[str, ...]]:
    """Return the types of values that a config class accepts, by its keys (``fixtures/config_types.py``)."""
    by_types = (_record("config_types", model_type) if model_type else None) or {}
    return {key: (*types.split(),) for types, keys in by_types.items() for key in keys.split()}


def size_header() -> Mapping[str, Any]:
    """Return the releases that `size_keys` was measured with, and the ``words`` that they know."""
    return _record("sizes", "") or {}


def _measured(stem: str, family: Family) -> Mapping[str, Any]:
    measured = family.body_of or family.architecture
    is_own = (record(5, measured) or {}).get("type") == family.model_type
    name = measured if is_own else f"{measured}[={family.model_type}]"
    if family.knowledge is not Knowledge.TABLE or not (family.part is None or family.part.usual):
        return {}
    return _record(stem, name) or {}


@cache
def _record(stem: str, name: str) -> Mapping[str, Any] | None:
    text = data_text(__name__, f"{stem}.json")
    key = f"\n{json.dumps(name)}: "
    start = text.find(key)
    if start < 0:
        return None
    start += len(key)
    row: Mapping[str, Any] = json.loads(text[start : text.index("\n", start)].rstrip(","))
    return row


@cache
def exceptions(table: str) -> Mapping[str, Any]:
    """Return a few exceptions: ``names`` and ``flag`` by model type, ``switch`` and ``vocabulary`` by class."""
    by_type: Mapping[str, Any] = json.loads(data_text(__name__, "exceptions.json"))[table]
    return by_type


def measured_with(version: int) -> str:
    """Return the transformers release that the table of a major version was measured with."""
    header = record(version, "")
    assert header is not None
    return str(header["transformers"])


def main_class(model_type: str) -> str | None:
    """Return the most likely class for a config of this type without a class."""
    header = record(5, "")
    assert header is not None
    name: str | None = header["types"].get(model_type) or newer_release()["types"].get(model_type)
    return name


def names() -> tuple[str, ...]:
    """Return all class names of the table."""
    return tuple(name for name in json.loads(data_text(__name__, "transformers5.json")) if name)


def load(architecture: str, model_type: str = "") -> Family | None:
    """Return the family of a class in the table, for configs of ``model_type``; by default its own type."""
    raw = described(architecture, model_type) if architecture else None
    return family(architecture, raw) if raw is not None else None


def since(name: str, model_type: str) -> str:
    """Return the newer release that the record was measured with; empty for those of the table itself."""
    added = {name, f"{name}[={model_type}]"}
    return str(newer_release()["transformers"]) if any(_record("newer", key) for key in added) else ""


def family(architecture: str, raw: Mapping[str, Any], part: Part | None = None) -> Family:
    """Return the family of a record; ``part`` is the text part that the config selects."""
    row4 = record(4, raw["type"]) or {}
    text = row4 if part is None or part.usual else record(4, part.model_type) or {}
    meaning = text if part is None or part.architecture else row4
    return Family(
        architecture=architecture,
        model_type=raw["type"],
        knowledge=Knowledge.TABLE,
        tying=Tying(raw["tying"]),
        prefix=raw["prefix"],
        input_embedding=raw["in"],
        output_head=raw["out"],
        output_biases=tuple(raw["bias"]),
        bias_is_row=raw["row"],
        groups=tuple(
            TieGroup(Role(role), canonical, tuple(members), gated) for role, canonical, members, gated in raw["groups"]
        ),
        renames=tuple((stored, memory) for stored, memory in raw["renames"]),
        levels=tuple(raw["levels"]),
        truth=raw["truth"],
        default_v4=text.get("default") if "default" in row4 else None,
        meaning_v4=FlagMeaning(meaning.get("means", "storage")),
        meaning_v5=FlagMeaning(raw["means"]),
        level_v4=row4.get("level"),
        unflippable=raw.get("unflippable"),
        misfit=raw.get("misfit", False),
        pieces=tuple(raw.get("pieces", ())),
        unlisted=raw.get("unlisted", False),
        since=since(architecture, raw["type"]),
        part=part,
    )
