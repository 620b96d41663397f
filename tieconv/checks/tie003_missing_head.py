"""A model declared untied stores no output head.

## What it does
Reports an output embedding that is not stored although the config, or the default of the class, makes it
a parameter of its own. A head that is stored as quantised codes counts as stored.

## Why it matters
transformers fills the head with random numbers and only prints a load report; the model then answers
noise. Other loaders stop, or tie without asking. T5 and its kin are reported too where the flag is
false: transformers 5 ties them all the same, transformers 4 does not.

## Example
`"tie_word_embeddings": false`, only the embedding stored:

    error TIE003: the config declares the model untied, but lm_head.weight is
    not stored: transformers fills it with random numbers (retie if it is
    model.embed_tokens.weight, untie to write it as a copy of that)

## How to fix
Only you know which of the two is wrong, the flag or the file. If the head is the embedding (the usual
case: the flag was lost on the way), `tieconv retie` sets the flag to true, and `tieconv untie` writes
the head as a copy. If the head was trained apart, it is not in this checkpoint: look in the one that
training saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding; TIE007 and TIE008 report heads whose tying depends on the reader."""
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.is_missing(inspection, head_tie[1]):
        return
    tie, head = head_tie
    outcome = "transformers fills it with random numbers"
    if evidence.unheeded_false(inspection):
        yield _report(inspection, tie, head.name, outcome.replace("transformers", "transformers 4"))
    elif tie in evidence.declared_untied(inspection) and not evidence.disputed(inspection):
        yield _report(inspection, tie, head.name, outcome)


def _report(inspection: Inspection, tie: Tie, head: str, outcome: str) -> Finding:
    embedding = evidence.reference(tie)
    return RULE.finding(
        f"{evidence.says(inspection, False)}, but {evidence.listed([head])} is not stored: {outcome} "
        f"(retie if it is {evidence.listed([embedding])}, untie to write it as a copy of that)",
        (head, embedding),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=_remedy(inspection),
    )


def _remedy(inspection: Inspection) -> Remedy | None:
    return remedies.retie(inspection, safe=False) or remedies.untie(inspection, safe=False)


RULE = Rule("TIE003", "missing-head", Level.ERROR, __doc__ or "", find)
