"""Rules about tables that the file does not store, and about classes that never tie."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import unexplained
from tieconv.architectures.stored_names import unwrapping, wrappers_of
from tieconv.checkpoint.family import Knowledge, Role, Tying
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checks import evidence, quantised, remedies
from tieconv.checks.interface import Rule
from tieconv.loaders.transformers5 import mistakable
from tieconv.text import count


def missing_head(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. TIE007 and TIE008 report heads that only some loaders tie."""
    names = unexplained(inspection)
    if names and inspection.family.mlx_names and inspection.family.output_head:
        head_name = inspection.family.output_head
        yield MISSING_HEAD.finding(
            f"{evidence.clause(names, 'is', 'are')} stored, but {evidence.listed([head_name])} is missing. "
            "mlx-vlm fails to load it: its class has its head under that name.",
            (head_name, *names),
        )
    if names:
        return  # TIE012 says that the head may be stored
    head_tie = evidence.head_tie(inspection)
    if head_tie is None:
        yield from _beside_codes(inspection)
        return
    if not evidence.is_missing(inspection, head_tie[1]):
        return
    tie, head = head_tie
    outcome = "transformers fills it with random values"
    if evidence.unheeded_false(inspection):
        yield _report(inspection, evidence.reference(tie), head.name, outcome.replace("transformers", "transformers 4"))
    elif tie in evidence.declared_untied(inspection) and not evidence.disputed(inspection):
        yield _report(inspection, evidence.reference(tie), head.name, outcome)


def _beside_codes(inspection: Inspection) -> Iterator[Finding]:
    """Yield the finding for a quantised embedding in parts, which no group holds."""
    pair, head = quantised.tables_of(inspection), inspection.head.output_head
    embedding = pair.of(EMBEDDING) if pair else None
    if embedding is None or head is None or head.stored or inspection.config.effective:
        return
    if not evidence.is_quantised(inspection, head.name):
        yield _report(inspection, embedding.name, head.name, "transformers fills it with random values")


def _report(inspection: Inspection, embedding: str, head: str, outcome: str) -> Finding:
    if inspection.checkpoint.is_embedder:
        return MISSING_HEAD.finding(evidence.without_head(head), (head,), level=Level.NOTE)
    if inspection.family.mlx_names:
        outcome = "mlx-lm and mlx-vlm fail to load the model"
    return MISSING_HEAD.finding(
        f"{evidence.listed([head])} is missing, but {evidence.says(inspection, False)}. {outcome}. Run retie if the "
        f"model is tied to {evidence.listed([embedding])}, or untie to store a copy of it.",
        (head, embedding),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=_remedy(inspection),
    )


def _remedy(inspection: Inspection) -> Remedy | None:
    return remedies.retie(inspection, safe=False) or remedies.untie(inspection, safe=False)


MISSING_HEAD = Rule(
    "TIE003",
    "missing-head",
    Level.ERROR,
    """An untied model stores no output head.

## What it does
Reports a missing output head if the config, or the default of the class, says untied. A head that is stored as
quantised codes counts as stored.

It is a note in a directory of sentence-transformers (`modules.json`), whose programs use no head.

## Why it matters
transformers fills the head with random values and only prints a load report. The model then generates noise. Other
loaders fail, or tie without a message. The rule also reports T5 and similar classes with the flag false. transformers 5
ties them anyway, but transformers 4 does not.

## Example
`"tie_word_embeddings": false`, only the embedding stored:

    error TIE003: lm_head.weight is missing, but the config says untied.
    transformers fills it with random values. Run retie if the model is tied to
    model.embed_tokens.weight, or untie to store a copy of it.

## How to fix
Only you know whether the flag or the file is wrong. Usually a tool lost the flag, and the head is the embedding. Then
`tieconv retie` sets the flag to true, or `tieconv untie` stores the head as a copy. If the head was trained separately,
this checkpoint does not contain it. Look in the checkpoint that the training saved.
""",
    missing_head,
)


