"""A tied tensor is stored under the wrong one of its names.

## What it does
Reports a tied group whose canonical name, the one that `save_pretrained` keeps, is absent while another
of its names is stored: the head without the embedding, or the second name of a head bias without the
first.

## Why it matters
transformers 5 looks at either name, transformers 4.57 at the canonical one: it leaves the parameter
without values and reports nothing missing until the first forward pass fails; 4.48 starts such a bias at
zero. llama.cpp, vLLM and mlx-lm miss the embedding. `safetensors.torch.save_model` and
`huggingface_hub.save_torch_model` write such files: they keep the name that comes first in the alphabet.
It is a warning where the encoder's or the decoder's table is stored and transformers 4.57 reads that too, as it does
for T5, Marian and Pegasus, and for BART from the decoder (bart-large-cnn is published so).

## Example
`"tie_word_embeddings": true`, only the head stored:

    error TIE005: lm_head.weight is stored, but not model.embed_tokens.weight,
    the name that a tied model keeps: transformers 4.57 leaves it without
    values, and other loaders miss it

## How to fix
`tieconv retie` stores the tensor under its canonical name; the bytes stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each tied group whose canonical name is absent."""
    for tie in inspection.ties:
        if tie.declared and not tie.canonical_stored and not evidence.is_quantised(inspection, tie.canonical):
            stored = [member.name for member in tie.stored_members]
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models have such a tie

            loaded_by_v4 = load(inspection, TRANSFORMERS_4)
            read = tie.role is Role.WORD_EMBEDDING and loaded_by_v4.source(tie.canonical) is not None
            loaders_fail = "transformers looks at both, and other loaders miss" if read else "transformers 4.57 leaves"
            yield RULE.finding(
                f"{evidence.clause(stored, 'is', 'are')} stored, but not "
                f"{evidence.listed([tie.canonical])}, the name that a tied model keeps: "
                f"{loaders_fail} it{'' if read else ' without values, and other loaders miss it'}",
                (tie.canonical, *stored),
                level=evidence.certain(inspection, Level.WARNING if read and len(stored) == 1 else Level.ERROR),
                remedy=_remedy(inspection, tie),
            )


def _remedy(inspection: Inspection, tie: Tie) -> Remedy | None:
    if not remedies.is_merged(tie):
        return None
    return remedies.merge(inspection, tie) or remedies.untie(inspection, safe=False)


RULE = Rule("TIE005", "inverted-tie", Level.ERROR, __doc__ or "", find)
