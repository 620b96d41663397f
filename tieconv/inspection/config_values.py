"""The values that a class reads for the keys of a certificate: from the config, else the measured default.

There is no certificate if releases of transformers disagree, or if a key has a value that was not measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from math import isfinite
from typing import Any

from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.package_data import data_text
from tieconv.text import shown

_EPSILON = re.compile(r"(^|_)eps(ilon)?$")

_ADAPTER = "adapter_config.json"


class WithheldError(Exception):
    """There is no certificate. The text is a clause that says why."""


def guard_class(evidence: Inspection) -> None:
    """Raise `WithheldError` if the code that runs the model, or its use of the tables, is unknown."""
    config, family = evidence.checkpoint.config_values, evidence.family
    if any("auto_map" in level for level in levels(config)):
        raise WithheldError("the config names remote code (auto_map), which tieconv does not read")
    if any("quantization_config" in level for level in levels(config)):
        raise WithheldError("the config quantises the model on loading (quantization_config)")
    if _ADAPTER in evidence.checkpoint.companions:
        raise WithheldError(f"transformers adds the adapter of {_ADAPTER} to the model")
    if family.named or family.knowledge is not Knowledge.TABLE:
        raise WithheldError("this class was not measured with transformers")
    model_type = config.get("model_type")
    if model_type != family.model_type:
        problem = f"model_type is {shown(model_type)} in the config, but {family.architecture} has {family.model_type}"
        raise WithheldError(problem)


def class_values(evidence: Inspection, keys: tuple[str, ...]) -> dict[str, object]:
    """Return the values that the class of a model reads for ``keys`` in every measured release.

    Raises `WithheldError` if a value is unknown, or if another key invalidates the certificate.
    """
    guard_class(evidence)
    config, family = evidence.checkpoint.config_values, evidence.family
    for key, value in config.items():
        if _EPSILON.search(key) and not (is_number(value) and value >= 0):  # type: ignore[operator]
            raise WithheldError(f"{shown(key)} is {shown(value)} in the config, not a number of at least 0")
    values: dict[str, dict[str, object]] = {key: {} for key in keys}
    for release, record, aliases in norms(family.model_type):
        if family.architecture not in record.get("classes", ()):
            raise WithheldError(
                f"the factors between the last norm and the logits of {family.architecture} in transformers {release} "
                "are unknown"
            )
        for alias, key in aliases.items():
            if alias in config:
                raise WithheldError(f"the config has {alias} instead of {key}")
        for key, value in record["fixed"].items():
            if config.get(key, value) != value:
                raise WithheldError(f"{key} is not {value!r} in the config, but only that value was measured")
        for key in keys:
            values[key][release] = config.get(key, record["defaults"].get(key))
    return {key: _agreed(key, by_release) for key, by_release in values.items()}


def _agreed(key: str, values: Mapping[str, object]) -> object:
    distinct = list(values.values())
    if not distinct:
        raise WithheldError("no measured release has this model type")
    if any(value != distinct[0] for value in distinct):
        values_text = ", ".join(f"{value!r} in transformers {release}" for release, value in values.items())
        raise WithheldError(f"the config has no {key}, and its default differs: {values_text}")
    return distinct[0]


def is_number(value: object) -> bool:
    """Return whether a value of a config is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def number(values: Mapping[str, object], key: str, absent: float) -> float:
    """Return the number of a key, or ``absent`` for an empty key. Raises `WithheldError` for any other value."""
    if not key:
        return absent
    value = values[key]
    if not is_number(value):
        raise WithheldError(f"{key} is {shown(value)}, not a number")
    return float(value)  # type: ignore[arg-type]


def levels(config: object) -> Iterator[Mapping[str, object]]:
    """Yield the config and each object in it."""
    if isinstance(config, Mapping):
        yield config
        for value in config.values():
            yield from levels(value)


# Tables measured with releases of transformers: defaults of config keys, last norms, tokens of tokenizer classes.
#
# `fixtures/certificates.py` writes each ``data/transformers-*.json`` and documents its parts.

RELEASES = ("4.48", "4.57", "5.23")
"""The releases that certificates cover."""


@cache
def table(release: str) -> Mapping[str, Any]:
    """Return everything that was measured with one release."""
    releases: Mapping[str, Any] = json.loads(data_text(__name__, f"transformers-{release}.json"))
    return releases


def default_ids(model_type: str) -> set[int]:
    """Return the token ids that a class reads in some release if its config has no keys for them."""
    return {number for release in RELEASES for number in table(release)["ids"].get(model_type, ())}


def tokens_of_class(name: str) -> set[str] | None:
    """Return the tokens that a tokenizer class adds by itself, or ``None`` if some release was not measured."""
    names = (name.removesuffix("Fast"), f"{name.removesuffix('Fast')}Fast")
    tokens: set[str] = set()
    known = False
    for release in RELEASES:
        measured = table(release)["tokenizers"]
        here = [measured[class_name] for class_name in names if class_name in measured]
        if here and not any(class_name is not None for class_name in here):
            return None
        known = known or bool(here)
        tokens.update(*(class_name for class_name in here if class_name is not None))
    return tokens if known else None


def norms(model_type: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, str]]]:
    """Yield (release, record of the last norm, aliases of its keys) for each release with the model type."""
    for release in RELEASES:
        measured = table(release)
        if model_type in measured["ids"]:
            yield release, measured["norms"].get(model_type, {}), measured["aliases"].get(model_type, {})
