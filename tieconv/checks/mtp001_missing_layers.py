"""The config counts layers for multi-token prediction that are not stored.

## What it does
Notes a config with `num_nextn_predict_layers` (or `mtp_num_hidden_layers`) above zero in a checkpoint that has
no tensor of such a layer.

## Why it matters
The layers come after the last one of the model and carry copies of the embedding and the head. transformers
drops them when it loads, so a model that it saved again has lost them while the config still counts them:
converters and servers that predict several tokens then stop at a missing tensor.

## Example
A model with three layers, saved again without its fourth:

    note MTP001: the config has num_nextn_predict_layers 1, and no tensor of
    such a layer is stored: loaders that use them stop at the missing tensors

## How to fix
Set the count to 0, or bring the layers' file along from the original release.
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
    """At most one finding."""
    for config in _configs(inspection.checkpoint.config_values):
        for key in _COUNTS:
            number, layers = config.get(key), config.get("num_hidden_layers")
            if type(number) is int and number > 0 and type(layers) is int and not _stored(inspection, layers):
                yield RULE.finding(
                    f"the config has {key} {number}, and no tensor of such a layer is stored: loaders that use "
                    "them stop at the missing tensors"
                )
                return


def _configs(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for key in _NESTED:
        value = config.get(key) if key else config
        if isinstance(value, Mapping):
            yield value


def _stored(inspection: Inspection, layers: int) -> bool:
    """Whether a layer beyond the last one, or one of a module named for it, is stored."""
    named = re.compile(rf"(^|\.)(mtp|nextn)|(^|\.)layers\.{layers}\.")
    return any(named.search(name) for name in inspection.checkpoint.tensors)


RULE = Rule("MTP001", "missing-layers", Level.NOTE, __doc__ or "", find)
