"""The model's own code declares its tied names in a form that transformers 5 cannot use.

## What it does
Reads the `modeling_*.py` beside the weights as text; tieconv does not import or run it. The rule reports a
`_tied_weights_keys` that is a list, or a dict that ties a name to itself.

The level is note if the config has no `auto_map`, because the code is not used. It is also note if transformers has the
class, because it runs the code only with `trust_remote_code=True`. In an untied model the list breaks only
`save_pretrained`, so the level is warning.

## Why it matters
transformers 5 needs a dict from each tied name to the name that it is tied to. With the list of transformers 4 it fails
with `AttributeError: 'list' object has no attribute 'keys'`. If a dict maps a name to itself, the class loads but ties
nothing.

## Example
A model with its own code, written for transformers 4:

    error COD001: modeling_acme.py declares _tied_weights_keys as a list.
    transformers 5 fails when it loads the model ('list' object has no attribute
    'keys'). Write {"lm_head.weight": "model.embed_tokens.weight"}.

## How to fix
Edit the file. The message has the dict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each declaration."""
    used = "auto_map" in inspection.checkpoint.config_values
    native = inspection.family.knowledge is Knowledge.TABLE
    subject = "With trust_remote_code=True, transformers 5" if used and native else "transformers 5"
    loads = inspection.config.effective
    for caution in evidence.cautions(inspection, "code.tied-keys-list"):
        yield RULE.finding(
            f"{caution.message}. {subject} fails when it {'loads' if loads else 'saves'} the model "
            f"('list' object has no attribute 'keys').{_patch(inspection, caution.tensors)}",
            level=Level.NOTE if native or not used else Level.ERROR if loads else Level.WARNING,
        )
    for caution in evidence.cautions(inspection, "code.tied-to-itself"):
        yield RULE.finding(
            f"{caution.message} ({evidence.listed(caution.tensors)}). So the class ties nothing."
            f"{_patch(inspection, caution.tensors)}",
            level=Level.WARNING if used and not native else Level.NOTE,
        )


def _patch(inspection: Inspection, names: Sequence[str]) -> str:
    embedding = inspection.family.input_embedding
    if not names or embedding is None or len(names) > 4:
        return ""
    return f" Write {shown(json.dumps({name: embedding for name in names if name != embedding}), 400)}."


RULE = Rule("COD001", "tied-keys", Level.ERROR, __doc__ or "", find)
