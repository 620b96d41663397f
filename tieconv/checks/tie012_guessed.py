"""The architecture is unknown, so tieconv guesses the tie.

## What it does
Reports a class in the config that tieconv has no measurement of. It also reports a class with the `model_type` of
another family. transformers then builds another class or uses other names.

It is a warning if the answer may be wrong for this file. The config says tied, and tieconv guessed an embedding and a
head. Or the config says untied, and no tensor looks like a head. Or tensors may be parts of the head, in a form that
tieconv does not know. No other rule then calls the head missing.

Otherwise it is a note: the class may be unknown, but each table is stored.

## Why it matters
Names do not show whether a class can tie, or what a missing flag means. They do not show whether the flag also scales
the logits (as in T5). The usual cases are models with their own code. Commands that write refuse to use a guess.

## Example
A class that no release of transformers has, with `"tie_word_embeddings": false` and only the embedding stored:

    warning TIE012: tieconv does not know the architecture AcmeForCausalLM.
    model.embed_tokens.weight is a guess from the names. The config says untied,
    and no tensor looks like an output head. A loader may fill it with random
    values.

## How to fix
If the guess is right, confirm it: `tieconv retie --embed NAME --head NAME`, and the same for `untie` and `inspect`. If
the architecture is unknown, errors of other rules become warnings.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import compose, unexplained
from tieconv.architectures.lookup import is_headless
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checks import evidence
from tieconv.checks.interface import Rule
from tieconv.text import shown

_EMBED, _HEAD = "tok_embeddings.weight", "output.weight"
"""The names of the embedding and the head in Mistral's own format. A model that params.json ties stores no head."""


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    family, named = inspection.family, inspection.config.architectures
    parts = unexplained(inspection)
    if parts:
        maybe = (
            "may be the output head or the input embedding" if len(parts) == 1 else "may be parts of the output head"
        )
        yield RULE.finding(
            f"{evidence.listed(parts)} {maybe}, and tieconv does not know {evidence.verb(parts, 'its', 'their')} form. "
            "tieconv cannot predict how a loader reads this model, and commands that write refuse it.",
            parts,
        )
        return
    if family.trusted or any(evidence.cautions(inspection, "layout.one-shard")):
        return
    names = [name for name in (family.input_embedding, family.output_head) if name]
    config = inspection.checkpoint.config_values
    known = f"tieconv does not know {compose.subject(named[0], config)}" if named else "no config sets an architecture"
    subject = evidence.capital(known)
    if not names:
        yield RULE.finding(f"{subject}. No tensor looks like an embedding, so nothing was compared.", level=Level.NOTE)
        return
    if not named and inspection.checkpoint.native in inspection.checkpoint.states:
        subject = f"{shown(inspection.checkpoint.native)} is in Mistral's own format. {subject}"
        names_known = f" To confirm them, add --embed {_EMBED} --head {_HEAD}."
    else:
        names_known = ""
    declared = [entry.value for entry in inspection.config.declared]
    untied = bool(declared) and all(value is False for value in declared)
    tied = named and len(names) == 2 and any(declared)
    headless = any(map(is_headless, named)) or inspection.checkpoint.is_embedder
    lost = named and untied and family.output_head is None and not headless
    missing = (
        " The config says untied, and no tensor looks like an output head. A loader may fill it with random values."
    )
    guess = evidence.clause(names, "is a guess", "are guesses")
    yield RULE.finding(
        f"{subject}. {guess} from the names{_shared(inspection)}.{names_known}{missing * bool(lost)}",
        names,
        level=Level.WARNING if tied or lost else Level.NOTE,
    )


def _shared(inspection: Inspection) -> str:
    tie = inspection.word_tie
    aliased = tie is not None and any(member.state is State.ALIASED for member in tie.members)
    return " and their shared storage" if aliased else ""


RULE = Rule("TIE012", "guessed", Level.WARNING, __doc__ or "", find)