def missing_pair(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    family, head = inspection.family, inspection.head
    names = [name for name in (family.input_embedding, family.output_head) if name]
    if family.knowledge is not Knowledge.TABLE or family.tying is Tying.HEADLESS or len(names) < 2:
        return
    supplied = head.input_embedding or (head.output_head and head.output_head.stored) or evidence.head_tie(inspection)
    if supplied or any(evidence.is_quantised(inspection, name) for name in names):
        return
    renamed = mistakable(family, inspection.checkpoint.tensors)
    if renamed is not None:
        message = f"{evidence.listed(names)} are missing. tieconv does not know whether transformers 5 renames"
        yield MISSING_PAIR.finding(
            f"{message} {evidence.listed(renamed[1:])}.", (*names, renamed[1]), level=Level.WARNING
        )
        return
    message = f"{evidence.listed(names)} are missing. transformers fills both with random values."
    changed = unwrapping(inspection.checkpoint.tensors) if inspection.wrapped_ties else {}
    if not changed:
        yield MISSING_PAIR.finding(f"{message}{_elsewhere(inspection, names)}", names)
        return
    total = len(inspection.checkpoint.tensors)
    share = f"all {count(total, 'tensor name')}" if len(changed) == total else f"{len(changed):,} of {total:,} names"
    wrappers = wrappers_of(changed)
    left = f"{' and '.join(wrappers)} left {'its prefix' if len(wrappers) == 1 else 'their prefixes'} in {share}"
    yield MISSING_PAIR.finding(f"{message} {left}.", names, remedy=remedies.strip_prefix(inspection))


def _elsewhere(inspection: Inspection, names: list[str]) -> str:
    ends = tuple(f".{'.'.join(name.split('.')[-2:])}" for name in names)
    elsewhere = [name for name in inspection.checkpoint.tensors if name.endswith(ends)]
    return f" {evidence.clause(elsewhere, 'has', 'have')} another prefix." if elsewhere else ""


MISSING_PAIR = Rule(
    "TIE006",
    "missing-pair",
    Level.ERROR,
    """Neither the input embedding nor the output head is stored.

## What it does
Reports a file with neither the token embedding nor the head that the class needs. The message lists tensors that have
one of the names after another prefix.

## Why it matters
transformers prints that the checkpoint seems corrupted and fills both with random values. Usually the names have a
prefix of a wrapper (`_orig_mod.`, `module.`, `base_model.model.`). Or some files of the weights are missing.

## Example
A checkpoint of a compiled model:

    error TIE006: model.embed_tokens.weight and lm_head.weight are missing.
    transformers fills both with random values. torch.compile left its prefix in
    all 3 tensor names.

## How to fix
Known training wrappers are DistributedDataParallel, FullyShardedDataParallel, torch.compile and PEFT. For their
prefixes, `tieconv reindex --strip-prefix` removes them from the weights and the index. It changes no tensor's bytes.
For another prefix, save the unwrapped model again or rename the tensors. If files are missing, fetch them.
""",
    missing_pair,
)


def never_tied(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. TIE006 reports a model that also lacks the embedding."""
    head = inspection.head.output_head
    if inspection.family.tying is not Tying.NEVER or head is None or head.stored:
        return
    if inspection.head.input_embedding is None or evidence.is_quantised(inspection, head.name):
        return
    if unexplained(inspection):
        return  # TIE012 says that the head may be stored
    if inspection.checkpoint.is_embedder:
        yield NEVER_TIED.finding(evidence.without_head(head.name), (head.name,), level=Level.NOTE)
        return
    yield NEVER_TIED.finding(
        f"{evidence.listed([head.name])} is missing, but {evidence.label(inspection)} never ties it. "
        "transformers fills it with random values, whatever the config says.",
        (head.name,),
    )


NEVER_TIED = Rule(
    "TIE009",
    "never-tied",
    Level.ERROR,
    """A class that never ties stores no output head.

## What it does
Reports a missing output head in classes that never tie it. Examples are `KimiLinearForCausalLM`,
`MllamaForConditionalGeneration`, `ReformerModelWithLMHead` and `LukeForMaskedLM`.

## Why it matters
The flag may be true, and for some of these classes it is true by default. But the class does not read it. transformers
fills the head with random values, whatever the config says. A tool that drops the head of "tied" models damages these.

## Example
`KimiLinearForCausalLM` with `"tie_word_embeddings": true` and only the embedding stored:

    error TIE009: lm_head.weight is missing, but KimiLinearForCausalLM never
    ties it. transformers fills it with random values, whatever the config says.

## How to fix
Get the head from the checkpoint that still has it. tieconv does not write one, because nothing shows that it would
equal the embedding.
""",
    never_tied,
)


def missing_copies(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each untied group with missing names."""
    for tie in evidence.declared_untied(inspection) if not unexplained(inspection) else ():
        absent = [member.name for member in tie.members if _is_needed(inspection, tie, member)]
        if absent and tie.role is not Role.OUTPUT_BIAS:
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models lack such names

            stored = load(inspection, TRANSFORMERS_4).source(absent[0]) or evidence.reference(tie)
            yield MISSING_COPIES.finding(
                f"{evidence.clause(absent, 'is', 'are')} missing beside {evidence.listed([stored])}, but "
                f"{evidence.says(inspection, False)}. transformers fills "
                f"{evidence.verb(absent, 'it', 'them')} with random values.",
                (*absent, stored),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.untie(inspection, safe=False),
            )


def _is_needed(inspection: Inspection, tie: Tie, member: Member) -> bool:
    return evidence.is_missing(inspection, member) and evidence.head_member(inspection, tie) is not member


MISSING_COPIES = Rule(
    "TIE011",
    "missing-copies",
    Level.ERROR,
    """An untied model lacks other tensors than its head.

## What it does
Reports names of an untied group, other than the head, that are not stored. These are the embeddings of the encoder and
the decoder of BART and similar classes, or the input embedding.

## Why it matters
In a tied sequence-to-sequence model one matrix fills all four names. If the flag is false, each name needs a tensor,
and transformers fills missing ones with random values. To write only the head is not enough.

An FSMT that transformers 4 saved lacks the table of the decoder, which was the head there. transformers 5 has two
tensors, and one of them is random.

## Example
A BART with `"tie_word_embeddings": false` that stores the shared matrix and the head:

    error TIE011: model.encoder.embed_tokens.weight and
    model.decoder.embed_tokens.weight are missing beside model.shared.weight,
    but the config says untied. transformers fills them with random values.

## How to fix
`tieconv untie` writes every missing name as a copy of the stored one. If all stored tensors are equal, `tieconv retie`
sets the flag to true instead (review first: changes the model's outputs).
""",
    missing_copies,
)
