"""A loader does not load a quantised model, although its files are whole.

## What it does
Asks the measured answers of transformers 5, or of mlx-lm for files of MLX. Reports a tied model with a quantised
embedding and no head, if the loader does not tie them. Reports an untied model with a quantised head, if the loader
loses the head without an error.

## Why it matters
A tie names one tensor, and a quantised matrix has several. transformers 5.23 ties the codes of an FP8 embedding, but
not its scales, and the logits are noise. It fails at the packed embeddings of compressed-tensors. It does not read a
head of GPTQ codes, and starts it with random numbers.

## Example
A tied model whose embedding is packed by compressed-tensors:

    warning QNT010: transformers 5 does not load lm_head.weight of this
    quantised model. transformers fails to load it: it looks for a tensor named
    .weight in a quantised embedding.

## How to fix
For compressed-tensors, load with `CompressedTensorsConfig(dequantize=True)`. `tieconv untie` stores a second copy of
the parts. `tieconv inspect --consumers` says what every loader does.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, QuantisedTables, Verdict
from tieconv.checks import evidence, quantised_pairs
from tieconv.checks.interface import Rule
from tieconv.loaders.evidence.quantised_cells import MLX, TRANSFORMERS
from tieconv.loaders.registry import consumer


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding: an error for a tied model that the loader loads wrongly without a message."""
    tables = quantised_pairs.tables(inspection)
    if tables is None or not _is_whole(tables) or not _is_subject(inspection, tables):
        return
    loader, label = (
        (MLX, "mlx-lm 0.32") if tables.matrices[0].scheme.startswith("MLX") else (TRANSFORMERS, "transformers 5")
    )
    answer = consumer(*loader).predict(inspection)
    silent = answer.outcome in (Outcome.RANDOM, Outcome.DISCARDED)
    if not silent and answer.outcome is not Outcome.ERROR:
        return
    tied = inspection.config.effective
    if not silent and not tied:
        return
    names = quantised_pairs.names(inspection)
    yield RULE.finding(
        f"{label} does not load {evidence.listed([names[1]])} of this quantised model. "
        f"{evidence.capital(answer.detail)}.",
        (names[1],),
        level=evidence.certain(inspection, Level.ERROR if silent and tied else Level.WARNING),
    )


def _is_whole(tables: QuantisedTables) -> bool:
    """Return whether each matrix is read and the config includes it: other rules report the others."""
    return not any(
        matrix.faults or not matrix.scheme or (matrix.role == HEAD and matrix.config.verdict is Verdict.LEFT_OUT)
        for matrix in tables.matrices
    )


def _is_subject(inspection: Inspection, tables: QuantisedTables) -> bool:
    """Return whether the model is tied without a head, or untied with a quantised head."""
    head = inspection.head.output_head
    if inspection.config.effective:
        return tables.of(EMBEDDING) is not None and tables.of(HEAD) is None and (head is None or not head.stored)
    return tables.of(HEAD) is not None


RULE = Rule("QNT010", "codes-not-loaded", Level.WARNING, __doc__ or "", find)
