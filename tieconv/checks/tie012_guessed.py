"""What ties is a guess, because the architecture is not in the table.

## What it does
Says that the class that the config names was not measured. Where an embedding and a head were recognised
by their names and shapes it is a warning, since other findings build on the guess; where there is no
config, nothing was recognised, or the config says false and both are stored, it is a note.

## Why it matters
Names tell neither whether a class can tie, nor what an absent flag means, nor whether the flag also
scales the logits (as in T5). Models with code of their own are the usual case. Commands that write
refuse to work on a guess.

## Example
A class that no release of transformers has:

    warning TIE012: the architecture AcmeForCausalLM is not in the table:
    model.embed_tokens.weight and lm_head.weight were guessed from the names

## How to fix
If the guess is right, say so: `tieconv retie --embed NAME --head NAME`, and the same for `untie` and
`inspect`. Errors of other rules are lowered to warnings while the architecture is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import compose
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checks import evidence
from tieconv.checks.interface import Rule
from tieconv.text import shown

_EMBED, _HEAD = "tok_embeddings.weight", "output.weight"
"""What Mistral's own format calls the embedding and the head; the latter is not stored where params.json ties them."""


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    family, named = inspection.family, inspection.config.architectures
    if family.trusted or any(evidence.cautions(inspection, "layout.one-shard")):
        return
    names = [name for name in (family.input_embedding, family.output_head) if name]
    config = inspection.checkpoint.config_values
    subject = f"{compose.subject(named[0], config)} is not in the table" if named else "no config names an architecture"
    if not names:
        yield RULE.finding(f"{subject}, and no tensor looks like an embedding: nothing was compared", level=Level.NOTE)
        return
    if not named and inspection.checkpoint.native in inspection.checkpoint.states:
        subject = f"{shown(inspection.checkpoint.native)} is of Mistral's own format, and {subject}"
        names_known = f"; name them: --embed {_EMBED} --head {_HEAD}"
    else:
        names_known = ""
    declared = [entry.value for entry in inspection.config.declared]
    separate = (
        bool(declared)
        and all(value is False for value in declared)
        and inspection.checkpoint.tensors.keys() >= set(names)
    )
    pair = named and len(names) == 2 and not separate
    yield RULE.finding(
        f"{subject}: {evidence.clause(names, 'was', 'were')} guessed from the names{_shared(inspection)}{names_known}",
        names,
        level=Level.WARNING if pair else Level.NOTE,
    )


def _shared(inspection: Inspection) -> str:
    tie = inspection.word_tie
    aliased = tie is not None and any(member.state is State.ALIASED for member in tie.members)
    return " and their shared storage" if aliased else ""


RULE = Rule("TIE012", "guessed", Level.WARNING, __doc__ or "", find)
