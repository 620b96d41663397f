"""The config counts layers for multi-token prediction that are not stored.

## What it does
Notes a config with `num_nextn_predict_layers` (or `mtp_num_hidden_layers`) above zero but no tensor of such a layer.

## Why it matters
These layers follow the last layer and hold copies of the embedding and the head. transformers drops them when it loads.
So a model that it saved again has lost them, but the config still counts them. Converters and servers that predict
several tokens then fail because a tensor is missing.

## Example
A model with three layers, saved again without its fourth:

    note MTP001: The config sets num_nextn_predict_layers to 1, but no such
    layer is stored. Loaders that use these layers fail.

## How to fix
Set the count to 0, or copy the file with the layers from the original release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks.interface import Rule

_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_NESTED = ("", "text_config", "llm_config", "language_config")


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for config in _configs(inspection.checkpoint.config_values):
        for key in _COUNTS:
            number, layers = config.get(key), config.get("num_hidden_layers")
            if type(number) is int and number > 0 and type(layers) is int and not _stored(inspection, layers):
                yield RULE.finding(
                    f"The config sets {key} to {number}, but no such layer is stored. Loaders that use these "
                    "layers fail."
                )
                return


def _configs(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for key in _NESTED:
        value = config.get(key) if key else config
        if isinstance(value, Mapping):
            yield value


def _stored(inspection: Inspection, layers: int) -> bool:
    """Return whether a tensor of a layer after the last one, or of an `mtp` or `nextn` module, is stored."""
    named = re.compile(rf"(^|\.)(mtp|nextn)|(^|\.)layers\.{layers}\.")
    return any(named.search(name) for name in inspection.checkpoint.tensors)


RULE = Rule("MTP001", "missing-layers", Level.NOTE, __doc__ or "", find)
