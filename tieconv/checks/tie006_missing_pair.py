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
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.wrappers import unwrapping, wrappers_of
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.loaders.transformers.names5 import mistakable
from tieconv.text import count


def find(inspection: Inspection) -> Iterator[Finding]:
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
        yield RULE.finding(f"{message} {evidence.listed(renamed[1:])}.", (*names, renamed[1]), level=Level.WARNING)
        return
    message = f"{evidence.listed(names)} are missing. transformers fills both with random values."
    changed = unwrapping(inspection.checkpoint.tensors) if inspection.wrapped_ties else {}
    if not changed:
        yield RULE.finding(f"{message}{_elsewhere(inspection, names)}", names)
        return
    total = len(inspection.checkpoint.tensors)
    share = f"all {count(total, 'tensor name')}" if len(changed) == total else f"{len(changed):,} of {total:,} names"
    wrappers = wrappers_of(changed)
    left = f"{' and '.join(wrappers)} left {'its prefix' if len(wrappers) == 1 else 'their prefixes'} in {share}"
    yield RULE.finding(f"{message} {left}.", names, remedy=remedies.strip_prefix(inspection))


def _elsewhere(inspection: Inspection, names: list[str]) -> str:
    ends = tuple(f".{'.'.join(name.split('.')[-2:])}" for name in names)
    elsewhere = [name for name in inspection.checkpoint.tensors if name.endswith(ends)]
    return f" {evidence.clause(elsewhere, 'has', 'have')} another prefix." if elsewhere else ""


RULE = Rule("TIE006", "missing-pair", Level.ERROR, __doc__ or "", find)
