"""The config leaves the output head out of the quantisation, but the file stores codes for it.

## What it does
Reports a quantised head that the quantisation config does not include. The entry may be `ignore`,
`modules_to_not_convert`, `llm_int8_skip_modules`, a false `lm_head`, or the absence of a target.

## Why it matters
A loader builds an ordinary matrix there and finds no tensor for it. It fails, or it fills the matrix with random
numbers or with uninitialised memory.

## Example
A head that compressed-tensors packed, and a config whose `ignore` lists `lm_head`:

    error QNT008: lm_head.weight is stored as quantised codes, but the
    quantisation config leaves it out (ignore: lm_head). Loaders find no float
    matrix there.

## How to fix
`tieconv set-tie auto` corrects the entry, so that the config lists what the file stores. It does so for
compressed-tensors, GPTQ, AWQ, bitsandbytes and FP8. Or restore the float matrix from the model that was quantised.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised import LISTING_METHODS
from tieconv.checkpoint.quantised_matrix import HEAD, QuantisedMatrix, Verdict
from tieconv.checks import evidence, quantised_pairs, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    pair = quantised_pairs.tables(inspection)
    head = pair.of(HEAD) if pair else None
    if head is not None and head.config.verdict is Verdict.LEFT_OUT and not head.faults:
        yield _report(inspection, head)


def _report(inspection: Inspection, matrix: QuantisedMatrix) -> Finding:
    entry = f" ({shown(matrix.config.entry)})" if matrix.config.entry else ""
    edits = inspection.quantisation is not None and inspection.quantisation.method in LISTING_METHODS
    return RULE.finding(
        f"{evidence.listed([matrix.name])} is stored as quantised codes, but the quantisation config leaves it out"
        f"{entry}. Loaders find no float matrix there.",
        (matrix.name,),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=remedies.of_parts(inspection, "set-tie auto") if edits else None,
    )


RULE = Rule("QNT008", "codes-left-out", Level.ERROR, __doc__ or "", find)
