"""The values that a class reads for the keys of a certificate: from the config, else the measured default.

Where releases of transformers disagree, or a key holds what no class was measured with, there is no certificate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite

from tieconv.analysis.certificate.measured_releases import norms
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.text import shown

_EPSILON = re.compile(r"(^|_)eps(ilon)?$")

_ADAPTER = "adapter_config.json"


class WithheldError(Exception):
    """No certificate is given; the text is half a sentence that says why."""


def guard_class(evidence: Inspection) -> None:
    """Raises `WithheldError` where it is not known which code runs the model, or what that makes of its tables."""
    config, family = evidence.checkpoint.config_values, evidence.family
    if any("auto_map" in level for level in _levels(config)):
        raise WithheldError("the config names code of its own (auto_map), which was not read")
    if any("quantization_config" in level for level in _levels(config)):
        raise WithheldError("the config quantises the model as it is loaded (quantization_config)")
    if _ADAPTER in evidence.checkpoint.companions:
        raise WithheldError(f"{_ADAPTER} has transformers add an adapter to the model")
    if family.named or family.knowledge is not Knowledge.TABLE:
        raise WithheldError("this class is not one of transformers that was measured")
    model_type = config.get("model_type")
    if model_type != family.model_type:
        raise WithheldError(
            f"the config calls the model {shown(model_type)}, and {family.architecture} is of type {family.model_type}"
        )


def class_values(evidence: Inspection, keys: tuple[str, ...]) -> dict[str, object]:
    """What the class of a model reads for ``keys``, in every release that was measured.

    Raises `WithheldError` where that is not known, and where another key ends what the certificate rests on.
    """
    guard_class(evidence)
    config, family = evidence.checkpoint.config_values, evidence.family
    for key, value in config.items():
        if _EPSILON.search(key) and not (is_number(value) and value >= 0):  # type: ignore[operator]
            raise WithheldError(f"{shown(key)} is {shown(value)} in the config, not a number from 0 on")
    values: dict[str, dict[str, object]] = {key: {} for key in keys}
    for release, record, aliases in norms(family.model_type):
        if family.architecture not in record.get("classes", ()):
            raise WithheldError(
                f"what stands between the last norm and the logits of {family.architecture} in transformers {release} "
                "is not known"
            )
        for alias, key in aliases.items():
            if alias in config:
                raise WithheldError(f"the config spells {key} as {alias}")
        for key, value in record["fixed"].items():
            if config.get(key, value) != value:
                raise WithheldError(f"{key} is not {value!r} in the config, and no other value was measured")
        for key in keys:
            values[key][release] = config.get(key, record["defaults"].get(key))
    return {key: _agreed(key, by_release) for key, by_release in values.items()}


def _agreed(key: str, values: Mapping[str, object]) -> object:
    distinct = list(values.values())
    if not distinct:
        raise WithheldError("no release that was measured has this model type")
    if any(value != distinct[0] for value in distinct):
        values_text = ", ".join(f"{value!r} in transformers {release}" for release, value in values.items())
        raise WithheldError(f"the config leaves out {key}, and its default differs: {values_text}")
    return distinct[0]


def is_number(value: object) -> bool:
    """Whether a value of a config is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def number(values: Mapping[str, object], key: str, absent: float) -> float:
    """The number of a key, ``absent`` for an empty one. Raises `WithheldError` where it holds something else."""
    if not key:
        return absent
    value = values[key]
    if not is_number(value):
        raise WithheldError(f"{key} is {shown(value)}, not a number")
    return float(value)  # type: ignore[arg-type]


def _levels(config: object) -> Iterator[Mapping[str, object]]:
    """A config and those nested in it."""
    if isinstance(config, Mapping):
        yield config
        for value in config.values():
            yield from _levels(value)
