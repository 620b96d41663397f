"""Neither the input embedding nor the output head is stored.

## What it does
Reports a model whose class needs a token embedding and a head, and whose file holds neither, under any
name that the class would load. Tensors that carry one of the names under another prefix are listed.

## Why it matters
transformers prints that the checkpoint seems corrupted and fills both with random numbers. Usually
the names have a prefix that a wrapper left behind (`_orig_mod.`, `module.`, `base_model.model.`),
or the weights are split over files of which only some are here.

## Example
A checkpoint of a compiled model:

    error TIE006: neither model.embed_tokens.weight nor lm_head.weight is
    stored: transformers fills both with random numbers. torch.compile left its
    prefix in all 3 tensor names.

## How to fix
Where a known training wrapper left its prefix (DistributedDataParallel, FullyShardedDataParallel, torch.compile,
PEFT), `tieconv reindex --strip-prefix` takes it from weights and index together. No tensor's bytes change. For
another prefix save the unwrapped model again, or rename the tensors. Where parts are missing, fetch them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.wrappers import unwrapping, wrappers_of
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import count


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    family, head = inspection.family, inspection.head
    names = [name for name in (family.input_embedding, family.output_head) if name]
    if family.knowledge is not Knowledge.TABLE or family.tying is Tying.HEADLESS or len(names) < 2:
        return
    supplied = head.input_embedding or (head.output_head and head.output_head.stored) or evidence.head_tie(inspection)
    if supplied or any(evidence.is_quantised(inspection, name) for name in names):
        return
    pair = " nor ".join(evidence.listed([name]) for name in names)
    message = f"neither {pair} is stored: transformers fills both with random numbers"
    changed = unwrapping(inspection.checkpoint.tensors) if inspection.wrapped_ties else {}
    if not changed:
        yield RULE.finding(f"{message}{_elsewhere(inspection, names)}", names)
        return
    total = len(inspection.checkpoint.tensors)
    share = f"all {count(total, 'tensor name')}" if len(changed) == total else f"{len(changed):,} of {total:,} names"
    wrappers = wrappers_of(changed)
    left = f"{' and '.join(wrappers)} left {'its prefix' if len(wrappers) == 1 else 'their prefixes'} in {share}"
    yield RULE.finding(f"{message}. {left}.", names, remedy=remedies.strip_prefix(inspection))


def _elsewhere(inspection: Inspection, names: list[str]) -> str:
    elsewhere = [name for name in inspection.checkpoint.tensors if name.endswith(tuple(f".{name}" for name in names))]
    return f" ({evidence.clause(elsewhere, 'has', 'have')} another prefix)" if elsewhere else ""


RULE = Rule("TIE006", "missing-pair", Level.ERROR, __doc__ or "", find)
