"""A tied tensor is stored under the wrong one of its names.

## What it does
Reports a tied group that lacks its canonical name, the one that `save_pretrained` keeps. The file stores the head
without the embedding, for example, or only the second name of a head bias.

## Why it matters
transformers 5 reads either name, but transformers 4.57 reads only the canonical one. It leaves the parameter without
values and reports nothing until the first forward pass fails. transformers 4.48 fills such a bias with zeros.
llama.cpp, vLLM and mlx-lm do not find the embedding. `safetensors.torch.save_model` and
`huggingface_hub.save_torch_model` write such files, because they keep the first name in the alphabet.

It is a warning if transformers 4.57 reads the stored embedding of the encoder or the decoder. It does so for T5, Marian
and Pegasus, and for the decoder of BART. bart-large-cnn is published in this form.

## Example
`"tie_word_embeddings": true`, only the head stored:

    error TIE005: model.embed_tokens.weight is missing, but a tied model stores
    this name. The file has only lm_head.weight. transformers 4.57 leaves the
    parameter without values. Other loaders need model.embed_tokens.weight.

## How to fix
`tieconv retie` stores the tensor under its canonical name. The bytes stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import unexplained
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each tied group whose canonical name is missing."""
    for tie in inspection.ties if not unexplained(inspection) else ():
        if tie.declared and not tie.canonical_stored and not evidence.is_quantised(inspection, tie.canonical):
            stored = [member.name for member in tie.stored_members]
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models have such a tie

            loaded_by_v4 = load(inspection, TRANSFORMERS_4)
            read = tie.role is Role.WORD_EMBEDDING and loaded_by_v4.source(tie.canonical) is not None
            name = evidence.listed([tie.canonical])
            outcome = (
                "transformers loads either name" if read else "transformers 4.57 leaves the parameter without values"
            )
            yield RULE.finding(
                f"{name} is missing, but a tied model stores this name. The file has only {evidence.listed(stored)}. "
                f"{outcome}. Other loaders need {name}.",
                (tie.canonical, *stored),
                level=evidence.certain(inspection, Level.WARNING if read and len(stored) == 1 else Level.ERROR),
                remedy=_remedy(inspection, tie),
            )


def _remedy(inspection: Inspection, tie: Tie) -> Remedy | None:
    if not remedies.is_merged(tie):
        return None
    return remedies.merge(inspection, tie) or remedies.untie(inspection, safe=False)


RULE = Rule("TIE005", "inverted-tie", Level.ERROR, __doc__ or "", find)
