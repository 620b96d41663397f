"""The model's own code declares its tied names in a form that transformers 5 cannot use.

## What it does
Reads the `modeling_*.py` beside the weights as text (nothing is imported or run) and reports a
`_tied_weights_keys` that is a list, or a dict that ties a name to itself. Without an `auto_map` in the config
the code is not used, and it is a note; so it is where transformers has the class itself and runs the code only with
`trust_remote_code=True`. Of an untied model the list stops `save_pretrained` alone, and it is a warning.

## Why it matters
transformers 5 wants a dict from each tied name to the one it is tied to, and stops at the list of transformers
4 with `AttributeError: 'list' object has no attribute 'keys'`. A dict that maps a name to itself loads and
ties nothing.

## Example
A model with code of its own, written for transformers 4:

    error COD001: modeling_acme.py declares _tied_weights_keys as a list, at
    which transformers 5 stops ('list' object has no attribute 'keys'): write
    {"lm_head.weight": "model.embed_tokens.weight"}

## How to fix
Edit the file: the message has the dict.
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
    """One finding for each declaration."""
    used = "auto_map" in inspection.checkpoint.config_values
    native = inspection.family.knowledge is Knowledge.TABLE
    condition = ", where it is told to run this code," if used and native else ""
    loads = inspection.config.effective
    for caution in evidence.cautions(inspection, "code.tied-keys-list"):
        yield RULE.finding(
            f"{caution.message}, at which transformers 5 stops{condition} {'' if loads else 'when it saves the model '}"
            f"('list' object has no attribute 'keys'){_patch(inspection, caution.tensors)}",
            level=Level.NOTE if native or not used else Level.ERROR if loads else Level.WARNING,
        )
    for caution in evidence.cautions(inspection, "code.tied-to-itself"):
        yield RULE.finding(
            f"{caution.message} ({evidence.listed(caution.tensors)}), so that nothing is tied"
            f"{_patch(inspection, caution.tensors)}",
            level=Level.WARNING if used and not native else Level.NOTE,
        )


def _patch(inspection: Inspection, names: Sequence[str]) -> str:
    embedding = inspection.family.input_embedding
    if not names or embedding is None or len(names) > 4:
        return ""
    return f": write {shown(json.dumps({name: embedding for name in names if name != embedding}), 400)}"


RULE = Rule("COD001", "tied-keys", Level.ERROR, __doc__ or "", find)
